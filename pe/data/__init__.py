"""Samples, their conditions, and populations of them."""
