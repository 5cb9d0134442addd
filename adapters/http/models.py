"""Hosts of many models, each of which describes its own inputs, under names of its own."""

from __future__ import annotations

import base64
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from adapters.http.client import OnFirstUse
from adapters.http.credentials import Credentials
from adapters.http.faults import Fault, Rejected
from adapters.http.generator import Asked
from adapters.http.jobs import ByJobs, JobClient, JobGenerator
from adapters.http.settings import Scalar, Size
from adapters.prompts import Ladder
from pe.errors import nearest_name
from pe.plugins.validation import Count

IMAGES = ("image", "image_url", "input_image", "init_image", "image_urls", "input_images", "images")
COUNTS = ("num_outputs", "num_images")
DEEPEST = 8
"""References that are followed, from one to the next."""


class ManyModels(ByJobs):
    """A host of many models.

    Attributes:
        model: as the host names it.
        variation_model: that varies images, where it is another one; None: `model`.
        degree_field: the model's input that takes the degree as a number, 1 for a new image: `strength`,
            `prompt_strength`; it must be among those that the model describes. None: the degree is put in words.
        image_field: the model's input that takes the parent; None: the first of the usual names that it describes.
        size: height and width that the model is asked for; None: its default.
        n: most images of one request.
        inputs: further inputs, sent as they are.
    """

    model: str
    variation_model: str | None = None
    degree_field: str | None = None
    image_field: str | None = None
    size: Size | None = None
    n: Count = 1
    inputs: dict[str, Scalar] | None = None

    @property
    def ladder(self) -> Ladder:
        """How it is told a degree of variation."""
        return Ladder.of(self.wordings, self.degree_field, exact=self.degree_field is not None)


Chosen = TypeVar("Chosen", bound=ManyModels)


@dataclass(frozen=True)
class Model:
    """A model, as its host describes it.

    Attributes:
        name: as the host names it.
        inputs: input → its schema.
    """

    name: str
    inputs: Mapping[str, Any]

    @classmethod
    def of(cls, name: str, document: Any, schema: Any) -> Model:
        """From an OpenAPI document and the schema in it, or a reference to that schema.

        Raises:
            Fault: it describes no inputs.
        """
        for _ in range(DEEPEST):
            if not (isinstance(schema, dict) and isinstance(schema.get("$ref"), str)):
                break
            keys, schema = schema["$ref"].removeprefix("#/").split("/"), document
            for key in keys:
                schema = schema.get(key.replace("~1", "/")) if isinstance(schema, dict) else None
        inputs = schema.get("properties") if isinstance(schema, dict) else None
        if not isinstance(inputs, dict) or "prompt" not in inputs:
            raise Fault(f"{name} describes no input `prompt`: it is no model that draws from prompts", 400)
        return cls(name, inputs)

    def fill(self, given: ManyModels, asked: Asked, parent: str = "") -> dict[str, Any]:
        """What is asked for, under the model's names; `parent`: the address of the image to be varied, or a data URI.

        Raises:
            Rejected: the model has no input for it.
        """
        filled: dict[str, Any] = {**(given.inputs or {}), "prompt": asked.prompt, **asked.told}
        for name in filled:
            self._check(name)
        if "seed" in self.inputs:
            filled["seed"] = asked.seed
        counts = [name for name in COUNTS if name in self.inputs]
        if counts:
            filled[counts[0]] = len(asked.seeds)
        elif given.n > 1:
            raise Rejected(f"{self.name} has no input for the number of images: set `n` to 1.")
        if given.size is not None:
            filled |= self._sized(given.size, needed=not asked.parents)
        if asked.parents:
            name = given.image_field or next((name for name in IMAGES if name in self.inputs), IMAGES[0])
            self._check(name)
            filled[name] = [parent] if _is_list(self.inputs[name]) else parent
        return filled

    def _check(self, name: str) -> None:
        if name not in self.inputs:
            raise Rejected(f"{self.name} has no input '{name}'; {nearest_name(name, self.inputs)}")

    def _sized(self, size: tuple[int, int], needed: bool) -> dict[str, Any]:
        sides = {"width": size[1], "height": size[0]}
        if sides.keys() <= self.inputs.keys():
            return sides
        if "image_size" in self.inputs:
            return {"image_size": sides}
        if needed:
            raise Rejected(f"{self.name} has no input for a size: leave it out, or set the model's own in `inputs`.")
        return {}


class ModelHost(JobGenerator[Chosen]):
    """A host whose models describe themselves; they are asked to once, before the first job."""

    def _connect(self, credentials: Credentials) -> JobClient:
        client, given = super()._connect(credentials), self._given
        names = {given.model, given.variation_model or given.model}
        self._models = {name: OnFirstUse(partial(self._describe, client, name)) for name in names}
        return client

    @abstractmethod
    def _describe(self, client: JobClient, name: str) -> Model:
        """A model as the host describes it; a `Fault` where it does not."""

    @property
    def _most(self) -> int:
        return self._given.n

    @property
    def _asked_size(self) -> tuple[int, int] | None:
        return self._given.size

    def _model(self, asked: Asked) -> Model:
        """The model that a request is for."""
        given = self._given
        return self._models[(given.variation_model or given.model) if asked.parents else given.model].get()


def data_uri(image: bytes) -> str:
    """A PNG file as an address that holds it."""
    return f"data:image/png;base64,{base64.b64encode(image).decode()}"


def _is_list(schema: Any) -> bool:
    kinds = [schema, *schema.get("anyOf", ())] if isinstance(schema, dict) else []
    return any(isinstance(kind, dict) and kind.get("type") == "array" for kind in kinds)
