"""What an epoch is: usable or not, time scales, magnitudes, robust statistics."""
