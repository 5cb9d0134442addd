"""`pe plan`, `pe probe` and `pe explain`: commands before a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pe.cli.options import PATH, json_option, recipe_option, tell_next
from pe.cli.pages import page

if TYPE_CHECKING:
    from pe.plugins.protocols import Generator
    from pe.recipe.explain import ExplainedPart, Key


@click.command()
@click.argument("recipe", type=PATH)
@recipe_option
@click.option(
    "--samples-per-second",
    type=click.FloatRange(min=0, min_open=True),
    help="The generator's speed, to estimate the time.",
)
@click.option("--rate-of", "like", type=PATH, metavar="RUN", help="Take the rate measured in RUN.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Try a generator's fit on made-up samples, and tell its time and memory.",
)
@json_option
def plan(
    recipe: Path,
    changes: tuple[str, ...],
    samples_per_second: float | None,
    like: Path | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Show what RECIPE will ask for, what it costs, and its guarantee.

    Nothing is called, and no private record is read; only the data set's ledger file is read, for
    its cap.
    """
    from pe.planning.checks import obstacles
    from pe.planning.forecast import forecast
    from pe.planning.parts import set_up_generator
    from pe.recipe.schema import Recipe

    content = Recipe.load(recipe, changes)
    api, unknown = set_up_generator(content.api)
    if like is not None:
        samples_per_second = _measure_rate(like, api, content.limits.max_concurrency)
    warnings = obstacles(content, api)
    # a plan is told even where the generator cannot be set up here
    if unknown:
        warnings = [*warnings, unknown]
    result = forecast(content, api, warnings, samples_per_second, dry_run)
    click.echo(json.dumps(result.to_dict()) if as_json else str(result))
    if not as_json:
        tell_next(["run", recipe, *_set(changes)])


def _set(changes: tuple[str, ...]) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


def _measure_rate(run: Path, api: Generator | None, most: int | None) -> float:
    """Return the samples a second of all requests that may be under way at once.

    Each request is taken to be as fast as a request in `run`.
    """
    from pe.errors import RunError
    from pe.store.run import Run
    from pe.store.writer import read_journal

    with read_journal(Run.open(run)) as journal:
        rate = journal.samples_per_second()
    if rate is None:
        raise RunError(
            f"{run} has no samples yet, so its rate is unknown. Give `--samples-per-second`."
        )
    concurrency = 1 if api is None else api.capabilities.concurrency
    return rate * min(concurrency, most or concurrency)


@click.command()
@click.argument("recipe", type=PATH)
@recipe_option
@click.option("--label", help="The label to ask for; the recipe's first.")
@click.option(
    "--ladder",
    is_flag=True,
    help="Vary five samples at 0, 0.1, 0.3, 0.6 and 1, and tell how far they move.",
)
@click.option(
    "--degree",
    "degrees",
    type=float,
    multiple=True,
    help="Degree of the variation; may be repeated.",
)
@click.option("--out", type=PATH, default=Path("probe.png"), show_default=True, help="The picture.")
@json_option
def probe(
    recipe: Path,
    changes: tuple[str, ...],
    label: str | None,
    ladder: bool,
    degrees: tuple[float, ...],
    out: Path,
    as_json: bool,
) -> None:
    """Ask RECIPE's generator for a few samples and variations.

    Saves them as one picture. Reads no private record and makes no run. Takes two calls; with
    several degrees, five samples and five more per degree.
    """
    from pe.engine.probe import DEGREES
    from pe.engine.probe import probe as probe_generator
    from pe.recipe.schema import Recipe

    result = probe_generator(
        Recipe.load(recipe, changes), label, degrees or (DEGREES if ladder else ())
    )
    out.write_bytes(result.picture())
    text = f"{result}\nPicture {out}: new samples, and below each its variations"
    click.echo(json.dumps(result.to_dict() | {"picture": str(out)}) if as_json else text)
    if not as_json:
        tell_next(["plan", recipe, *_set(changes)])


@click.command()
@click.argument("what", required=False)
@click.option("--markdown", is_flag=True, help="Everything, as one page of Markdown.")
def explain(what: str | None, markdown: bool) -> None:
    """Explain the keys of a recipe.

    WHAT is a section (evolution), a kind of source, generator or embedding (privimage), or a key
    (lookahead); without it, the sections and kinds there are.
    """
    from pe.recipe.explain import kinds, sections
    from pe.recipe.explain import page as markdown_page

    parts = [*sections(), *kinds()]
    if markdown:
        click.echo(markdown_page(parts))
    elif what is None:
        click.echo(_entry(others=parts))
        click.echo("\n`pe explain NAME` says more of each, or of a key.")
    else:
        click.echo("\n\n".join(_look_up(what, parts)))


def _look_up(what: str, parts: list[ExplainedPart]) -> list[str]:
    """Return the texts of the recipe's parts with this name.

    If there are none, return the texts of the keys with this name.
    """
    from pe.errors import RecipeError, nearest_name

    entries = []
    for part in parts:
        if what in (part.kind or part.section, part.title):
            others = [one for one in parts if one.kind and one.section == part.section]
            text = f"{part.text}\n\n{part.costs}".rstrip()
            # a section lists its kinds, and a kind stands alone
            entries.append(_entry(part.title, text, part.keys, [] if part.kind else others))
    if entries:
        return entries
    for part in parts:
        keys = [key for key in part.keys if f".{what}." in f".{part.section}.{key.name}."]
        if keys:
            entries.append(_entry(part.title, keys=keys))
    if entries:
        return entries
    names = {part.kind or part.section for part in parts}
    names |= {key.name for part in parts for key in part.keys}
    raise RecipeError(f"A recipe has no '{what}'; {nearest_name(what, sorted(names))}")


def _entry(
    title: str = "",
    text: str = "",
    keys: Sequence[Key] = (),
    others: Sequence[ExplainedPart] = (),
) -> str:
    """Return the page of a part, its keys, and a list of other parts."""
    values = {"title": title, "text": text, "keys": keys, "groups": _by_heading(others)}
    return page("explain", values)


def _by_heading(parts: Sequence[ExplainedPart]) -> dict[str, list[ExplainedPart]]:
    """Return sections and kinds by the heading they stand under.

    Generators are grouped by the source of their samples.
    """
    groups: dict[str, list[ExplainedPart]] = {}
    for part in parts:
        source = f", {part.source}" if part.source else ""
        heading = f"{part.section}.kind{source}:" if part.kind else "Sections of a recipe:"
        groups.setdefault(heading, []).append(part)
    return groups
