"""Thin modules that bring K into other brokers, in the form that each of them asks for."""
