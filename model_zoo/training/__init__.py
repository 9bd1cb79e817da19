"""Trains networks on simulated curves and files them in the zoo."""
