"""K of your own light curve from Python, computed as the service does."""
