"""The alert record: how it is built and written, and the life of an event."""
