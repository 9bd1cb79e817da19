"""For subscribers: reading, saving and drawing alerts."""
