"""Generators that are fitted to private data under a budget, then answer as any other."""
