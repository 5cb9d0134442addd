"""`pe init`: a commented starting recipe for private images, texts or rows of a table."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pe.cli.options import PATH, asking, tell_next
from pe.cli.pages import page
from pe.errors import RecipeError

if TYPE_CHECKING:
    from pe.data.columns import Column
    from pe.private.naming import Seen
    from pe.recipe.starting import ImageStart, Pool, TableStart, TextStart

_NONE = "-"
_OR_NONE = {"label_column": f"; {_NONE} for none", "text_column": "", "image_column": ""}
_KINDS = ("category", "ordinal", "boolean", "integer", "real", "date")
_LOOK = (
    "These proposals come from the records. Answer yes only if you would have known the value "
    "without them."
)


class _Whole(click.IntRange):
    """A whole number, which messages call so."""

    name = "whole number"


SIDE = _Whole(1, 8192)
CHANNELS = click.Choice(["1", "3"])
LONGEST = _Whole(1, 100_000)
_NUMBER = _Whole(min=1)


@click.command()
@click.argument("where", type=PATH)
@click.option("--classes", help="The labels, separated by commas; '' for none. They are public.")
@click.option("--privacy-unit", help="record, subfolder, or a column (docs/data.md).")
@click.option("--declared-size", type=_NUMBER, help="About how many records there are; public.")
@click.option(
    "--declared-units", type=_NUMBER, help="About how many units there are, if not records; public."
)
@click.option(
    "--public",
    type=PATH,
    help="Public samples to draw from: a folder, an .npz file, a table of texts.",
)
@click.option(
    "--api",
    "kind",
    metavar="KIND",
    help="Use an endpoint or a local model instead of a pool.",
)
@click.option("--size", type=SIDE, help="Images' height and width, in pixels.")
@click.option("--channels", type=CHANNELS, help="1 = grey, 3 = colour.")
@click.option("--longest", type=LONGEST, help="Maximum length of a text, in bytes.")
@click.option(
    "--image-column", help="Column of the images (Parquet, Arrow), or their suffix in .tar files."
)
@click.option("--text-column", help="Column of the texts.")
@click.option("--label-column", help="Column of the labels; '' for none.")
@click.option("--table", "is_table", is_flag=True, help="Each row is a record: a table of columns.")
@click.option("--columns", "declared", type=PATH, help="A file that declares a table's columns.")
@click.option(
    "--look", "is_looking", is_flag=True, help="Propose a table's columns from its cells."
)
@click.option("--out", type=PATH, default=Path("recipe.yaml"), show_default=True)
def init(
    where: Path,
    kind: str | None,
    is_table: bool,
    declared: Path | None,
    is_looking: bool,
    out: Path,
    **options: Any,
) -> None:
    """Write a commented starting recipe for the data in WHERE.

    Asks for every value that no option gives. Takes a value from the records only if you type it,
    or yes. If nobody answers, the key stays blank.

    WHERE is a folder of images or of .txt files, an .npz or .tar file, or a table (.csv, .tsv,
    .jsonl, .ndjson, .parquet, .arrow) or a folder of tables. Parquet and Arrow hold images or
    texts. With --table each row is a record. Asks about each column; reads only its name, and
    writes columns.yaml beside the recipe.
    """
    from pe.private.look import cells_in_header, look
    from pe.private.source import RECORD
    from pe.private.tables import RowTable
    from pe.recipe.starting import (
        UNDECLARED,
        Start,
        TableStart,
        TextStart,
        path_from,
        starter_of,
        starter_recipe,
    )

    if kind is not None:
        starter_of(kind)
        if options["public"] is not None:
            raise click.UsageError(
                "`--public` is for a generator that draws from a pool. Leave `--api` out."
            )
    columns = {key: options[key] for key in ("image_column", "text_column", "label_column")}
    see: Callable[..., Seen] = look
    if is_table or is_looking or declared is not None:
        columns = {"label_column": options["label_column"]}
        kind = kind or "max_entropy"
        see = partial(RowTable.find, is_looking=is_looking)
    # before anything is asked: a header that is a record would become names in the recipe
    _confirm_header(where, cells_in_header(where))
    records = see(where, **columns)
    _check_options(where, records, [key for key, value in options.items() if value is not None])
    _check_names(where, records, out)
    owner = _Owner(
        _LOOK if see is look or is_looking else "No cell is looked at, and names alone are read.",
        options,
    )
    for key in [key for key in records.settings if key.endswith("_column")]:
        records = _declare_column(owner, partial(see, where), columns, key, records)
    names = _declare_classes(owner, records)
    unit, number, units = _declare_numbers(owner, records)
    pool = _declare_pool(owner, where, records.noun) if kind is None else None
    source = records.settings | {"classes": names or [], "privacy_unit": unit or RECORD}
    start: ImageStart | TextStart | TableStart
    if records.noun == TableStart.noun:
        free = [name for name in records.units if name != unit]
        start = _rows(
            owner, where, free, records.settings["label_column"], out.parent, declared, is_looking
        )
    elif records.noun == TextStart.noun:
        start = _texts(owner, source)
    else:
        start = _images(owner, source)
    embedding = start.embedding(out.parent, pool)
    if pool is None or isinstance(start, TableStart):
        api = start.generator(kind or "", names or ())
    else:
        api = start.pool_lines(out.parent, pool, not pool.lacks(names) if names else None)
    silent = dict.fromkeys(owner.silent_on & columns.keys(), UNDECLARED)
    content = Start(
        noun=start.noun,
        source=records.settings | silent | {"path": path_from(out.parent, where)},
        classes=UNDECLARED if names is None else names,
        unit=unit or UNDECLARED,
        units=records.where,
        declared_size=number or UNDECLARED,
        declared_units=units or UNDECLARED,
        shape=start.shape,
        api=api,
        embedding="" if embedding is None else embedding.lines,
    )
    out.write_bytes(starter_recipe(content).encode())
    written = {
        "out": out,
        "noun": start.noun,
        "embedding": embedding,
        "pool": pool,
        "classes": names or [],
        "undeclared": [f"{key} ({_flag(key)})" for key in sorted(owner.silent_on)],
    }
    click.echo(page("init", written))
    to_try = [["doctor", out], *([] if isinstance(start, TableStart) else [["probe", out]])]
    tell_next(*(to_try if pool is None else []), ["plan", out])


def _declare_pool(owner: _Owner, where: Path, noun: str) -> Pool:
    """Return the public samples to draw from, which must not be among the private ones."""
    from pe.planning.checks import check_apart
    from pe.recipe.starting import ImageStart, TextStart

    begin = TextStart if noun == TextStart.noun else ImageStart
    path = owner.declares("public", f"Public {begin.noun} to draw from, {begin.pools}", "public")
    # where nobody answers, the usual place is named, which tells nothing of the records
    owner.silent_on.discard("public")
    pool = begin.pool(Path(path or "public").expanduser())
    check_apart(where, [pool.path], begin.noun)
    return pool


def _flag(key: str) -> str:
    """Return the option that declares a key of the recipe."""
    return f"--{key.replace('_', '-')}"


def _confirm_header(where: Path, count: int) -> None:
    """Ask whether a table's first row is its header, if `count` of its cells look like values.

    Tell no cell.
    """
    if not count:
        return
    question = (
        f"In the first row of {where}, {count} of the cells look like values, not like names. Is "
        "it the header?"
    )
    if not _ask(partial(click.confirm, question)):
        raise RecipeError(
            f"{question} If it is a record, write a row of column names above it. If not, type yes."
        )


def _ask(prompt: Callable[[], Any]) -> Any:
    """Return the answer to a prompt, or None if nobody is there to type."""
    try:
        return prompt()
    except click.Abort:
        # at a terminal, somebody pressed Ctrl-C
        if sys.stdin.isatty():
            raise
        return None


def _check_options(where: Path, records: Seen, keys: Sequence[str]) -> None:
    """Refuse options that are of other records than these."""
    from pe.recipe.starting import ImageStart, TextStart

    of_one_kind = {
        "size": [ImageStart.noun],
        "channels": [ImageStart.noun],
        "image_column": [ImageStart.noun],
        "longest": [TextStart.noun],
        "text_column": [TextStart.noun],
        "public": [ImageStart.noun, TextStart.noun],
    }
    for key in keys:
        if records.noun not in of_one_kind.get(key, [records.noun]):
            raise click.UsageError(
                f"`{_flag(key)}` does not apply to {records.noun}, which {where} holds. Leave it "
                "out."
            )


def _check_names(where: Path, records: Seen, out: Path) -> None:
    """Refuse a recipe that is there already or has no folder, and names that no recipe can hold."""
    if out.exists():
        raise RecipeError(f"{out} exists already. Name another `--out`, or remove it.")
    if not out.parent.is_dir():
        raise RecipeError(f"`--out {out}`: there is no folder {out.parent}. Make it first.")
    for name in (str(where), *records.labels):
        try:
            name.encode()
        except UnicodeEncodeError:
            raise RecipeError(
                f"The name {name} is not UTF-8, so no recipe can hold it. Rename it."
            ) from None


@dataclass
class _Owner:
    """The owner of the records, asked to declare values.

    Otherwise these values would be computed from the records.
    """

    warning: str  # printed before the first question
    options: dict[str, Any]  # key → what an option of the command declares; None: it was not given
    silent_on: set[str] = field(default_factory=set)  # keys that nobody was there to declare
    _has_warned: bool = False

    def declares(
        self, key: str, question: str, proposal: object, kind: click.ParamType[Any] = click.STRING
    ) -> Any:
        """Return what an option declares, or the owner's answer.

        The answer is the proposal after a typed `yes`. It is None if nobody is there to type.

        Args:
            key: the recipe's key that the answer is for.
            question: the question to print.
            proposal: what the records suggest; None: nothing.
            kind: the type of what may be typed.
        """
        if self.options.get(key) is not None:
            return self.options[key]
        if not self._has_warned:
            click.echo(self.warning)
            self._has_warned = True
        hint = (
            "no proposal"
            if proposal is None
            else f"proposed: {proposal}; type yes or another value"
        )

        def read(text: str) -> Any:
            if text.strip() == "yes" and proposal is None:
                raise click.UsageError("there is no proposal: type what you declare")
            return proposal if text.strip() == "yes" else kind.convert(text, None, None)

        answer = _ask(partial(click.prompt, f"{question} ({hint})", value_proc=read))
        if answer is None:
            click.echo()
            self.silent_on.add(key)
        return answer


def _declare_column(
    owner: _Owner, see: Callable[..., Seen], columns: dict[str, str | None], key: str, records: Seen
) -> Seen:
    """Ask the owner for the column `key` if no option names it.

    Return the records as seen with that column.
    """
    if columns[key] is None:
        name = owner.declares(
            key, f"Column of {key.partition('_')[0]}s{_OR_NONE[key]}", records.settings[key]
        )
        if name is not None:
            columns[key] = "" if name == _NONE else name
            return see(**columns)
    return records


def _images(owner: _Owner, source: dict[str, Any]) -> ImageStart:
    """Return the beginning of a recipe over images: side and channels.

    They come from the options or from the owner.
    """
    from pe.private.look import LOOKED_AT, look_at_shape
    from pe.private.source import read_source
    from pe.recipe.starting import UNDECLARED, ImageStart

    dataset = read_source(source | {"size": 1}, str(source["path"])).open()
    side = None
    shape = None
    if owner.options["size"] is None or owner.options["channels"] is None:
        side, shape = look_at_shape(dataset)
    of = f", from looking at {LOOKED_AT} images at most"
    size = owner.declares("size", f"Height and width in pixels{of}", side, SIDE)
    channels = owner.declares("channels", f"Channels, 3 = colour, 1 = grey{of}", shape, CHANNELS)
    return ImageStart(size or UNDECLARED, int(channels) if channels else UNDECLARED)


def _texts(owner: _Owner, source: dict[str, Any]) -> TextStart:
    """Return the beginning of a recipe over texts: the most bytes of a text.

    The number comes from the option or from the owner.
    """
    from pe.private.look import LOOKED_AT, look_at_length
    from pe.private.source import read_source
    from pe.recipe.starting import UNDECLARED, TextStart

    dataset = read_source(source | {"longest": 100_000, "cut": True}, str(source["path"])).open()
    proposal = look_at_length(dataset) if owner.options["longest"] is None else None
    question = f"Bytes of a text at most, twice the median of {LOOKED_AT} texts at most"
    return TextStart(owner.declares("longest", question, proposal, LONGEST) or UNDECLARED)


def _rows(
    owner: _Owner,
    where: Path,
    names: Sequence[str],
    label: str | None,
    folder: Path,
    declared: Path | None,
    is_looking: bool,
) -> TableStart:
    """Return the beginning of a recipe over rows.

    Its columns come from the file `declared`, or from the owner in a new file.
    """
    from pe.errors import nearest_name
    from pe.private.source import read_source
    from pe.private.tables import RowTable
    from pe.recipe.reading import read_yaml
    from pe.recipe.starting import TableStart, columns_file, path_from

    columns: dict[str, Column | None]
    if declared is not None:
        columns = read_yaml(declared)
        read_source({"kind": RowTable.kind, "path": where, "columns": columns}, str(declared))
        for name in columns:
            if name == label or name not in names:
                raise RecipeError(
                    f"{declared}: '{name}' is the column of labels, or not a column; "
                    f"{nearest_name(name, names)}"
                )
        return TableStart(path_from(folder, declared))
    path = folder / "columns.yaml"
    if path.exists():
        raise RecipeError(f"{path} exists already. Give `--columns {path}`, or remove it.")
    proposals = RowTable.propose(where, names) if is_looking else {}
    columns = dict.fromkeys(names)
    for name in names:
        kind = owner.declares(
            "columns", f"Kind of '{name}'", proposals.get(name), click.Choice([*_KINDS, _NONE])
        )
        if kind is None:
            break
        if kind == _NONE:
            del columns[name]
        else:
            columns[name] = _declaration(kind) if isinstance(kind, str) else kind
    # written beside the recipe, so that its owner can read and mend what was declared
    path.write_text(columns_file(columns, is_looking), encoding="utf-8")
    return TableStart(path.name)


def _declaration(kind: str) -> Column:
    """Return the declaration of a column of this kind, by the owner's answers."""
    from pydantic import ValidationError

    from pe.data.columns import Column

    one: dict[str, Any] = {"kind": kind}
    # each kind is asked only for what it has
    with asking("`--columns`, a file of all columns"):
        if kind in ("category", "ordinal"):
            texts = [text.strip() for text in click.prompt("  Values, with commas").split(",")]
            one["values"] = [
                int(text) if re.fullmatch(r"-?(0|[1-9]\d*)", text) else text for text in texts
            ]
        if kind == "category":
            one["other"] = click.confirm(
                "  Is a value that is not among them 'other'? If not, it is a bad cell"
            )
        if kind in ("integer", "real", "date"):
            number: Any = {"integer": int, "real": float, "date": str}[kind]
            one |= {end: click.prompt(f"  {end}", type=number) for end in ("min", "max")}
            usual = None if kind == "real" else 1.0
            one["unit"] = click.prompt("  Unit: rounded to multiples of", type=float, default=usual)
        one["missing"] = click.confirm(
            "  May it be missing? If not, a row without it is a bad record"
        )
    try:
        return Column.model_validate(one)
    except ValidationError as error:
        click.echo(f"  Again, since {error.errors()[0]['msg'].removeprefix('Value error, ')}.")
        return _declaration(kind)


