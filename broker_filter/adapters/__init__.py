"""In other brokers: thin files that put K into the form that each broker's modules have."""
