"""The machine and what is installed on it."""