def _declare_classes(owner: _Owner, records: Seen) -> list[str] | None:
    """Return the classes, by the option or the owner, or None if nobody declares them."""
    has_labels = records.settings.get("label_column", _NONE) not in ("", None)
    classes: str | None = _NONE
    if has_labels or "label_column" in owner.silent_on or owner.options["classes"] is not None:
        proposal = ",".join(records.labels) or None
        classes = owner.declares("classes", f"Classes, with commas; {_NONE} for none", proposal)
    if classes is None:
        return None
    return [name.strip() for name in classes.split(",") if name.strip() not in ("", _NONE)]


def _declare_numbers(owner: _Owner, records: Seen) -> tuple[str | None, int | None, int | None]:
    """Return the privacy unit and the numbers of records and of units.

    Returns None for what nobody has declared.
    """
    from pe.private.source import RECORD

    choice = click.Choice([RECORD, *records.units])
    unit = owner.options["privacy_unit"] or RECORD
    if records.units:
        who = f"Privacy unit, who is protected as one: {', '.join(choice.choices)}"
        unit = owner.declares("privacy_unit", who, None, choice)
    size = owner.declares(
        "declared_size", "About how many records there are, a round number", None, _NUMBER
    )
    units = owner.options["declared_units"]
    if unit == RECORD and units is not None:
        raise click.UsageError(
            "`--declared-units` needs a `--privacy-unit` other than record. Leave one of them out."
        )
    if unit not in (RECORD, None):
        units = owner.declares(
            "declared_units", f"About how many units there are, by {unit}", None, _NUMBER
        )
    return unit, size, units
