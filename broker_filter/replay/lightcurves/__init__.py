"""Files of light curves: what their columns mean, and their epochs."""
