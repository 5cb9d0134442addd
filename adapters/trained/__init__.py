"""Generators that are fitted to private data under a budget before they answer."""
