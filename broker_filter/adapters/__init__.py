"""Thin modules that bring K into other brokers, each in its own form."""
