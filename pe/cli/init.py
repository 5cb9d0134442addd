"""`pe init`: a commented starting recipe for private images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pe.cli.asking import asking
from pe.cli.options import PATH
from pe.errors import RecipeError

if TYPE_CHECKING:
    from pe.private.look import Seen
    from pe.private.source import PrivateSource
    from pe.recipe.proposals import Pool

_NONE = "-"
_OPTIONS = "--classes, --privacy-unit, --declared-size, --declared-units (unless of records) and --public or --api"
_NUMBER = click.IntRange(min=1)


@click.command()
@click.argument("where", type=PATH)
@click.option("--classes", help="The labels, separated by commas; '' for none. They are public.")
@click.option("--privacy-unit", "unit", help="record, subfolder, or a column (docs/data.md).")
@click.option("--declared-size", type=_NUMBER, help="About how many records there are; public.")
@click.option("--declared-units", type=_NUMBER, help="About how many units there are, if not records; public.")
@click.option("--public", type=PATH, help="Public images to draw from: a folder or an .npz file.")
@click.option("--api", "kind", metavar="KIND", help="Another generator than public images: an endpoint, a local model.")
@click.option("--size", type=click.IntRange(1, 8192), help="Height and width, in pixels; default: from the images.")
@click.option("--channels", type=click.Choice(["1", "3"]), help="1 = grey, 3 = colour; default: from the images.")
@click.option("--image-column", help="Of a Parquet file; default: the one with images.")
@click.option("--label-column", help="Of a Parquet file, '' for none; default: the one that seems to be it.")
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
    image_column: str | None,
    label_column: str | None,
    out: Path,
) -> None:
    """Write a commented starting recipe for the images in WHERE.

    WHERE is a folder of images, an .npz file, or a Parquet file or a folder of them.
    """
    from pe.planning.apart import check_apart
    from pe.private.look import look
    from pe.private.source import read_source
    from pe.recipe.proposals import Pool, path_from, propose_embedding
    from pe.recipe.starter import Start, starter_of, starter_recipe

    if kind is not None:
        starter_of(kind)
        if public is not None:
            raise click.UsageError("--public belongs to a generator that draws from public images: leave --api out.")
        public = Path()
    seen = look(where, image_column, label_column)
    _check_out(out)
    _tell_columns(seen)
    answers = _ask(seen, classes, unit, declared_size, declared_units, public)
    pool = None if kind else Pool.at(answers.public)
    if pool is not None:
        check_apart(where, [pool.path])
    rough = {"size": 1, "classes": answers.classes, "privacy_unit": answers.unit}
    shape = _shape(read_source(seen.settings | rough, str(where)), size, channels)
    start = Start(
        source=seen.settings | {"path": path_from(out.parent, where)},
        classes=answers.classes,
        unit=answers.unit,
        units=seen.where,
        declared_size=answers.size,
        declared_units=answers.units,
        side=shape[0],
        channels=shape[1],
        public="" if pool is None else path_from(out.parent, pool.path),
        by_label=not pool.lacks(answers.classes) if answers.classes and pool is not None else None,
        embedding=propose_embedding(*shape),
        api=kind or "",
    )
    out.write_text(starter_recipe(start), encoding="utf-8")
    click.echo(f"Embedding: {start.embedding.kind} ({start.embedding.why}).")
    if pool is not None:
        _tell_pool(pool, answers.classes)
    first = f"pe doctor {out}, pe probe {out}, " if kind else ""
    click.echo(f"Wrote {out}. Read it, then: {first}pe plan {out}, pe run {out}")
    if pool is not None and not pool.exists:
        click.echo(f"The recipe runs once public images are at {pool.path}: nothing is there yet.")


def _shape(source: PrivateSource, size: int | None, channels: str | None) -> tuple[int, int]:
    """Side and channels: the options, and what the first images suggest for what they leave open."""
    from pe.private.look import look_at_shape

    opened = source.open()
    if size is not None and channels is not None:
        return size, int(channels)
    seen = look_at_shape(opened)
    shape = size or seen.side, int(channels or seen.channels)
    click.echo(f"The images are {seen.words}: size {shape[0]}, channels {shape[1]} (--size, --channels change that).")
    return shape


@dataclass(frozen=True)
class _Answers:
    """What the owner states: the labels, the privacy unit, the public numbers, where public images are."""

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
    """Of a Parquet file: which columns are taken."""
    columns = {key: value for key, value in seen.settings.items() if key.endswith("_column") and value}
    if columns:
        found = [f"{key.removesuffix('_column')}s in the column '{value}'" for key, value in columns.items()]
        click.echo(f"Found {' and '.join(found)} (--image-column and --label-column name others).")


def _ask(
    seen: Seen, classes: str | None, unit: str | None, size: int | None, units: int | None, public: Path | None
) -> _Answers:
    """The options, and the answers to what they leave open."""
    from pe.private.source import RECORD

    with asking(_OPTIONS):
        if classes is None:
            classes = _ask_classes(seen)
        if unit is None:
            unit = str(click.prompt(f"Privacy unit ({', '.join((RECORD, *seen.units))})", default=RECORD))
        if size is None:
            size = click.prompt("About how many records there are (public; a round number)", type=_NUMBER)
        if unit == RECORD and units is not None:
            raise click.UsageError("--declared-units belongs to a --privacy-unit other than record: leave one out.")
        if unit != RECORD and units is None:
            units = click.prompt(f"About how many units there are, by {unit} (public; a round number)", type=_NUMBER)
        if public is None:
            public = Path(click.prompt("Public images to draw from, a folder or an .npz file", default="public"))
    names = [] if classes.strip() == _NONE else [name.strip() for name in classes.split(",") if name.strip()]
    return _Answers(names, unit, size, units, public.expanduser())


def _ask_classes(seen: Seen) -> str:
    if not seen.labels:
        click.echo("No labels are found: all records are of one class (--classes names some).")
        return _NONE
    click.echo(f"The class list will be public. Confirm it, or type another (with commas; {_NONE} for none).")
    return str(click.prompt("Classes", default=",".join(seen.labels)))


def _tell_pool(pool: Pool, classes: list[str]) -> None:
    """Whether each class has public images of its own; nothing of a pool without labels."""
    lacking = pool.lacks(classes)
    if classes and not lacking:
        click.echo(f"{pool.path} has images of every class, so each class draws from its own (by_label: true).")
    elif classes and pool.labels:
        names = ", ".join(lacking)
        click.echo(f"{pool.path} has no images of {names}, so all classes draw from the whole pool (by_label: false).")
