"""One module a sub-command of ``broker-filter``."""
