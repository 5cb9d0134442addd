"""Captions by a generator of texts, drawn by a text-to-image generator (SPTI, arXiv 2506.07555)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, field, replace
from typing import Any

import numpy as np

from adapters.members import Items, Member, OfSeveral, Request, cut, look_at_each, part_of, together
from adapters.prompts import PROMPT
from adapters.public_files import paths_of
from adapters.text_prompts import strings_of
from pe.data.images import Images
from pe.data.samples import CAPTION, Conditions, mix, modality
from pe.data.texts import Texts
from pe.errors import APIError, RecipeError
from pe.plugins.protocols import (
    Answer,
    Capabilities,
    Failed,
    Finding,
    JobNote,
    PluginInfo,
    RandomRequest,
    Refused,
    Seeds,
    Usage,
    VariationRequest,
)
from pe.plugins.registry import load, require
from pe.plugins.settings import Settings, fields_of, read_settings
from pe.plugins.specs import PartSpec, settings_of

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
    parts: list[tuple[Items, Answer]] = field(default_factory=list)
    drawing: str = ""  # the job of the drawing, as its host names it; empty: none was noted

    @classmethod
    def of(cls, job: JobNote) -> CaptionNote:
        """Read the captions that an earlier process noted, if it noted any."""
        note: dict[str, Any] = json.loads(job.job) if job.job else {"parts": [], "drawing": ""}
        return cls(job, [_from_plain(part) for part in note["parts"]], note["drawing"])

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
        self.job.write(
            json.dumps(
                {"parts": [_to_plain(*part) for part in self.parts], "drawing": self.drawing}
            )
        )


def _to_plain(items: Items, captions: Answer) -> dict[str, Any]:
    texts = captions.samples
    assert isinstance(texts, Texts)
    return {
        "items": items.tolist(),
        "texts": texts.strings,
        "longest": texts.shape[0],
        "conditions": {
            name: [column.dtype.str, column.tolist()]
            for name, column in captions.conditions.items()
        },
        "missing": [(i, type(miss).__name__, vars(miss)) for i, miss in captions.missing.items()],
        "usage": astuple(captions.usage or Usage(0)),
    }


def _from_plain(plain: Mapping[str, Any]) -> tuple[Items, Answer]:
    kinds = {each.__name__: each for each in (Refused, Failed)}
    captions = Answer(
        Texts.of(plain["texts"], plain["longest"]),
        Conditions(
            {name: np.array(rows, dtype) for name, (dtype, rows) in plain["conditions"].items()}
        ),
        {i: kinds[kind](**fields) for i, kind, fields in plain["missing"]},
        Usage(*plain["usage"]),
    )
    return np.array(plain["items"]), captions


class CaptionThenDrawSettings(Settings):
    """Settings of `caption_then_draw`.

    Attributes:
        captions: a generator of texts (`chat`, `causal_lm`, `masked_lm` or `public_texts`), written
            as under `api`; a `price` in it is for captions alone.
        draw: a generator that draws images from prompts, written as `captions` is. `{caption}` in
            its `prompts` becomes the caption; without `prompts` the caption alone is the prompt.
    """

    captions: PartSpec
    draw: PartSpec


class CaptionThenDraw(OfSeveral):
    """For image models that draw well but vary images badly: captions evolve, and are drawn.

    RANDOM_API writes a caption and draws it; VARIATION_API varies the parent's caption and draws
    that anew.

    `captions` is a generator of texts, `draw` one that draws images from prompts, each written as
    under `api`. In the `prompts` of `draw`, which may be left out, `{caption}` becomes the caption.

    Samples carry their caption as the condition `caption`, and the conditions of the generator of
    captions as `captions.prompt` and so on. Degree 0 is the parent itself and makes no call.
    Captions that wait for their drawing are noted, so that a run that is killed does not pay for
    them again.

    Args:
        settings: see `CaptionThenDrawSettings`.

    Raises:
        RecipeError: a setting is wrong, or a generator cannot do its part.
    """

    Settings = CaptionThenDrawSettings
    info = PluginInfo()

    def __init__(self, **settings: Any) -> None:
        config = read_settings(CaptionThenDrawSettings, settings, "caption_then_draw")
        if config.captions.settings.get("batch") is not None:
            raise RecipeError(
                "captions.batch is given, and a batch of captions cannot be noted beside their "
                "drawings, so that a run that is killed would pay for it again: leave it out."
            )
        self._captions = _member("captions", config.captions, config.captions.settings, Texts.noun)
        self._draw = _member("draw", config.draw, _drawer_settings(config.draw), Images.noun)
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
        return self._answer(
            request, replace(request, conditions=self._captions.own(request.conditions))
        )

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
                "The parents carry no captions: caption_then_draw varies only what it drew."
            )
        texts = [str(text) for text in request.conditions[CAPTION]]
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
                f"{words} holds other captions than when the run began: restore it, or start a new "
                "run."
            )

    def _answer(self, request: Request, for_captions: Request) -> Answer:
        """Answer `request`: write captions as `for_captions` asks, and draw them."""
        captions, job = self._write(for_captions)
        drawable = [i for i in range(len(request)) if i not in captions.missing]
        usage = replace(captions.usage or Usage(0), images=0)
        texts = np.array(strings_of(captions.samples), dtype=np.str_)
        conditions = Conditions({**self._captions.with_prefix(captions.conditions), CAPTION: texts})
        if not drawable:
            return Answer(
                Images.stack([], self.info.shape or (1, 1, 1)), conditions, captions.missing, usage
            )
        labels = tuple(request.labels[i] for i in drawable)
        seeds = mix(request.seeds[drawable])  # others than the captions'
        prompts = [
            str(prompt).replace(PLACE, caption)
            for prompt, caption in zip(
                self._draw.api.draw_conditions(labels, seeds)[PROMPT], texts.tolist(), strict=True
            )
        ]
        images = self._draw.ask(
            RandomRequest(labels, seeds, Conditions({PROMPT: np.array(prompts, np.str_)}), job)
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
        note = (
            None if can.deterministic else CaptionNote.of(request.job)
        )  # equal ones can be asked for again
        parts = [] if note is None else note.parts
        noted_items = {int(item) for items, _ in parts for item in items}
        for items in cut(
            request,
            np.array([i for i in range(len(request)) if i not in noted_items], np.int64),
            can,
        ):
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
        return (
            "the caption: "
            f"{self._captions.api.describe_degree(degree, iteration) or 'varied by it'}; drawn anew"
        )

    def describe_answers(self) -> str:
        """Return what the generator of captions tells of its answers."""
        return self._captions.api.describe_answers()

    @classmethod
    def look(cls, settings: Mapping[str, Any]) -> Iterator[Finding]:
        """See `Generator.look`: at the endpoint of each part that has one."""
        config = read_settings(CaptionThenDrawSettings, settings, "caption_then_draw")
        specs = [
            (config.captions, config.captions.settings),
            (config.draw, _drawer_settings(config.draw)),
        ]
        yield from look_at_each("caption_then_draw", specs)


def _member(name: str, spec: PartSpec, settings: dict[str, Any], noun: str) -> Member:
    """Construct a generator that a recipe names.

    Raise RecipeError unless it makes `noun`, texts or images.
    """
    member = Member.of(name, spec, f"{name}: {spec.kind}", settings)
    its = modality(member.info.modality).noun
    if its != noun:
        raise RecipeError(f"{name}: {spec.kind} makes {its}: name one that makes {noun}.")
    return member


def _drawer_settings(spec: PartSpec) -> dict[str, Any]:
    """Return the settings of `draw`.

    If they have no prompts, the caption alone is the prompt.
    """
    require("pe.adapters", spec.kind)
    if "prompts" not in fields_of(settings_of(load("pe.adapters", spec.kind))):
        raise RecipeError(
            f"draw: {spec.kind} draws from no prompts: name a text-to-image generator."
        )
    settings = {"prompts": PLACE} | spec.settings
    for text in _texts(settings["prompts"]):
        if PLACE not in text:
            raise RecipeError(
                f"draw.prompts: '{text}' has no {PLACE}: say where the caption stands, or omit "
                "prompts."
            )
    return settings


def _texts(setting: Any) -> list[str]:
    """Return the texts of a setting, which holds one, a list, or either for each label."""
    if isinstance(setting, dict):
        setting = list(setting.values())
    return (
        [text for each in setting for text in _texts(each)]
        if isinstance(setting, list)
        else [str(setting)]
    )
