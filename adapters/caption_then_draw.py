"""Captions that wait for their drawing, kept with the request's job: a run that is killed pays for them once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from threading import BoundedSemaphore
from typing import Any

import numpy as np

from adapters.parts import Items, Request, cut, part_of, together
from adapters.prompts import PROMPT
from adapters.text_prompts import strings_of
from pe.data.images import Images
from pe.data.samples import CAPTION, PART, Conditions, mix, modality
from pe.data.texts import Texts
from pe.errors import APIError, RecipeError
from pe.plugins.price import Price
from pe.plugins.protocols import (
    Answer,
    Capabilities,
    ChecksLabels,
    ChecksMachine,
    DescribesDegree,
    DescribesWait,
    DrawsConditions,
    Failed,
    Finding,
    GenerationAPI,
    JobNote,
    LooksAtEndpoint,
    PluginInfo,
    RandomRequest,
    ReadsPublicSamples,
    Refused,
    Seeds,
    TellsOfAnswers,
    Usage,
    VariationRequest,
    info_of,
)
from pe.plugins.registry import PartSpec, construct, load, members_of, require, settings_of
from pe.plugins.settings import Settings, read_settings

Answered = tuple[Items, Answer]


@dataclass
class CaptionNote:
    """What is known of a request before all of it is answered; it stands in the note of the request's job.

    Attributes:
        job: of the request.
        parts: captions that were written, with the items of the request that they are of.
        drawing: the job of the drawing, as its host names it; empty: none was noted.
    """

    job: JobNote
    parts: list[Answered] = field(default_factory=list)
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


def _from_plain(plain: Mapping[str, Any]) -> Answered:
    kinds = {each.__name__: each for each in (Refused, Failed)}
    captions = Answer(
        Texts.of(plain["texts"], plain["longest"]),
        Conditions({name: np.array(rows, dtype) for name, (dtype, rows) in plain["conditions"].items()}),
        {i: kinds[kind](**told) for i, kind, told in plain["missing"]},
        Usage(*plain["usage"]),
    )
    return np.array(plain["items"]), captions


# One of the two generators that make a sample together: what it is asked, and what its answers cost.


PLACE = "{caption}"
"""In a prompt of `draw`, what becomes the caption."""


@dataclass(frozen=True)
class Part:
    """A generator, and its part in each sample.

    Attributes:
        name: the setting that names it; begins the reasons for what it does not make.
        api: the generator itself.
        price: what its provider charges.
        gate: lets as many requests through at once as it can take.
    """

    name: str
    api: GenerationAPI
    price: Price
    gate: BoundedSemaphore

    @classmethod
    def of(cls, name: str, spec: PartSpec, settings: dict[str, Any], noun: str) -> Part:
        """The generator of samples called `noun` that a recipe names.

        Raises:
            RecipeError: a setting is wrong, or it cannot do this part.
            MissingDependency: a library that it needs is not installed.
        """
        require("pe.adapters", spec.kind)
        if members_of(spec):
            raise RecipeError(f"{name}: {spec.kind} has generators of its own, which cannot be a part: name one alone.")
        api: GenerationAPI = construct("pe.adapters", spec.kind, settings)
        if hasattr(api, "planned"):
            raise RecipeError(f"{name}: {spec.kind} is fitted on the private records, which a part is not: omit it.")
        made = modality(info_of(api).modality).noun
        if made != noun:
            raise RecipeError(f"{name}: {spec.kind} makes {made}: name one that makes {noun}.")
        return cls(name, api, spec.price.price, BoundedSemaphore(api.capabilities.concurrency))

    @property
    def info(self) -> PluginInfo:
        """What it declares."""
        return info_of(self.api)

    def draw_conditions(self, labels: tuple[str, ...], seeds: Seeds) -> Conditions:
        """What it draws for new samples; no columns where it draws nothing."""
        return self.api.draw_conditions(labels, seeds) if isinstance(self.api, DrawsConditions) else Conditions()

    def prompts(self, labels: tuple[str, ...], seeds: Seeds) -> list[str]:
        """The prompt that it draws for each of these labels."""
        return [str(prompt) for prompt in self.draw_conditions(labels, seeds)[PROMPT]]

    def ask(self, request: RandomRequest | VariationRequest) -> Answer:
        """Its answer, every sample with its conditions, and what it cost."""
        with self.gate:
            if isinstance(request, RandomRequest):
                answer = self.api.random_api(request)
            else:
                answer = self.api.variation_api(request)
        conditions = answer.conditions
        if not conditions:
            conditions = request.conditions.take([i for i in range(len(request)) if i not in answer.missing])
        missing = {i: replace(miss, reason=f"{self.name}: {miss.reason}") for i, miss in answer.missing.items()}
        return Answer(answer.samples, conditions, missing, replace(answer.billed, cost=self.price.of(answer.billed)))

    def tokens(self, priced: bool) -> Usage | None:
        """That a sample of it is billed as; None: not known. `priced`: parts have prices of their own."""
        free_of_tokens = self.info.hosts == () or (priced and not self.price.has_tokens)
        return Usage(0) if free_of_tokens else self.info.tokens

    def check_machine(self) -> None:
        """Raise PEError if this machine lacks what it needs."""
        try:
            if isinstance(self.api, ChecksMachine):
                self.api.check_machine()
        except RecipeError as error:
            raise RecipeError(f"{self.name}: {error}") from error

    def check_labels(self, labels: tuple[str, ...]) -> None:
        """Raise RecipeError for a label that it cannot make samples of."""
        try:
            if isinstance(self.api, ChecksLabels):
                self.api.check_labels(labels)
            else:
                self.draw_conditions(labels, np.arange(len(labels), dtype=np.uint64))
        except RecipeError as error:
            raise RecipeError(f"{self.name}: {error}") from error

    def describe_degree(self, degree: float, iteration: int) -> str:
        """What a degree comes to for it; empty: it has no words for it."""
        return self.api.describe_degree(degree, iteration) if isinstance(self.api, DescribesDegree) else ""

    def describe_wait(self) -> str:
        """What its requests wait for now, with its name; empty: for nothing."""
        wait = self.api.describe_wait() if isinstance(self.api, DescribesWait) else ""
        return f"{self.name}: {wait}" if wait else ""


def drawer_settings(spec: PartSpec) -> dict[str, Any]:
    """The settings of the generator that draws captions: as given, and without prompts with the caption alone.

    Raises:
        RecipeError: it draws from no prompts, or one of its prompts has no place for the caption.
    """
    require("pe.adapters", spec.kind)
    if "prompts" not in settings_of(load("pe.adapters", spec.kind)).model_fields:
        raise RecipeError(f"draw: {spec.kind} draws from no prompts: name a text-to-image generator.")
    settings = {"prompts": PLACE} | spec.settings
    for text in _texts(settings["prompts"]):
        if PLACE not in text:
            raise RecipeError(f"draw.prompts: '{text}' has no {PLACE}: say where the caption stands, or omit prompts.")
    return settings


def _texts(setting: Any) -> list[str]:
    """The texts of a setting: one, a list, or either by label."""
    if isinstance(setting, dict):
        setting = list(setting.values())
    return [text for each in setting for text in _texts(each)] if isinstance(setting, list) else [str(setting)]


# Captions by a generator of texts, drawn by a text-to-image generator (SPTI, arXiv 2506.07555).


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
