"""Exact nearest neighbours for votes: each row of the answer depends on its query and the
candidates alone.

Beside them, `label_weights`: what near candidates' noisy votes tell about a label's candidates.
"""

from pe.nearest.search import Backend, describe_search, nearest

__all__ = ["Backend", "describe_search", "nearest"]
