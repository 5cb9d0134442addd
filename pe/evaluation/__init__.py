"""How good synthetic data is. What touches private data un-noised says so."""
