"""The running filter: its loop and threads, start, restore, stop."""
