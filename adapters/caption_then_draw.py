"""Captions by a generator of texts, drawn by a text-to-image generator (SPTI, arXiv 2506.07555)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from adapters.members import Items, Member, OfSeveral, Request, cut, part_of, together
from adapters.prompts import PROMPT, Prompts
from adapters.public_files import paths_of
from adapters.text_prompts import parents_of
from pe.data.images import Images
from pe.data.samples import CAPTION, Conditions, mix, modality
from pe.data.texts import Texts
from pe.errors import APIError, RecipeError
from pe.plugins.protocols import (
    Answer,
    Capabilities,
    Failed,
    JobNote,
    PluginInfo,
    RandomRequest,
    Refused,
    Seeds,
    Usage,
    VariationRequest,
)
from pe.plugins.registry import load, require
from pe.plugins.settings import fields_of
from pe.plugins.specs import PartSpec, plugin, settings_of

PLACE = "{caption}"
"""Place of the caption in a prompt of `draw`."""

NOTED = 64
"""Most items of one request where captions are noted: each answer rewrites the whole note."""


@dataclass
class CaptionNote:
    """Captions that wait to be drawn, noted in the request's job.

    A run that is killed pays for them only once.
    """

    job: JobNote  # the note of the request's job
    # for each part of the request, its items and the captions that were written for them
    parts: list[tuple[Items, Answer]]
    drawing: str  # the job of the drawing, as its host names it; empty: none was noted

    @classmethod
    def of(cls, job: JobNote) -> CaptionNote:
        """Read the captions that an earlier process noted, if it noted any."""
        note: dict[str, Any] = json.loads(job.job) if job.job else {"parts": [], "drawing": ""}
        return cls(
            job,
            [_from_plain(part) for part in note["parts"]],
            note["drawing"],
        )

    def add(self, items: Items, captions: Answer) -> None:
        """Note captions. They are durable when this returns."""
        self.parts.append((items, captions))
        self._write()

    def drawing_job(self) -> JobNote:
        """Return the note for the job of the generator that draws."""
        return JobNote(
            self.drawing, int(bool(self.drawing)), self.job.key, self._keep, self.job.check_stop
        )

    def _keep(self, drawing: str) -> None:
        self.drawing = drawing
        self._write()

    def _write(self) -> None:
        parts = [_to_plain(*part) for part in self.parts]
        self.job.write(json.dumps({"parts": parts, "drawing": self.drawing}))


def _to_plain(items: Items, captions: Answer) -> dict[str, Any]:
    return {
        "items": items.tolist(),
        "texts": parents_of(captions.samples),
        "longest": captions.samples.shape[0],
        "conditions": {
            name: [column.dtype.str, column.tolist()]
            for name, column in captions.conditions.items()
        },
        "missing": [(i, type(miss).__name__, vars(miss)) for i, miss in captions.missing.items()],
        "usage": astuple(captions.usage or Usage(0)),
    }


def _from_plain(plain: Mapping[str, Any]) -> tuple[Items, Answer]:
    kinds = {"Refused": Refused, "Failed": Failed}
    columns = {name: np.array(rows, dtype) for name, (dtype, rows) in plain["conditions"].items()}
    captions = Answer(
        Texts.of(plain["texts"], plain["longest"]),
        Conditions(columns),
        {i: kinds[kind](**fields) for i, kind, fields in plain["missing"]},
        Usage(*plain["usage"]),
    )
    return np.array(plain["items"]), captions


@plugin
class CaptionThenDraw(OfSeveral):
    """For image models that draw well but vary images badly: captions evolve, and are drawn.

    RANDOM_API writes a caption and draws it; VARIATION_API varies the parent's caption and draws
    that anew.

    Samples carry their caption as the condition `caption`, and the conditions of the generator of
    captions as `captions.prompt` and so on. Degree 0 is the parent itself and makes no call.
    Captions that wait for their drawing are noted, so that a run that is killed does not pay for
    them again.

    Attributes:
        captions: a generator of texts (`chat`, `causal_lm`, `masked_lm` or `public_texts`), written
            as under `api`; a `price` in it is for captions alone.
        draw: a generator that draws images from prompts, written as `captions` is. `{caption}` in
            its `prompts` becomes the caption; without `prompts` the caption alone is the prompt.

    Raises:
        RecipeError: a setting is wrong, or a generator cannot do its part.
    """

    kind = "caption_then_draw"
    info = PluginInfo()

    captions: PartSpec
    draw: PartSpec

    def __post_init__(self) -> None:
        if self.captions.settings.get("batch") is not None:
            raise RecipeError(
                "`captions.batch` cannot be used here: if the run were killed, a batch of captions "
                "would be paid for twice. Remove it."
            )
        self._captions = self._member(
            "captions",
            self.captions,
            Texts.noun,
        )
        self._draw = self._member("draw", self.draw, Images.noun)
        self._members = (self._captions, self._draw)
        captions = self._captions.info
        self.info = replace(
            self._draw.info,
            machine_settings=(),  # of each part, under its name
            code_settings=(),
            schedules=(),
            hosts=self._hosts,
            by_label=captions.by_label,
            distinct=None,
            kept=None,
            anew=True,
            tokens=self._tokens(),
            degrees=captions.degrees,
        )

    def _member(self, key: str, spec: PartSpec, noun: str) -> Member:
        """Construct the generator under `key`.

        Raise RecipeError unless it makes `noun`, texts or images.
        """
        member = Member.of(
            key,
            spec,
            f"{key}: {spec.kind}",
            self.settings_of(key, spec),
        )
        its = modality(member.info.modality).noun
        if its != noun:
            raise RecipeError(f"{key}: {spec.kind} makes {its}. Name one that makes {noun}.")
        return member

    @classmethod
    def settings_of(cls, key: str, spec: PartSpec) -> dict[str, Any]:
        """Return the settings of a member.

        If `draw` has no prompts, the caption alone is the prompt.
        """
        if key == "captions":
            return spec.settings
        require("pe.adapters", spec.kind)
        if "prompts" not in fields_of(settings_of(load("pe.adapters", spec.kind))):
            raise RecipeError(
                f"draw: {spec.kind} draws from no prompts. Name a text-to-image generator."
            )
        settings = {"prompts": PLACE} | spec.settings
        prompts = Prompts.of(settings["prompts"]).texts
        lists = prompts.values() if isinstance(prompts, Mapping) else [prompts]
        for text in chain.from_iterable(lists):
            if PLACE not in text:
                raise RecipeError(
                    f"draw.prompts: '{text}' has no {PLACE}. Say where the caption stands, or "
                    "remove `draw.prompts`."
                )
        return settings

    @property
    def capabilities(self) -> Capabilities:
        """As many items as `draw` takes with different prompts in a request.

        `captions` says how a degree is obeyed.
        """
        captions, draw = (member.api.capabilities for member in self._members)
        most = draw.max_chunk if draw.shares == "nothing" else 1
        return Capabilities(
            max_chunk=most if captions.deterministic else min(most, NOTED),
            concurrency=captions.concurrency + draw.concurrency,
            degree=captions.degree,
            deterministic=captions.deterministic and draw.deterministic,
        )

    def random_api(self, request: RandomRequest) -> Answer:
        """Write a new caption for each item, and draw it."""
        own = self._captions.own(request.conditions)
        return self._answer(request, replace(request, conditions=own))

    def variation_api(self, request: VariationRequest) -> Answer:
        """Vary each parent's caption, and draw the result.

        Degree 0 returns the parents without a call.

        Raises:
            APIError: the parents carry no captions, or captions that the pool of public texts no
                longer has.
        """
        if request.degree == 0:
            return Answer(request.samples, usage=Usage(0))
        if CAPTION not in request.conditions:
            raise APIError(
                "The parents carry no captions. `caption_then_draw` varies only what it drew."
            )
        texts = request.conditions[CAPTION].tolist()
        captions = Texts.of(texts, max(len(text.encode()) for text in texts) or 1)
        for_captions = replace(
            request, samples=captions, conditions=self._captions.own(request.conditions)
        )
        self._check_pool(for_captions)
        return self._answer(request, for_captions)

    def _check_pool(self, request: VariationRequest) -> None:
        """Raise APIError if the pool of public texts has changed since the parents were made."""
        pool = self._captions.api
        places = paths_of([pool])
        if not places:
            return
        parents = pool.variation_api(replace(request, degree=0.0)).samples
        if not np.array_equal(parents.array, request.samples.array):
            words = ", ".join(map(str, places))
            raise APIError(
                f"{words} holds other captions than when the run began. Restore it, or start a new "
                "run."
            )

    def _answer(self, request: Request, for_captions: Request) -> Answer:
        """Answer `request`: write captions as `for_captions` asks, and draw them."""
        captions, job = self._write(for_captions)
        drawable = [i for i in range(len(request)) if i not in captions.missing]
        usage = replace(captions.usage or Usage(0), images=0)
        texts = np.array(parents_of(captions.samples), dtype=np.str_)
        conditions = Conditions({**self._captions.with_prefix(captions.conditions), CAPTION: texts})
        if not drawable:
            nothing = Images.stack([], self.info.shape or (1, 1, 1))
            return Answer(nothing, conditions, captions.missing, usage)
        labels = tuple(request.labels[i] for i in drawable)
        seeds = mix(request.seeds[drawable])  # others than the captions'
        prompts = self._draw.api.draw_conditions(labels, seeds)[PROMPT].tolist()
        filled = [
            prompt.replace(PLACE, caption)
            for prompt, caption in zip(prompts, texts.tolist(), strict=True)
        ]
        for_images = Conditions({PROMPT: np.array(filled, np.str_)})
        images = self._draw.ask(
            RandomRequest(
                labels,
                seeds,
                for_images,
                job,
            )
        )
        missing = {**captions.missing, **{drawable[i]: miss for i, miss in images.missing.items()}}
        good = [i for i in range(len(drawable)) if i not in images.missing]
        return Answer(
            images.samples, conditions.take(good), missing, usage + (images.usage or Usage(0))
        )

    def _write(self, request: Request) -> tuple[Answer, JobNote]:
        """Write the captions that are not noted yet.

        Return all captions, and the note for the job that draws them.
        """
        can = self._captions.api.capabilities
        # Captions of a deterministic generator need no note: equal ones can be asked for again.
        note = None if can.deterministic else CaptionNote.of(request.job)
        parts = [] if note is None else note.parts
        noted = [items for items, _ in parts]
        rest = np.setdiff1d(np.arange(len(request)), np.concatenate([*noted, np.array([], int)]))
        for items in cut(request, rest, can):
            answer = self._captions.ask(part_of(request, items))
            if note is None:
                parts.append((items, answer))
            else:
                note.add(items, answer)
        return together(parts), request.job if note is None else note.drawing_job()

    def draw_conditions(self, labels: tuple[str, ...], seeds: Seeds) -> Conditions:
        """Draw the conditions of the generator of captions."""
        return self._captions.with_prefix(self._captions.api.draw_conditions(labels, seeds))

    def _tokens(self) -> Usage | None:
        """Return the tokens billed for a sample, or None if they are not known.

        Members without host or billed tokens add none.
        """
        has_price = any(not member.price.free for member in self._members)
        tokens = Usage(0)
        for member in self._members:
            if member.info.hosts == () or (has_price and not member.price.has_tokens):
                continue
            if member.info.tokens is None:
                return None
            tokens += member.info.tokens
        return tokens

    def describe_degree(self, degree: float, iteration: int = 1) -> str:
        """Describe what this degree means here.

        Raise RecipeError if the generator of captions cannot obey it.
        """
        if degree == 0:
            return "the parent itself"
        words = self._captions.api.describe_degree(degree, iteration)
        return f"the caption: {words or 'varied by it'}; drawn anew"

    def describe_answers(self) -> str:
        """Return what the generator of captions tells of its answers."""
        return self._captions.api.describe_answers()
