"""Forwarding: each alert to another system, once, with a record of what was taken."""
