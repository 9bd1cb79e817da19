"""Injected events, and what of them the filter found."""
