"""Private records in memory: arrays, tables and data sets of libraries.

None of these libraries is imported here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import mode
from typing import Annotated, Any, Literal

import numpy as np
from PIL import Image
from pydantic import Field, InstanceOf

from pe.data.arrays import UInt8Array
from pe.data.cells import UNREADABLE, python_scalar
from pe.data.tables import arrow_cells, feature_names, name_numbers
from pe.errors import BadImage, PrivateDataError, RecipeError, nearest_name
from pe.plugins.registry import load
from pe.plugins.settings import fields_of
from pe.private.dataset import Outcome, PrivateDataset, Reread, outcome_of
from pe.private.look import look
from pe.private.modalities import ImageSource, RowSource, TextSource
from pe.private.naming import like_labels, list_names
from pe.private.source import RECORD, PrivateSource, read_source, source
from pe.private.tables import RowTable

Values = Callable[[], Iterable[Any]]
"""A function that iterates over the values of a column anew."""
_Table = tuple[int, Mapping[str, Values], Mapping[str, Sequence[str]]]
"""The number of records, their columns, and the names of classes in the columns' types."""
IMAGE = "image"
TEXT = "text"
LABEL = "label"
SAMPLE = "sample"
COLUMNS = "columns"
_LOOKED_AT = 32  # records whose form is looked at
_TOGETHER = 1000  # rows of a table of pyarrow
_USUAL = {IMAGE: IMAGE, "images": IMAGE, TEXT: TEXT, "texts": TEXT}


@dataclass(frozen=True, eq=False, repr=False)
class Records:
    """Records in memory. Confidential."""

    count: int
    samples: Values
    labels: Values | None
    units: Values | None


@source
class MemorySource(PrivateSource):
    """Records in memory.

    Recipes do not hold them. To go on with a run, call `pe.evolve` with them and `resume`.
    """

    _: KW_ONLY
    ledger_file: Path = Field(
        description="a file, in any place, that all runs over these records in memory share"
    )
    records: Annotated[InstanceOf[Records] | None, Field(exclude=True)] = field(
        default=None,
        repr=False,
    )

    def open(self) -> PrivateDataset:
        """List the records. Raise as `PrivateSource.open`.

        Samples are read later, by `check` and `blocks`.
        """
        one = self.records
        if one is None:
            raise PrivateDataError(
                "The private records were in memory, and no file holds them: to go on with a run, "
                "call pe.evolve with them and the same settings again, the run's directory as out, "
                "and resume=True."
            )
        nothing = [None] * one.count
        labels = nothing if one.labels is None else one.labels()
        units = nothing if one.units is None else map(python_scalar, one.units())
        return self.bind(
            Reread(self._outcomes, one.samples),
            zip(labels, units, strict=True),
            _name,
            is_labelled=one.labels is not None,
            has_units=one.units is not None,
        )

    def _outcomes(self, samples: Values) -> Iterator[Outcome]:
        return (outcome_of(self.read, value, _name(i)) for i, value in enumerate(samples()))


@source
class ImagesInMemory(MemorySource, ImageSource):
    """Images in memory: only Python hands them over, `pe.evolve(images, …)`."""

    _: KW_ONLY
    kind: Literal["images_in_memory"] = "images_in_memory"

    def read(self, value: Any, name: str) -> UInt8Array:
        """Return an image of any form that `_plain` takes. Floating-point pixels lie in [0, 1]."""
        value = _plain(value)
        if value is None:
            raise BadImage(f"{name} is missing.")
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            if not (value.min(initial=0) >= 0 and value.max(initial=0) <= 1):
                raise BadImage(
                    f"{name} has values outside 0…1: scale floating-point pixels to 0…1."
                )
            value = np.rint(value * 255).astype(np.uint8)
        return super().read(value, name)


@source
class TextsInMemory(MemorySource, TextSource):
    """Texts in memory: only Python hands them over, `pe.evolve(texts, …)`."""

    _: KW_ONLY
    kind: Literal["texts_in_memory"] = "texts_in_memory"


