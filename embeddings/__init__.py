"""Embeddings, one per file with its own preprocessing; found by name through entry points."""
