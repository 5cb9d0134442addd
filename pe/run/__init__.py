"""A run: its journal, its directory, and the dispatch of API work."""