@source
class TableInMemory(MemorySource, RowSource):
    """Rows in memory: only Python hands them over, `pe.evolve(rows, …, columns={…})`."""

    _: KW_ONLY
    kind: Literal["table_in_memory"] = "table_in_memory"


def _name(index: int) -> str:
    return f"Record {index + 1:,}"


def _plain(value: Any) -> Any:
    """Return an image as encoded bytes, a path, an image of Pillow or an array h×w(×c), or None.

    A mapping holds `bytes` or a `path`, as Hugging Face's images do. A tensor of torch is c×h×w.
    """
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    if value is None or isinstance(value, bytes | Path | Image.Image):
        return value
    if isinstance(value, str):
        return Path(value)
    if not hasattr(value, "detach"):
        return np.asarray(value)
    array = value.detach().cpu().numpy()
    return np.moveaxis(array, 0, -1) if array.ndim == 3 else array


# What pe.evolve is given, as a source.

_KINDS = {IMAGE: ImagesInMemory.kind, TEXT: TextsInMemory.kind, "": TableInMemory.kind}


def source_of(
    value: Any,
    settings: Mapping[str, Any],
    where: str,
    others: Collection[str],
) -> PrivateSource:
    """Return the source for the records at a path, or in an object (docs/data.md).

    `settings` are keys of the source. `image` or `text`, and `label`, name columns; with `columns`
    the records are rows of a table. Messages begin with `where`. `others` are names of settings
    that one may have meant besides.

    Raises:
        RecipeError: the settings do not fit, or it is not clear which records are meant.
    """
    arguments = {key: settings[key] for key in (IMAGE, TEXT, LABEL) if key in settings}
    own = {key: setting for key, setting in settings.items() if key not in arguments}
    for key in (IMAGE, TEXT):
        if COLUMNS in own and key in arguments:
            raise RecipeError(
                f"{where}: `{key}` cannot be used with `columns`, because the records are then "
                "rows of a table. Remove one of them."
            )
    read = _at_path if isinstance(value, str | Path) else _in_memory
    own = read(value, arguments, own, where) | own
    keys = fields_of(load("pe.sources", own["kind"]))
    for key in own.keys() - keys:
        raise RecipeError(
            f"{where}: unknown setting '{key}'; {nearest_name(key, [*others, *keys])}"
        )
    return read_source(own, where)


def _at_path(
    path: str | Path,
    arguments: Mapping[str, str],
    own: Mapping[str, Any],
    where: str,
) -> dict[str, Any]:
    if COLUMNS in own:
        settings: dict[str, Any] = {"kind": RowTable.kind, "path": path}
    else:
        settings = look(Path(path), arguments.get(IMAGE), arguments.get(TEXT), "").settings
        if own.get("classes") and "label_column" in settings:
            settings["label_column"] = LABEL
    return settings | {f"{key}_column": name for key, name in arguments.items()}


