"""K of an own light curve from Python, by the path of the service."""
