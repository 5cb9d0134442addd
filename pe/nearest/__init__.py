"""Exact nearest neighbours for votes, and `label_weights`.

Each row of the answer depends on its query and the candidates alone. `label_weights` is what near
candidates' noisy votes tell about a label's candidates.
"""

from pe.nearest.search import Backend, describe_search, nearest

__all__ = ["Backend", "describe_search", "nearest"]
