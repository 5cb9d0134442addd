"""Many images in one body: npz files of plain arrays, the same between client and ingress, ingress and replica.

An npz file is a zip archive of .npy members. Ours are stored, never compressed, so nothing can grow on being read,
and hold numbers and text alone, never objects, so nothing is run. docs/server.md lists the members.
"""

from __future__ import annotations

import io
import math
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pe.plugins.protocols import Failed, Refused, Seeds

NPZ = "application/x-npz"
"""The content type."""

Array = npt.NDArray[Any]
Pixels = npt.NDArray[np.uint8]

# Of a .npy member. numpy's own reader has Python parse it, which fails now and then in threads (python/cpython#106905).
_HEAD = re.compile(
    rb"\x93NUMPY(?:\x01\x00..|[\x02\x03]\x00....)"
    rb"\{ ?'descr': ?'([<|][a-zA-Z]\d{1,9})', ?'fortran_order': ?(True|False), ?"
    rb"'shape': ?\(((?:\d{1,18}, ?)*(?:\d{1,18})?)\),? ?\} *\n",
    re.DOTALL,
)
_WANTED = {  # member → (dtype's kind and size, dimensions)
    "seeds": ("u8", 1),
    "degree": ("f8", 0),
    "steps": ("i8", 0),
    "guidance": ("f8", 0),
    "size": ("i8", 1),
    "images": ("u1", 4),
    "classes": ("i8", 1),
    "prompts": ("U", 1),
    "negative_prompts": ("U", 1),
    "model": ("U", 0),
    "vary": ("U", 0),
}
_COLUMNS = ("images", "classes", "prompts", "negative_prompts")
"""What has a row for each seed."""
_MADE = {
    "images": ("u1", 4),
    "places": ("i8", 1),
    "missing": ("i8", 1),
    "reasons": ("U", 1),
    "refused": ("b1", 1),
    "retryable": ("b1", 1),
}


class FormatError(ValueError):
    """A body is not what it should be; the message says what is wrong, in one sentence."""


@dataclass(frozen=True, eq=False)
class Wanted:
    """Images that are wanted, n of them, of one job.

    Attributes:
        seeds: uint64 (n,); all randomness of an image comes from its own.
        degree: variation in [0, 1] of `images`; None: new images.
        steps: of a new image; None: the server's.
        guidance: classifier-free guidance scale; None: the server's.
        size: height and width, pixels; None: the model's own.
        images: what is to be varied, uint8 n×h×w×c.
        classes: int64 (n,), the model's own class of each, for models that have them.
        prompts: of each, for models that take them.
        negative_prompts: what each should not be like.
        model: the name of the model; None: whichever is served.
        vary: how images are to be varied: noise, instruction, meaning or structure; None: however the server does it.
    """

    seeds: Seeds
    degree: float | None = None
    steps: int | None = None
    guidance: float | None = None
    size: tuple[int, int] | None = None
    images: Pixels | None = None
    classes: npt.NDArray[np.int64] | None = None
    prompts: tuple[str, ...] | None = None
    negative_prompts: tuple[str, ...] | None = None
    model: str | None = None
    vary: str | None = None

    def __len__(self) -> int:
        return len(self.seeds)

    def part(self, start: int, stop: int) -> Wanted:
        """The images from `start` to `stop`."""
        columns = {name: getattr(self, name) for name in ("seeds", *_COLUMNS)}
        return replace(self, **{name: each[start:stop] for name, each in columns.items() if each is not None})


@dataclass(frozen=True, eq=False)
class Made:
    """What came of it.

    Attributes:
        images: uint8 m×h×w×c.
        places: int64 (m,): which of the wanted ones they are.
        missing: place → why there is none.
    """

    images: Pixels
    places: npt.NDArray[np.int64]
    missing: Mapping[int, Refused | Failed] = field(default_factory=dict)

    @classmethod
    def of(cls, outcomes: Sequence[Pixels | Refused | Failed]) -> Made:
        """From an outcome for each place."""
        good = {place: outcome for place, outcome in enumerate(outcomes) if isinstance(outcome, np.ndarray)}
        missing = {place: miss for place, miss in enumerate(outcomes) if isinstance(miss, Refused | Failed)}
        images = np.stack(list(good.values())) if good else np.empty((0, 1, 1, 1), dtype=np.uint8)
        return cls(images, np.array(list(good), dtype=np.int64), missing)


def wanted_to_npz(wanted: Wanted) -> bytes:
    """The request's body."""
    given = {name: getattr(wanted, name) for name in _WANTED}
    return _write({name: np.asarray(value, _WANTED[name][0]) for name, value in given.items() if value is not None})


