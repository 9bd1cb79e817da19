"""Simulated light curves: priors, observing patterns, noise and the gate."""
