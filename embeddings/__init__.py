"""Embeddings, one per file with its own preprocessing. Found by name through entry points."""
