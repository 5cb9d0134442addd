"""Captions that wait for their drawing, kept with the request's job: a run that is killed pays for them once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np

from adapters.parts import Items
from pe.data.conditions import Conditions
from pe.data.texts import Texts
from pe.plugins.jobs import JobNote
from pe.plugins.protocols import Answer, Failed, Refused, Usage

Part = tuple[Items, Answer]


@dataclass
class CaptionNote:
    """What is known of a request before all of it is answered; it stands in the note of the request's job.

    Attributes:
        job: of the request.
        parts: captions that were written, with the items of the request that they are of.
        drawing: the job of the drawing, as its host names it; empty: none was noted.
    """

    job: JobNote
    parts: list[Part] = field(default_factory=list)
    drawing: str = ""

    @classmethod
    def of(cls, job: JobNote) -> CaptionNote:
        """As the last process left it."""
        found: dict[str, Any] = json.loads(job.job) if job.job else {"parts": [], "drawing": ""}
        return cls(job, [_from_plain(part) for part in found["parts"]], found["drawing"])

    def add(self, items: Items, captions: Answer) -> None:
        """Note captions; they are durable when this returns."""
        self.parts.append((items, captions))
        self._write()

    def drawing_job(self) -> JobNote:
        """Where the generator that draws notes its own job."""
        return JobNote(self.drawing, int(bool(self.drawing)), self.job.key, self._keep, self.job.check_stop)

    def _keep(self, drawing: str) -> None:
        self.drawing = drawing
        self._write()

    def _write(self) -> None:
        self.job.write(json.dumps({"parts": [_to_plain(*part) for part in self.parts], "drawing": self.drawing}))


def _to_plain(items: Items, captions: Answer) -> dict[str, Any]:
    texts = captions.samples
    assert isinstance(texts, Texts)
    return {
        "items": items.tolist(),
        "texts": texts.strings,
        "longest": texts.shape[0],
        "conditions": {name: [column.dtype.str, column.tolist()] for name, column in captions.conditions.items()},
        "missing": [(i, type(miss).__name__, vars(miss)) for i, miss in captions.missing.items()],
        "usage": astuple(captions.usage or Usage(0)),
    }


def _from_plain(plain: Mapping[str, Any]) -> Part:
    kinds = {each.__name__: each for each in (Refused, Failed)}
    captions = Answer(
        Texts.of(plain["texts"], plain["longest"]),
        Conditions({name: np.array(rows, dtype) for name, (dtype, rows) in plain["conditions"].items()}),
        {i: kinds[kind](**told) for i, kind, told in plain["missing"]},
        Usage(*plain["usage"]),
    )
    return np.array(plain["items"]), captions
