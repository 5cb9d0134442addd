"""Generators that are fitted to private data under a budget, then answer like any other
generator.
"""
