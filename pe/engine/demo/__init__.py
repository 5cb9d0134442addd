"""The demo: Private Evolution on real handwritten digits, and how good the result is."""
