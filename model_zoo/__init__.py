"""Offline part: simulator, trainer and evaluation that make the entries of the model zoo."""
