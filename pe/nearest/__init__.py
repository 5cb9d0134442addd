"""Exact nearest neighbours for votes: each row a function of its query and the candidates alone."""

from pe.nearest.choose import Backend, describe
from pe.nearest.search import nearest

__all__ = ["Backend", "describe", "nearest"]
