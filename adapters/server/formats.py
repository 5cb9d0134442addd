"""Many images in one body: safetensors files, in which texts and numbers are JSON in the metadata.

A file holds plain arrays and text: nothing in it is executed or decompressed. docs/server.md lists
the arrays and the keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar, get_type_hints

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from safetensors.numpy import load, save

from pe.data.arrays import Int64Array, UInt8Array
from pe.plugins.protocols import Failed, Refused, Seeds

ARRAYS = "application/x-safetensors"
"""The content type of these bodies."""

Array = npt.NDArray[Any]
Pixels = UInt8Array
Text = TypeVar("Text", bound=BaseModel)
Degree = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Guidance = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]

# array → type and number of dimensions
_REQUEST = {"seeds": ("u8", 1), "images": ("u1", 4), "classes": ("i8", 1)}
_ANSWER = {"images": ("u1", 4), "places": ("i8", 1)}
# fields with one row for each seed
_COLUMNS = ("images", "classes", "prompts", "negative_prompts")


class FormatError(ValueError):
    """A body that is not what it should be, described by one sentence."""


@dataclass(frozen=True, eq=False)
class BatchRequest:
    """A request for n images of one job."""

    seeds: Seeds  # uint64 (n,); all randomness of an image comes from its seed
    degree: Degree | None = None  # variation in [0, 1] of `images`; None: new images
    steps: int | None = None  # denoising steps of a new image; None: the server's default
    guidance: Guidance | None = None  # classifier-free guidance scale; None: the server's default
    size: tuple[int, int] | None = None  # height and width, pixels; None: the model's own
    images: Pixels | None = None  # the images to vary, uint8 n×h×w×c; None: new images
    # int64 (n,), the class of each image, by the model's numbers, for models with classes
    classes: Int64Array | None = None
    prompts: tuple[str, ...] | None = None  # the prompt of each image, for models that take prompts
    negative_prompts: tuple[str, ...] | None = None  # what each image should not look like
    model: str | None = None  # the model's name; None: whichever is served
    vary: str | None = None  # noise, instruction, meaning or structure; None: the server's way

    def __len__(self) -> int:
        return len(self.seeds)


_STRICT = ConfigDict(extra="forbid", strict=True)
_TYPES = get_type_hints(BatchRequest, include_extras=True)
_KEYS: dict[str, Any] = {
    name: (kind, None) for name, kind in _TYPES.items() if name not in _REQUEST
}
# the JSON of a request: the fields of `BatchRequest` that are no arrays
_Job = create_model("_Job", __config__=_STRICT, **_KEYS)


class _Misses(BaseModel):
    """The JSON of an answer: place, reason, refused and retryable of each missing image."""

    model_config = _STRICT

    missing: list[tuple[int, str, bool, bool]] = []


@dataclass(frozen=True, eq=False)
class BatchAnswer:
    """The images of a request."""

    images: Pixels  # uint8 m×h×w×c
    places: Int64Array  # int64 (m,): their places in the request
    # place → why there is no image
    missing: Mapping[int, Refused | Failed] = field(default_factory=dict)


def pack_request(request: BatchRequest) -> bytes:
    """Return the body of a request."""
    job = {name: getattr(request, name) for name in _Job.model_fields}
    return _write({name: getattr(request, name) for name in _REQUEST}, _REQUEST, job)


def read_request(data: bytes) -> BatchRequest:
    """Return the request in a body, not checked against a model.

    Raises:
        FormatError: the body holds none.
    """
    arrays, job = _read(data, _REQUEST, _Job)
    if "seeds" not in arrays:
        raise FormatError("The array 'seeds' is missing. Send a uint64 for each image.")
    fields: dict[str, Any] = arrays | job.model_dump(exclude_none=True)
    count = len(arrays["seeds"])
    for name in _COLUMNS:
        if name in fields and len(fields[name]) != count:
            raise FormatError(
                f"There are {len(fields[name])} {name.replace('_', ' ')} for {count} seeds. "
                "Send one for each seed."
            )
    return BatchRequest(**fields)


def pack_answer(outcomes: Sequence[Pixels | Refused | Failed]) -> bytes:
    """Return the body of an answer with the outcome of each place, in order."""
    images = {
        place: outcome for place, outcome in enumerate(outcomes) if isinstance(outcome, np.ndarray)
    }
    missing = [
        (place, miss.reason, isinstance(miss, Refused), isinstance(miss, Failed) and miss.retryable)
        for place, miss in enumerate(outcomes)
        if not isinstance(miss, np.ndarray)
    ]
    pixels = np.stack(list(images.values())) if images else np.empty((0, 1, 1, 1))
    return _write(
        {"images": pixels, "places": np.array(list(images))}, _ANSWER, {"missing": missing}
    )


def read_answer(data: bytes, count: int) -> BatchAnswer:
    """Return the answer to a request for `count` images.

    Raises:
        FormatError: `data` is no such answer.
    """
    arrays, misses = _read(data, _ANSWER, _Misses)
    if len(arrays) < len(_ANSWER):
        raise FormatError(f"An array is missing: an answer has {' and '.join(_ANSWER)}.")
    missing: dict[int, Refused | Failed] = {
        place: Refused(reason) if is_refused else Failed(reason, is_retryable)
        for place, reason, is_refused, is_retryable in misses.missing
    }
    images = arrays["images"]
    places = arrays["places"]
    if sorted([*places.tolist(), *missing]) != list(range(count)) or len(places) != len(images):
        raise FormatError(f"The answer does not account for each of {count} images once.")
    return BatchAnswer(images, places, missing)


def _write(
    arrays: Mapping[str, Any], kinds: Mapping[str, tuple[str, int]], job: Mapping[str, Any]
) -> bytes:
    content = {
        name: np.ascontiguousarray(each, kinds[name][0])
        for name, each in arrays.items()
        if each is not None
    }
    text = json.dumps({name: value for name, value in job.items() if value is not None})
    return save(content, {"job": text})


def _read(
    data: bytes, kinds: Mapping[str, tuple[str, int]], model: type[Text]
) -> tuple[dict[str, Array], Text]:
    """Return a file's arrays, and its JSON as a `model`.

    Raises:
        FormatError: they are of other kinds.
    """
    try:
        arrays = load(data)
        head = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        text = head.get("__metadata__", {}).get("job", "{}")
    except Exception as error:  # a damaged file lets almost any exception out of the parser
        raise FormatError("The body is not a whole safetensors file.") from error
    for name, array in arrays.items():
        if kinds.get(name) != (array.dtype.str[1:], array.ndim):
            raise FormatError(f"The arrays must have these types and dimensions: {dict(kinds)}.")
    try:
        return arrays, model.model_validate_json(text)
    except ValidationError as error:
        fault = error.errors()[0]
        name = next((part for part in fault["loc"] if isinstance(part, str)), "job")[:40]
        raise FormatError(
            f"The field '{name}' cannot be read: {fault['msg'][:100].rstrip('.')}."
        ) from error