def _in_memory(
    value: Any,
    arguments: Mapping[str, str],
    own: Mapping[str, Any],
    where: str,
) -> dict[str, Any]:
    """Return the kind and the records, and the size and channels of one array of all images.

    Only names of columns and the shape of an array go into what is returned, which is public. Names
    of labels in a type may have been computed from the records, as values may.
    """
    unit = own.get("privacy_unit", RECORD)
    classes = own.get("classes")
    named = {*arguments.values(), *own.get(COLUMNS, ()), unit}
    count, columns, type_names = _columns(value, where, named)
    declared = list(own.get(COLUMNS, ()))
    wanted = [*arguments.items(), ("privacy_unit", unit), *((COLUMNS, name) for name in declared)]
    for key, name in wanted:
        if name not in columns and (key, name) != ("privacy_unit", RECORD):
            raise RecipeError(
                f"{where}: `{key}` names '{name}', but the records have {list_names([*columns])}."
            )
    if arguments.get(LABEL) in declared:
        raise RecipeError(
            f"{where}: `label` is '{arguments[LABEL]}', which is also among `columns`. Remove it "
            "there."
        )
    free = {name: read for name, read in columns.items() if name not in (*declared, unit)}
    # A table's columns that are not declared are left out, a column `label` too.
    usual = [name for name in (LABEL, "labels") if name in free and (classes or not declared)]
    label = arguments.get(LABEL) or (usual[0] if len(usual) == 1 else None)
    free.pop(label or "", None)
    sample, modality = ("", "") if declared else _sample(free, arguments, where)
    rest = [name for name in free if name != sample]
    looks_labelled = bool(usual or like_labels(rest) or any(type_names.get(name) for name in rest))
    if (
        label is None
        and rest
        and not declared
        and (len(classes or ()) > 1 or (classes is None and looks_labelled))
    ):
        raise RecipeError(
            f"{where}: the records have {list_names(rest)}, but no 'label': name the column of "
            "labels by label=…, or give classes=[] if there is none."
        )
    names = type_names.get(label or "", ())
    if not names and not any(str(name).isdecimal() for name in classes or ()):
        names = classes or ()
    labels = None if label is None else partial(_named, columns[label], tuple(names))
    parts = [partial(_named, columns[name], type_names.get(name, ())) for name in declared]
    samples = (
        (lambda: zip(*(read() for read in parts), strict=True)) if declared else columns[sample]
    )
    records = Records(count, samples, labels, None if unit == RECORD else columns[unit])
    shape = _type_shape(columns[sample], own, where) if modality == IMAGE else {}
    return {"kind": _KINDS[modality], "records": records} | shape