def wanted_of_npz(data: bytes) -> Wanted:
    """The request that a body holds; whether a model can do it is not looked at.

    Raises:
        FormatError: it holds something else.
    """
    found = _read(data, _WANTED)
    if "seeds" not in found:
        raise FormatError("The array 'seeds' is missing: send a uint64 for each image that is wanted.")
    count = len(found["seeds"])
    for name in _COLUMNS:
        if name in found and len(found[name]) != count:
            raise FormatError(f"There are {len(found[name])} {name.replace('_', ' ')} for {count} seeds.")
    if "size" in found and len(found["size"]) != 2:
        raise FormatError("The array 'size' holds height and width.")
    values = {name: found[name].item() for name, (_, dimensions) in _WANTED.items() if name in found and not dimensions}
    columns: dict[str, Any] = {name: found[name] for name in ("seeds", *_COLUMNS) if name in found}
    columns |= {name: tuple(each.tolist()) for name, each in columns.items() if each.dtype.kind == "U"}
    return Wanted(
        **values | columns,
        size=(int(found["size"][0]), int(found["size"][1])) if "size" in found else None,
    )


def made_to_npz(made: Made) -> bytes:
    """The answer's body."""
    misses = list(made.missing.values())
    return _write(
        {
            "images": made.images,
            "places": made.places,
            "missing": np.array(list(made.missing), dtype=np.int64),
            "reasons": np.array([miss.reason for miss in misses], dtype=np.str_),
            "refused": np.array([isinstance(miss, Refused) for miss in misses], dtype=np.bool_),
            "retryable": np.array([isinstance(miss, Failed) and miss.retryable for miss in misses], dtype=np.bool_),
        }
    )


def made_of_npz(data: bytes, count: int) -> Made:
    """The answer that a body holds, to a request for `count` images.

    Raises:
        FormatError: it holds something else.
    """
    found = _read(data, _MADE)
    if lacking := _MADE.keys() - found.keys():
        raise FormatError(f"The array '{min(lacking)}' is missing.")
    entries = zip(*(found[name].tolist() for name in ("missing", "reasons", "refused", "retryable")), strict=True)
    missing: dict[int, Refused | Failed] = {
        place: Refused(reason) if refused else Failed(reason, retryable)
        for place, reason, refused, retryable in entries
    }
    places = found["places"]
    if sorted([*places.tolist(), *missing]) != list(range(count)) or len(places) != len(found["images"]):
        raise FormatError(f"The answer does not hold each of {count} images, or why there is none, once.")
    return Made(found["images"], places, missing)


def _write(arrays: Mapping[str, Array]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _read(data: bytes, members: Mapping[str, tuple[str, int]]) -> dict[str, Array]:
    """The arrays of an npz file, read-only, all of them among `members`.

    Raises:
        FormatError: it is no such file.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = archive.infolist()
            _check_members(infos, members, len(data))
            contents = {info.filename.removesuffix(".npy"): archive.read(info) for info in infos}
    except FormatError:
        raise
    except Exception as error:  # a damaged archive lets almost any exception out of the parser
        raise FormatError("The body is not a whole npz file.") from error
    return {name: _array(name, content, *members[name]) for name, content in contents.items()}


def _check_members(infos: Sequence[zipfile.ZipInfo], members: Mapping[str, Any], size: int) -> None:
    names = [info.filename for info in infos]
    unknown = sorted(set(names) - {f"{name}.npy" for name in members})
    if unknown:
        raise FormatError(f"The npz file holds something else than the arrays {', '.join(members)}.")
    if len(set(names)) < len(names):
        raise FormatError("The npz file holds an array twice.")
    if any(info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 for info in infos):
        raise FormatError("The arrays must be stored as they are: write them by numpy.savez, not savez_compressed.")
    if sum(info.file_size for info in infos) > size:
        raise FormatError("The npz file's members overlap.")


def _array(name: str, content: bytes, kind: str, dimensions: int) -> Array:
    """One member; text that is no valid Unicode is refused, so that whoever takes it can encode it."""
    found = _HEAD.match(content)
    if not found:
        raise FormatError(f"The array '{name}' cannot be read.")
    type_, order, sides = found[1].decode(), found[2], [int(side) for side in found[3].split(b",") if side.strip()]
    fits = type_.startswith("<U") if kind == "U" else type_ in (f"<{kind}", f"|{kind}")
    if not fits or len(sides) != dimensions or (order == b"True" and dimensions > 1):
        raise FormatError(f"The array '{name}' is not of type {kind} with {dimensions} dimensions in C order.")
    dtype = np.dtype(type_)
    if math.prod(sides) * dtype.itemsize != len(content) - found.end():
        raise FormatError(f"The array '{name}' is cut off.")
    array: Array = np.zeros(sides, dtype)  # text without a character has no bytes
    if array.size and dtype.itemsize:
        array = np.frombuffer(content, dtype, offset=found.end()).reshape(sides)
    if kind == "U":
        codes = np.frombuffer(content, "<u4", offset=found.end()) if array.size else np.zeros(0, "<u4")
        if ((codes > 0x10FFFF) | ((codes >= 0xD800) & (codes < 0xE000))).any():
            raise FormatError(f"The array '{name}' holds what is no text.")
    return array
