"""Metrics, health, their HTTP server, and logs."""
