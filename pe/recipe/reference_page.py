"""The page docs/recipe.md: what may stand in a recipe, a table for each part."""

from __future__ import annotations

from pe.recipe.reference import Key, Part


def page(parts: list[Part]) -> str:
    """Markdown, a table for each part."""
    lines = [
        "# The recipe, key by key",
        "",
        "What `pe explain` prints, on one page; `pe explain --markdown` writes it from the code that reads a recipe. "
        "Every value in a recipe is public. `pe init` writes one to begin with; [examples](../examples/README.md). "
        "A value may stand [in a file of its own](data.md#values-in-files-of-their-own).",
    ]
    for part in sorted(parts, key=lambda part: [one.section for one in parts].index(part.section)):
        lines += ["", f"{'###' if part.kind else '##'} {part.title}", "", part.text]
        if part.keys:
            lines += ["", "| key | values | default | meaning |", "| --- | --- | --- | --- |"]
            lines += [row(key) for key in part.keys]
    return "\n".join(lines)


def row(key: Key) -> str:
    """A line of a table."""
    left_out = "*required*" if key.default is None else f"`{key.default}`"
    cells = (f"`{key.name}`", key.values, left_out, key.meaning)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
