"""`pe explain`: what may stand in a recipe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pe.recipe.reference import Key, Part


@click.command()
@click.argument("what", required=False)
@click.option("--markdown", is_flag=True, help="Everything, as the page docs/recipe.md.")
def explain(what: str | None, markdown: bool) -> None:
    """What may stand in a recipe.

    WHAT is a section (evolution), a kind of source, generator or embedding (privimage), or a key (lookahead); without
    it, the sections and kinds there are.
    """
    from pe.recipe.reference import kinds, sections
    from pe.recipe.reference_page import page

    parts = [*sections(), *kinds()]
    if markdown:
        click.echo(page(parts))
    elif what is None:
        click.echo("\n".join(contents(parts)))
    else:
        click.echo("\n\n".join(found(what, parts)))


def found(what: str, parts: list[Part]) -> Iterator[str]:
    """What is named so: parts of the recipe, or keys in them.

    Raises:
        RecipeError: nothing is.
    """
    from pe.errors import RecipeError, nearest_name

    whole = [part for part in parts if what in (part.kind or part.section, part.title)]
    keys = {part: [key for key in part.keys if what in (key.name, key.name.rpartition(".")[2])] for part in parts}
    if not whole and not any(keys.values()):
        known = {part.kind or part.section for part in parts} | {key.name for part in parts for key in part.keys}
        raise RecipeError(f"A recipe has no '{what}'; {nearest_name(what, sorted(known))}")
    for part in whole:
        others = [other for other in parts if other.kind and other.section == part.section and not part.kind]
        yield "\n".join(
            [click.style(part.title, bold=True), wrapped(part.text), *map(entry, part.keys), *listed("kind:", others)]
        )
    if not whole:
        for part, some in keys.items():
            if some:
                yield "\n".join([click.style(part.title, bold=True), *map(entry, some)])


def contents(parts: list[Part]) -> Iterator[str]:
    """The names of all parts, each with its first sentence."""
    yield from listed("Sections of a recipe:", [part for part in parts if not part.kind])
    for section in dict.fromkeys(part.section for part in parts if part.kind):
        yield from listed(f"{section}.kind:", [part for part in parts if part.kind and part.section == section])
    yield "\n`pe explain NAME` says more of each, or of a key."


def listed(title: str, parts: list[Part]) -> Iterator[str]:
    """A line for each part, below a title; nothing, where there are none."""
    if parts:
        yield f"\n{title}"
        for part in parts:
            name = (part.kind or part.section).ljust(20)
            yield click.wrap_text(f"{name} {part.summary}", 100, initial_indent="  ", subsequent_indent=" " * 23)


def entry(key: Key) -> str:
    """A key, its values and default, and below what it means."""
    left_out = "required" if key.default is None else f"default: {key.default}"
    return f"\n  {click.style(key.name, bold=True)}  ({key.values or 'anything'}; {left_out})\n" + wrapped(
        key.meaning, 6
    )


def wrapped(text: str, indent: int = 0) -> str:
    """Paragraphs, in lines of 100 characters."""
    space = " " * indent
    return click.wrap_text(text, 100, initial_indent=space, subsequent_indent=space, preserve_paragraphs=True)
