"""Lines that the starting recipes of endpoints share; see `HasStarter` of pe/recipe/starter.py."""

from __future__ import annotations

PROMPTED = """\
  prompts: {prompts}\t# public: a text, a list to draw from, or either for each label
  image_size: {size}\t# what the samples are resized to
  channels: {channels}
"""

KEEPS = "  keep_size: 512\t# samples are varied at this size, at the price of disk; false: at image_size\n"
PRICED = "  # price: {{image: 0.01, currency: USD}}\t# yours to state; then state limits.max_cost, too\n"


def hosted(*lines: str) -> str:
    """The starting lines of a hosted model: its own, then what all share."""
    return "".join(f"  {line}\n" for line in lines) + PROMPTED + KEEPS + PRICED
