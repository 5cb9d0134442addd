"""Private Evolution: differentially private synthetic data from any generator you can call."""
