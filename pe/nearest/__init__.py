"""Exact nearest neighbours for votes: each row of the answer depends on its query and the candidates alone."""

from pe.nearest.search import Backend, describe, nearest

__all__ = ["Backend", "describe", "nearest"]