def _type_shape(read: Values, own: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return size and channels of images in one array n×h×w(×c), as settings.

    For other images, `own` must have them.
    """
    array: Any = read.args[0] if isinstance(read, partial) else None
    shape = tuple(array.shape) if getattr(array, "ndim", 0) in (3, 4) else None
    if shape is None and "size" not in own:
        raise RecipeError(
            f"{where}: size is missing: state the images' height and width in pixels, size=64 "
            "(say)."
        )
    if shape is None:
        return {}
    is_tensor = hasattr(array, "detach") and len(shape) == 4
    height, width, *channels = (*shape[2:], shape[1]) if is_tensor else shape[1:]
    return {"channels": 1 if channels in ([], [1]) else 3} | (
        {} if own.get("resize") else {"size": (height, width)}
    )


def _sample(
    columns: Mapping[str, Values],
    arguments: Mapping[str, str],
    where: str,
) -> tuple[str, str]:
    """Return the name of the column of samples, and whether it holds images or texts.

    The column is found by its name, or else by the type of its values.
    """
    candidates = {name: modality for modality, name in arguments.items() if modality != LABEL}
    candidates = candidates or {name: _USUAL[name] for name in columns if name in _USUAL}
    if not candidates:
        # The type of most of the first values, so that no single one decides.
        types = {
            name: mode([*map(_modality, islice(read(), _LOOKED_AT))] or [""])
            for name, read in columns.items()
        }
        images = {name: IMAGE for name in types if types[name] == IMAGE}
        candidates = images or {name: TEXT for name in types if types[name] == TEXT}
    if len(candidates) != 1:
        none = "" if candidates else ", none of them of images or texts"
        several = list_names([*candidates] or [*columns]) + none
        raise RecipeError(
            f"{where}: the records have {several}: name the one of samples by image=… or text=…; "
            "if they are rows of a table, declare its columns by columns={'age': {'kind': "
            "'integer', 'min': 0, 'max': 120}, …} (docs/tables.md)."
        )
    return next(iter(candidates.items()))


def _modality(value: Any) -> str:
    """Return whether a value is an image or a text, by its type, or '' if it is neither."""
    is_file = isinstance(value, bytes | Path | Image.Image) or (
        isinstance(value, Mapping) and "bytes" in value
    )
    if isinstance(value, str):
        return TEXT
    return IMAGE if is_file or getattr(value, "ndim", 0) in (2, 3) else ""


def _named(read: Values, names: Sequence[str]) -> Iterator[Any]:
    return name_numbers(map(python_scalar, read()), names)


def _columns(value: Any, where: str, named: Collection[object]) -> _Table:
    """Return the number of records, their columns, and names of classes in a column's type.

    Where each record is a mapping, a key is a column if most of the first ones have it, or if the
    owner has `named` it.
    """
    if isinstance(value, Mapping) and any(hasattr(one, "cast_column") for one in value.values()):
        raise RecipeError(f"{where}: private has the splits {', '.join(value)}: give one of them.")
    if hasattr(value, "cast_column") and hasattr(value, "__len__"):  # a Dataset of Hugging Face
        for name, feature in value.features.items():
            if type(feature).__name__ == "Image":  # stays encoded: our rules decode it
                value = value.cast_column(name, type(feature)(decode=False))
        value = value.with_format("arrow")
        return _of_arrow(
            len(value),
            value.features.arrow_schema,
            lambda name: value.select_columns([name]).iter(_TOGETHER),
        )
    if hasattr(value, "to_batches") and hasattr(value, "schema"):  # a table of pyarrow
        return _of_arrow(
            len(value),
            value.schema,
            lambda name: value.select([name]).to_batches(_TOGETHER),
        )
    if isinstance(value, tuple) and len(value) == 2:
        value = dict(zip((SAMPLE, LABEL), value, strict=True))
    if isinstance(value, Mapping) or hasattr(value, "columns"):  # arrays by name, or a data frame
        names = list(value if isinstance(value, Mapping) else value.columns)
        for name in names:
            if names.count(name) > 1:
                raise RecipeError(
                    f"{where}: private has two columns named '{name}': rename or drop one of them."
                )
        counts = {len(value[name]) for name in names}
        if len(counts) != 1:
            raise RecipeError(
                f"{where}: private has {list_names(names)}, which differ in length, or are none."
            )
        return counts.pop(), {str(name): partial(_in_order, value[name]) for name in names}, {}
    if (
        isinstance(value, bytes)
        or not hasattr(value, "__len__")
        or not hasattr(value, "__getitem__")
    ):
        raise RecipeError(
            f"{where}: private is an object of the class {type(value).__name__}: give a path, "
            "arrays, a table or a data set that has a length (docs/data.md), or a source such as "
            "pe.ImageFolder(…)."
        )
    read: Values = partial(_in_order, value)
    rows = list(islice(read(), _LOOKED_AT))  # so that no single one decides what the columns are
    mappings = [row for row in rows if isinstance(row, Mapping)]
    pairs = [row for row in rows if isinstance(row, tuple | list) and len(row) == 2]
    keys: dict[str, Any] = {}
    if 2 * len(mappings) > len(rows):
        occurrences = Counter(key for row in mappings for key in row)
        keys = {
            str(key): key
            for key, count in occurrences.items()
            if 2 * count > len(rows) or key in named
        }
    elif 2 * len(pairs) > len(rows):
        keys = {SAMPLE: 0, LABEL: 1}
    return (
        len(value),
        {name: partial(_parts, read, key) for name, key in keys.items()} or {SAMPLE: read},
        {},
    )


def _of_arrow(
    count: int,
    schema: Any,
    read: Callable[[str], Iterable[Any]],
) -> _Table:
    """Return what `_columns` returns, for columns whose batches `read` reads, by name."""
    columns = {name: partial(_cells, read, name) for name in schema.names}
    return count, columns, {name: feature_names(schema.metadata, name) for name in columns}


def _in_order(values: Any) -> Iterator[Any]:
    return (
        iter(values)
        if hasattr(values, "__iter__")
        else (_item(values, index) for index in range(len(values)))
    )


def _item(values: Any, index: int) -> Any:
    try:
        return values[index]
    except Exception:  # this one cannot be read
        return UNREADABLE


def _parts(rows: Values, key: Any) -> Iterator[Any]:
    for row in rows():
        try:
            yield row.get(key) if isinstance(row, Mapping) else row[key]
        except Exception:  # this row is of another form than the others
            yield UNREADABLE


def _cells(read: Callable[[str], Iterable[Any]], name: str) -> Iterator[Any]:
    """Yield the values of a column of pyarrow, from batches that have no other."""
    return (cell for batch in read(name) for cell in arrow_cells(batch.column(0)))
