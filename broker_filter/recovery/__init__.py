"""Injected events, and how many of them the filter found."""
