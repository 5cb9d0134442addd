"""`pe init`: a commented starting recipe for private images or texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pe.cli.asking import asking
from pe.cli.options import PATH
from pe.errors import RecipeError

if TYPE_CHECKING:
    from pe.private.look import Seen
    from pe.recipe.pools import Pool
    from pe.recipe.starts import ImageStart, TextStart

_NONE = "-"
_OPTIONS = "--classes, --privacy-unit, --declared-size, --declared-units (unless of records) and --public or --api"
_NUMBER = click.IntRange(min=1)


@click.command()
@click.argument("where", type=PATH)
@click.option("--classes", help="The labels, separated by commas; '' for none. They are public.")
@click.option("--privacy-unit", "unit", help="record, subfolder, or a column (docs/data.md).")
@click.option("--declared-size", type=_NUMBER, help="About how many records there are; public.")
@click.option("--declared-units", type=_NUMBER, help="About how many units there are, if not records; public.")
@click.option("--public", type=PATH, help="Public samples to draw from: a folder, an .npz file, a table of texts.")
@click.option("--api", "kind", metavar="KIND", help="Another generator than a pool: an endpoint, a local model.")
@click.option("--size", type=click.IntRange(1, 8192), help="Images' height and width, in pixels; default: from them.")
@click.option("--channels", type=click.Choice(["1", "3"]), help="1 = grey, 3 = colour; default: from the images.")
@click.option("--longest", type=click.IntRange(1, 100_000), help="Bytes of a text; default: from the texts.")
@click.option(
    "--image-column", help="Of a Parquet or Arrow file, or the suffix in .tar files; default: the one with images."
)
@click.option("--text-column", help="Of a table of texts; default: `text`, or the one with the most text.")
@click.option("--label-column", help="Of a table, '' for none; default: the one that seems to be it.")
@click.option("--out", type=PATH, default=Path("recipe.yaml"), show_default=True)
def init(
    where: Path,
    classes: str | None,
    unit: str | None,
    declared_size: int | None,
    declared_units: int | None,
    public: Path | None,
    kind: str | None,
    size: int | None,
    channels: str | None,
    longest: int | None,
    image_column: str | None,
    text_column: str | None,
    label_column: str | None,
    out: Path,
) -> None:
    """Write a commented starting recipe for images or texts in WHERE.

    WHERE is a folder of images or of .txt files, an .npz or .tar file, or a table (.csv, .tsv, .jsonl, .ndjson,
    .parquet, .arrow) or a folder of tables. Parquet and Arrow hold images or texts.
    """
    from pe.planning.apart import check_apart
    from pe.private.look import look
    from pe.recipe.pools import path_from
    from pe.recipe.starter import Start, starter_of, starter_recipe
    from pe.recipe.starts import ImageStart, TextStart

    if kind is not None:
        starter_of(kind)
        if public is not None:
            raise click.UsageError("--public belongs to a generator that draws from a pool: leave --api out.")
        public = Path()
    seen = look(where, image_column, text_column, label_column)
    images = {"--size": size, "--channels": channels, "--image-column": image_column}
    _check_options(seen, images if seen.texts else {"--longest": longest, "--text-column": text_column})
    _check_out(out)
    _tell_columns(seen)
    begin = TextStart if seen.texts else ImageStart
    answers = _ask(seen, classes, unit, declared_size, declared_units, public, begin)
    pool = None if kind else begin.pool(answers.public)
    if pool is not None:
        check_apart(where, [pool.path], begin.noun)
    declared = seen.settings | {"classes": answers.classes, "privacy_unit": answers.unit}
    found = _texts(declared, longest) if seen.texts else _images(declared, size, channels)
    by_label = not pool.lacks(answers.classes) if answers.classes and pool is not None else None
    embedding = found.embedding(out.parent, pool)
    start = Start(
        noun=found.noun,
        source=seen.settings | {"path": path_from(out.parent, where)},
        classes=answers.classes,
        unit=answers.unit,
        units=seen.where,
        declared_size=answers.size,
        declared_units=answers.units,
        shape=found.shape,
        api=found.generator(kind or "", answers.classes) if pool is None else found.drawn(out.parent, pool, by_label),
        embedding=embedding.lines,
    )
    out.write_text(starter_recipe(start), encoding="utf-8")
    click.echo(f"Embedding: {embedding.kind} ({embedding.why}).")
    _tell(out, found.noun, pool, answers.classes)


def _images(source: dict[str, Any], size: int | None, channels: str | None) -> ImageStart:
    """Side and channels: the options, and what the first images suggest for what they leave open."""
    from pe.private.look import look_at_shape
    from pe.private.source import read_source
    from pe.recipe.starts import ImageStart

    opened = read_source(source | {"size": 1}, str(source["path"])).open()
    if size is not None and channels is not None:
        return ImageStart(size, int(channels))
    seen = look_at_shape(opened)
    start = ImageStart(size or seen.side, int(channels or seen.channels))
    click.echo(
        f"The images are {seen.words}: size {start.side}, channels {start.channels} (--size, --channels change that)."
    )
    return start


def _texts(source: dict[str, Any], longest: int | None) -> TextStart:
    """The longest text's bytes: the option, or what the first texts suggest."""
    from pe.private.look import look_at_lengths
    from pe.private.source import read_source
    from pe.recipe.starts import TextStart

    opened = read_source(source | {"longest": 100_000, "cut": True}, str(source["path"])).open()
    if longest is not None:
        return TextStart(longest)
    seen = look_at_lengths(opened)
    click.echo(
        f"The longest of the first texts has {seen.most:,} bytes: longest {seen.longest} (--longest changes that)."
    )
    return TextStart(seen.longest)


