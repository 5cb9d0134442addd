"""Captions by a generator of texts, drawn by a text-to-image generator (SPTI, arXiv 2506.07555)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from adapters.caption_then_draw.note import CaptionNote
from adapters.caption_then_draw.parts import PLACE, Part, drawer_settings
from adapters.parts import Request, cut, part_of, together
from adapters.prompts import PROMPT
from adapters.text_prompts import strings_of
from pe.data.conditions import CAPTION, PART, Conditions
from pe.data.images import Images
from pe.data.seeds import mix
from pe.data.texts import Texts
from pe.errors import APIError, RecipeError
from pe.plugins.findings import Finding, LooksAtEndpoint
from pe.plugins.jobs import JobNote
from pe.plugins.protocols import (
    Answer,
    Capabilities,
    DrawsConditions,
    PluginInfo,
    RandomRequest,
    ReadsPublicSamples,
    Seeds,
    Usage,
    VariationRequest,
)
from pe.plugins.registry import load, require
from pe.plugins.specs import PartSpec
from pe.plugins.validation import Settings, read_settings
from pe.plugins.waits import TellsOfAnswers

NOTED = 64
"""Items of a request whose captions are noted, at the most: each answer writes the note anew."""


class CaptionThenDrawSettings(Settings):
    """What a recipe says of it.

    Attributes:
        captions: a generator of texts, as `api` describes one, with a `price` of its own: `chat`, `causal_lm`,
            `masked_lm`, `public_texts`.
        draw: a generator that draws images of prompts, likewise. In its `prompts`, which may be left out, `{caption}`
            becomes the caption.
    """

    captions: PartSpec
    draw: PartSpec


class CaptionThenDraw:
    """RANDOM_API writes a caption and draws it; VARIATION_API varies the parent's caption and draws that anew.

    `captions` is a generator of texts, `draw` one that draws images of prompts, each as `api` describes one. In the
    `prompts` of `draw`, which may be left out, `{caption}` becomes the caption.

    Samples carry their caption as the condition `caption`, and the conditions of the generator of captions as
    `captions.prompt` and so on. Degree 0 is the parent itself and asks nobody. Captions that wait for their drawing are
    noted, so that a run that is killed does not pay for them again.

    Args:
        settings: see `CaptionThenDrawSettings`.

    Raises:
        RecipeError: a setting is wrong, or a generator cannot do its part.
    """

    Settings = CaptionThenDrawSettings
    info = PluginInfo()

    def __init__(self, **settings: Any) -> None:
        given = read_settings(CaptionThenDrawSettings, settings, "caption_then_draw")
        if given.captions.settings.get("batch") is not None:
            raise RecipeError(
                "captions.batch is given, and a batch of captions cannot be noted beside their drawings, so that a run "
                "that is killed would pay for it again: leave it out."
            )
        self._captions = Part.of("captions", given.captions, given.captions.settings, Texts.noun)
        self._draw = Part.of("draw", given.draw, drawer_settings(given.draw), Images.noun)
        priced = any(not part.price.free for part in self._parts)
        hosts = [part.info.hosts for part in self._parts]
        tokens = [part.tokens(priced) for part in self._parts]
        self.info = replace(
            self._draw.info,
            machine_settings=(),  # of each part, under its name
            code_settings=(),
            schedules=(),
            hosts=None if None in hosts else tuple(dict.fromkeys(host for of in hosts for host in of or ())),
            by_label=self._captions.info.by_label,
            distinct=None,
            kept=None,
            anew=True,
            tokens=None if None in tokens else sum((each for each in tokens if each), Usage(0)),
            degrees=self._captions.info.degrees,
        )
        if isinstance(self._captions.api, DrawsConditions):
            self.draw_conditions = self._draw_captions_conditions

    @property
    def _parts(self) -> tuple[Part, Part]:
        return self._captions, self._draw

    @property
    def others(self) -> list[PluginInfo]:
        """The declarations of both generators."""
        return [part.info for part in self._parts]

    @property
    def capabilities(self) -> Capabilities:
        """As many items as one request for drawings of different captions may hold; the degree is the captions'."""
        captions, draw = (part.api.capabilities for part in self._parts)
        most = draw.max_chunk if draw.shares == "nothing" else 1
        return Capabilities(
            max_chunk=most if captions.deterministic else min(most, NOTED),
            concurrency=captions.concurrency + draw.concurrency,
            degree=captions.degree,
            deterministic=captions.deterministic and draw.deterministic,
        )

    def random_api(self, request: RandomRequest) -> Answer:
        """A new caption for each item, drawn."""
        return self._answer(request, replace(request, conditions=_take_prefix(request.conditions)))

    def variation_api(self, request: VariationRequest) -> Answer:
        """A variation of each parent's caption, drawn; at degree 0 the parents, without a call.

        Raises:
            APIError: the parents carry no captions, or others than the generator's public texts.
        """
        if request.degree == 0:
            return Answer(request.samples, usage=Usage(0))
        if CAPTION not in request.conditions:
            raise APIError("The parents carry no captions: caption_then_draw varies only what it drew.")
        texts = [str(text) for text in request.conditions[CAPTION]]
        captions = Texts.of(texts, max(len(text.encode()) for text in texts) or 1)
        asked = replace(request, samples=captions, conditions=_take_prefix(request.conditions))
        self._check_pool(asked)
        return self._answer(request, asked)

    def _check_pool(self, asked: VariationRequest) -> None:
        """Refuse parents whose captions are not those of the pool that they were taken from, which has changed."""
        pool = self._captions.api
        if not (isinstance(pool, ReadsPublicSamples) and pool.public_paths()):
            return
        there = pool.variation_api(replace(asked, degree=0.0)).samples
        if not np.array_equal(there.array, asked.samples.array):
            places = ", ".join(map(str, pool.public_paths()))
            raise APIError(f"{places} holds other captions than when the run began: restore it, or start a new run.")

    def _answer(self, request: Request, asked: Request) -> Answer:
        """Captions as `asked`, drawn for `request`."""
        captions, job = self._write(asked)
        kept = [i for i in range(len(request)) if i not in captions.missing]
        usage = replace(captions.usage or Usage(0), images=0)
        texts = np.array(strings_of(captions.samples), dtype=np.str_)
        written = Conditions({**_add_prefix(captions.conditions), CAPTION: texts})
        if not kept:
            return Answer(Images.stack([], self.info.shape or (1, 1, 1)), written, captions.missing, usage)
        labels, seeds = tuple(request.labels[i] for i in kept), mix(request.seeds[kept])  # others than the captions'
        prompts = [
            prompt.replace(PLACE, caption)
            for prompt, caption in zip(self._draw.prompts(labels, seeds), texts.tolist(), strict=True)
        ]
        drawn = self._draw.ask(RandomRequest(labels, seeds, Conditions({PROMPT: np.array(prompts, np.str_)}), job))
        missing = {**captions.missing, **{kept[i]: miss for i, miss in drawn.missing.items()}}
        good = [i for i in range(len(kept)) if i not in drawn.missing]
        return Answer(drawn.samples, written.take(good), missing, usage + (drawn.usage or Usage(0)))

    def _write(self, asked: Request) -> tuple[Answer, JobNote]:
        """The captions, those that are noted and new ones, and where the job of their drawing is noted.

        Captions that would be the same if they were asked for again are not noted.
        """
        can = self._captions.api.capabilities
        note = None if can.deterministic else CaptionNote.of(asked.job)
        parts = [] if note is None else note.parts
        written = {int(item) for items, _ in parts for item in items}
        for items in cut(asked, np.array([i for i in range(len(asked)) if i not in written], np.int64), can):
            answer = self._captions.ask(part_of(asked, items))
            if note is None:
                parts.append((items, answer))
            else:
                note.add(items, answer)
        return together(parts), asked.job if note is None else note.drawing_job()

    def _draw_captions_conditions(self, labels: tuple[str, ...], seeds: Seeds) -> Conditions:
        """What the generator of captions draws for new ones: a prompt, say."""
        return _add_prefix(self._captions.draw_conditions(labels, seeds))

    def describe_degree(self, degree: float, iteration: int = 1) -> str:
        """Describe what this degree means for this generator.

        Raises:
            RecipeError: the generator of captions cannot obey it.
        """
        if degree == 0:
            return "the parent itself"
        words = self._captions.describe_degree(degree, iteration)
        return f"the caption: {words or 'varied by it'}; drawn anew"

    def describe_wait(self) -> str:
        """What requests wait for now, by part."""
        return "; ".join(filter(None, (part.describe_wait() for part in self._parts)))

    def describe_answers(self) -> str:
        """See `TellsOfAnswers`; of the generator of captions."""
        writer = self._captions.api
        return writer.describe_answers() if isinstance(writer, TellsOfAnswers) else ""

    def check_machine(self) -> None:
        """Raise PEError if this machine lacks what one of the parts needs."""
        for part in self._parts:
            part.check_machine()

    def check_labels(self, labels: Sequence[str]) -> None:
        """Raise RecipeError for a label that one of the parts cannot serve."""
        for part in self._parts:
            part.check_labels(tuple(labels))

    @classmethod
    def look(cls, settings: Mapping[str, Any]) -> Iterator[Finding]:
        """See `LooksAtEndpoint.look`: at the endpoint of each part that has one."""
        given = read_settings(CaptionThenDrawSettings, settings, "caption_then_draw")
        parts = ((given.captions, given.captions.settings), (given.draw, drawer_settings(given.draw)))
        looked = False
        for spec, its in parts:
            require("pe.adapters", spec.kind)
            plugin = load("pe.adapters", spec.kind)
            if isinstance(plugin, LooksAtEndpoint):
                looked = True
                yield from plugin.look(its)
        if not looked:
            told = "caption_then_draw: neither of its generators has an endpoint that can be looked at"
            yield Finding("problem", told, "ask it for samples: pe probe RECIPE")


def _add_prefix(conditions: Conditions) -> Conditions:
    """The generator of captions' columns, by names that tell whose they are."""
    return Conditions({f"captions{PART}{name}": column for name, column in conditions.items()})


def _take_prefix(conditions: Conditions) -> Conditions:
    """The reverse."""
    before = f"captions{PART}"
    return Conditions(
        {name.removeprefix(before): column for name, column in conditions.items() if name.startswith(before)}
    )
