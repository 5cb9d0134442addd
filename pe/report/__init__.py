"""Pictures and pages of a run: those to share come from its shareable side alone, others are
marked.
"""