@dataclass(frozen=True)
class _Answers:
    """What the owner states: the labels, the privacy unit, the public numbers, where public samples are."""

    classes: list[str]
    unit: str
    size: int
    units: int | None
    public: Path


def _check_out(out: Path) -> None:
    if out.exists():
        raise RecipeError(f"{out} exists already: name another --out, or remove it.")
    if not out.parent.is_dir():
        raise RecipeError(f"--out {out}: there is no folder {out.parent}; make it first.")


def _tell_columns(seen: Seen) -> None:
    """Of a table: which columns are taken."""
    columns = {key: value for key, value in seen.settings.items() if key.endswith("_column")}
    found = [f"{key.removesuffix('_column')}s in the column '{value}'" for key, value in columns.items() if value]
    if found:
        options = " and ".join(f"--{key.replace('_', '-')}" for key in columns)
        click.echo(f"Found {' and '.join(found)} ({options} name others).")


def _ask(
    seen: Seen,
    classes: str | None,
    unit: str | None,
    size: int | None,
    units: int | None,
    public: Path | None,
    begin: type[ImageStart | TextStart],
) -> _Answers:
    """The options, and the answers to what they leave open."""
    from pe.private.source import RECORD

    with asking(_OPTIONS):
        if classes is None:
            classes = _ask_classes(seen)
        if unit is None:
            unit = str(click.prompt(f"Privacy unit ({', '.join((RECORD, *seen.units))})", default=RECORD))
        if size is None:
            size = click.prompt("About how many records there are (needed, and public; a round number)", type=_NUMBER)
        if unit == RECORD and units is not None:
            raise click.UsageError("--declared-units belongs to a --privacy-unit other than record: leave one out.")
        if unit != RECORD and units is None:
            units = click.prompt(f"About how many units there are, by {unit} (needed, public)", type=_NUMBER)
        if public is None:
            public = Path(click.prompt(f"Public {begin.noun} to draw from, {begin.pools}", default="public"))
    names = [] if classes.strip() == _NONE else [name.strip() for name in classes.split(",") if name.strip()]
    return _Answers(names, unit, size, units, public.expanduser())


def _ask_classes(seen: Seen) -> str:
    if not seen.labels:
        named = (
            f"--label-column names their column, such as {seen.units[0]}" if _is_table(seen) else "--classes names some"
        )
        click.echo(f"No labels are found: all records are of one class ({named}).")
        return _NONE
    click.echo(f"The class list will be public. Confirm it, or type another (with commas; {_NONE} for none).")
    return str(click.prompt("Classes", default=",".join(seen.labels)))


def _is_table(seen: Seen) -> bool:
    """Whether one of its columns may be that of labels."""
    return "label_column" in seen.settings and bool(seen.units)


def _check_options(seen: Seen, others: Mapping[str, object]) -> None:
    """Refuse options of other samples than are there."""
    for option, value in others.items():
        if value is not None:
            noun = "texts" if seen.texts else "images"
            raise click.UsageError(f"{option} is not of {noun}, which {seen.settings['path']} holds: leave it out.")


def _tell(out: Path, noun: str, pool: Pool | None, classes: list[str]) -> None:
    """What comes next; of a pool with labels, whether each class has samples of its own in it."""
    lacking = pool.lacks(classes) if pool is not None else []
    if pool is not None and classes and not lacking:
        click.echo(f"{pool.path} has {noun} of every class, so each class draws from its own (by_label: true).")
    elif pool is not None and classes and pool.labels:
        names = ", ".join(lacking)
        click.echo(f"{pool.path} has no {noun} of {names}, so all classes draw from the whole pool (by_label: false).")
    first = f"pe doctor {out}, pe probe {out}, " if pool is None else ""
    click.echo(f"Wrote {out}. Read it, then: {first}pe plan {out}, pe run {out}")
    if pool is not None and not pool.exists:
        click.echo(f"The recipe runs once public {noun} are at {pool.path}: nothing is there yet.")
