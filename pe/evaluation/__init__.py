"""The quality of synthetic data. All that reads private data without noise says so."""
