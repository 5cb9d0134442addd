"""A start near the private texts: they vote once, under DP, for values of public attributes.

After DP-KPS (Wu et al. 2025) and MAPLE (Xie et al. 2026), which draw a language model's prompts
from a DP histogram.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from adapters.chat import Chat, ChatSettings
from adapters.local_text import CausalLM, CausalSettings
from adapters.public_files import paths_of, samples_of
from adapters.text_prompts import Asking
from adapters.text_settings import PROMPTED
from adapters.trained.fit import Fit, FittedMethod, load_json, noisy_sums, reading
from adapters.trained.ranges import split
from pe.data.arrays import Float64Array, Int64Array
from pe.data.samples import Array, Shape, slices
from pe.data.texts import Texts
from pe.errors import RecipeError
from pe.fit.trainer import FIT, DryRun, FitTerms, PrivateRecords
from pe.plugins.embed import embed_block, try_embedding
from pe.plugins.protocols import Embedding, PluginInfo, info_of
from pe.plugins.settings import Count, Settings
from pe.plugins.specs import PluginSpec, construct
from pe.privacy.noise import Noise
from pe.privacy.release import Release

Places = Int64Array

_MODEL = "attributes.json"
_COUNTS = "attributes"
_PUBLIC = "encoder.public"  # the encoder knows its public texts again

# Length of a text's vector in whole numbers.
GRID = 2**12

# A text of one value votes for another exp((their likeness − 1)/ASTRAY) times as often as for its
# own.
ASTRAY = 0.3

# Share of ε that the votes for attributes get where the recipe names none
# (benchmarks/results/text_start.md).
SHARE = 0.4

# Rounds of expectation and maximisation.
ROUNDS = 500


_VALUES = """\
  prompts: "Write a short text on {{topic}}."\t# public: it names each attribute, and {{label}} where texts have labels
  attributes: {{topic: [sports, politics, health]}}\t# public: values for the private texts to vote for; list many
"""  # noqa: E501


def noisy_attribute_votes(
    records: PrivateRecords,
    votes: Places,
    classes: int,
    cells: int,
    release: Release,
    noise: Noise,
) -> Places:
    """Return noisy votes by label, int64 (classes, cells), in grid steps.

    It has the guarantee of `noisy_sums`.

    `votes`, (n, k), holds the different cells that each record votes for, and −1 for none: each has
    1/√k of a vote.
    """

    def vector(own: Places) -> Float64Array:
        whole = np.zeros(cells)
        whole[own[own >= 0]] = 1 / np.sqrt(len(own))
        return whole

    own = replace(records, samples=votes)
    return np.asarray(noisy_sums(own, classes, vector, cells, release, noise)[0])


class VoteSettings(Settings):
    """Settings of a start by votes.

    Attributes:
        encoder: the embedding under which a private text votes for the nearest values of each
            attribute; it runs here; None: the run's own.
        votes: how many values of each attribute a text votes for.
    """

    encoder: PluginSpec | None = None
    votes: Count = 1


class VotesForAttributes(FittedMethod):
    """A generator that draws each attribute's values as often as the private texts voted for them.

    A text votes for the values that are nearest to it under the encoder; counts by label are
    released once, with noise. Variations keep their attributes.
    """

    info: PluginInfo
    _asking: Asking
    _config: Any

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.info = replace(self.info, by_label=True)

    def _values(self, classes: Sequence[str]) -> list[list[list[str]]]:
        """Return the values of each attribute, for each label, as texts."""
        attributes = self._asking.prompts.attributes.values()
        return [
            [[text.replace("{label}", label) for text in one.of_label(label)] for label in classes]
            for one in attributes
        ]

    def _check(self, terms: FitTerms) -> None:
        if not self._asking.prompts.attributes:
            raise RecipeError(
                "`api.attributes` is missing. List values, such as topics, for the private texts "
                "to vote for."
            )
        # Lists may differ between labels.
        most = max(map(len, chain.from_iterable(self._values(terms.classes))))
        if self._config.votes >= most:
            raise RecipeError(
                f"`api.votes` is {self._config.votes}, but no attribute has more than {most} "
                "values, so votes would choose nothing. List more values, or let a text vote for "
                "fewer."
            )
        wordings = str((self._config.prompts, self._config.wordings, self._config.expansion))
        for name, values in self._asking.prompts.attributes.items():
            if f"{{{name}}}" not in wordings:
                raise RecipeError(
                    f"`api.attributes.{name}` is in no prompt. Write {{{name}}} there, or remove "
                    "it."
                )
            for label in terms.classes:
                listed = values.of_label(label)
                repeated = [one for i, one in enumerate(listed) if one in listed[:i]]
                if repeated:
                    raise RecipeError(
                        f"`api.attributes.{name}` lists '{repeated[0]}' more than once. List each "
                        "value once."
                    )

    def _check_encoder(self, terms: FitTerms) -> None:
        # Private texts are embedded by it, so it must not send them anywhere.
        encoder = info_of(self._encoder(terms))
        if encoder.hosts != ():
            hosts = ", ".join(encoder.hosts or ["hosts that it does not declare"])
            raise RecipeError(
                f"`api.encoder` would send private texts to {hosts}. Use one that runs here."
            )
        if encoder.modality != self.info.modality:
            raise RecipeError(f"`api.encoder` embeds {encoder.modality}. Use an encoder of texts.")

    def _encoder(self, terms: FitTerms) -> Embedding:
        spec: PluginSpec | None = self._config.encoder or terms.embedding
        if spec is None:
            raise RecipeError(
                "`api.encoder` is missing, and the run's embedding is an object. Name an encoder "
                "of texts."
            )
        encoder: Embedding = construct("pe.embeddings", spec.kind, spec.settings)
        return encoder

    def public_paths(self) -> tuple[Path, ...]:
        """Return the files of the recipe's encoder, which must hold no private text."""
        return paths_of(self._own_encoder)

    def public_samples(
        self,
        shape: Shape,
        rule: str | None,
    ) -> Iterator[tuple[str, Array]]:
        """Yield the samples of the recipe's encoder: see `ReadsPublicSamples`."""
        return samples_of(self._own_encoder, shape, rule)

    @property
    def _own_encoder(self) -> list[Embedding]:
        """The encoder that the recipe names, if it names one."""
        spec: PluginSpec | None = self._config.encoder
        return [] if spec is None else [construct("pe.embeddings", spec.kind, spec.settings)]

    def _fit(self, fit: Fit) -> None:
        terms = fit.terms
        values = self._values(terms.classes)
        self._check(terms)
        self._check_encoder(terms)
        # Vectors of norm 1 with no number below 0, so that replacing one moves the sum by √2.
        release = fit.sum(_COUNTS, sensitivities=(1.0, 2**0.5))
        fit.begin()
        ends = np.cumsum([0, *(max(map(len, lists)) for lists in values)])
        encoder = self._encoder(terms)
        try_embedding(encoder, Texts, terms.shape)
        vectors = [[_embed(encoder, Texts.of(texts)) for texts in of_label] for of_label in values]

        def draw(records: PrivateRecords, noise: Noise) -> Places:
            votes = _votes(encoder, records, vectors, ends[:-1], self._config.votes)
            return noisy_attribute_votes(
                records, votes, len(terms.classes), int(ends[-1]), release, noise
            )

        noisy = fit.release(release, draw) / release.grid
        deviation = release.noise_multiplier * release.sensitivity
        model = {}
        counts = np.split(noisy, ends[1:-1], axis=1)
        for name, own, texts, of_label in zip(
            self._asking.prompts.attributes, counts, values, vectors, strict=True
        ):
            shares = map(_correct, _split(own, texts, deviation), of_label)
            model[name] = {
                label: dict(zip(of, one.tolist(), strict=True))
                for label, of, one in zip(terms.classes, texts, shares, strict=True)
            }
        (fit.folder / _MODEL).write_text(
            json.dumps(model, indent=1, ensure_ascii=False), encoding="utf-8"
        )

    def dry_run(self, terms: FitTerms, measured: bool = True) -> Sequence[DryRun]:
        """Measure how long embedding the texts takes: see `Rehearsing`.

        Made-up texts stand for the private ones, a tenth more than are declared.
        """
        if not measured:
            return []
        encoder = self._encoder(terms)
        values = self._values(terms.classes)
        texts = Texts.costliest(encoder.batch_size, terms.shape)
        _embed(encoder, texts)  # loads its vectors
        started = time.perf_counter()
        _embed(encoder, texts)
        seconds = (time.perf_counter() - started) * (
            1.1 * terms.declared_size / encoder.batch_size + 1
        )
        counts = len(terms.classes) * sum(max(map(len, lists)) for lists in values)
        return [DryRun(f"{FIT}{_COUNTS}", 1, seconds, counts, memory=None)]

    def load(self, folder: Path) -> None:
        """Draw by the shares in `folder` from now on.

        Raise RecipeError if there are none, or they are damaged.
        """
        prompts = self._asking.prompts
        with reading(folder, "shares of attributes"):
            model: Mapping[str, Any] = load_json(folder / _MODEL)
            for name, values in prompts.attributes.items():
                for label, shares in model[name].items():
                    if [*shares] != [
                        text.replace("{label}", label) for text in values.of_label(label)
                    ]:
                        raise ValueError("other values")
                prompts.shares[name] = {
                    label: _ends([*shares.values()]) for label, shares in model[name].items()
                }


def _votes(
    encoder: Embedding,
    records: PrivateRecords,
    vectors: list[list[Float64Array]],
    starts: Places,
    count: int,
) -> Places:
    """Return the cells that each text votes for, int64 (n, attributes · count), below 0 for none.

    They follow from the text, its label and the values' public vectors: texts are embedded in
    blocks of one size, and vectors are of whole numbers, so that sums of their products are exact
    in any order.
    """
    places = np.full((len(records.samples), len(vectors) * count), -1, np.int64)
    for i, text in enumerate(_embed(encoder, Texts(records.samples))):
        if not np.isfinite(text).all():
            continue
        for j, (start, of_label) in enumerate(zip(starts, vectors, strict=True)):
            likeness = of_label[records.labels[i]] @ text
            if likeness.max() == likeness.min():  # as under TF-IDF, if no word is shared
                continue
            nearest = np.argsort(-likeness, kind="stable")[:count]
            places[i, j * count : j * count + len(nearest)] = start + nearest
    return places


def _embed(embedding: Embedding, texts: Texts) -> Float64Array:
    """Return the texts' vectors in whole numbers, float64 (n, d), NaN where embedding fails.

    Their length is about GRID.

    They are embedded in blocks of one size, the last one filled up with empty texts.
    """
    count = len(texts)
    if not count:
        return np.zeros((0, 0))
    size = embedding.batch_size
    padded = np.concatenate([texts.array, np.zeros(-count % size, texts.array.dtype)])
    blocks = [embed_block(embedding, Texts(padded[part])) for part in slices(count, size)]
    vectors = np.concatenate(blocks)[:count].astype(np.float64)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(np.rint(vectors * (GRID / np.maximum(norms, 1e-12))))


def _split(
    counts: Float64Array,
    values: list[list[str]],
    deviation: float,
) -> list[Float64Array]:
    """Return each label's counts of its values, none below 0, from noisy counts (labels, values).

    Where all labels have the same values, a label's counts are drawn to those of all; see `split`.
    """

    def parts(some: Float64Array) -> Float64Array:
        return split(some, np.maximum(some.sum(axis=1), deviation), deviation)

    if all(of == values[0] for of in values):
        return list(parts(counts[:, : len(values[0])]))
    return [parts(own[None, : len(of)])[0] for own, of in zip(counts, values, strict=True)]


def _correct(votes: Float64Array, vectors: Float64Array) -> Float64Array:
    """Return the shares of values that explain the votes best.

    It is assumed that some texts vote for a value that is like their own (ASTRAY).

    By expectation and maximisation from even shares (Richardson 1972; Lucy 1974). Post-processing.
    """
    whole = np.nan_to_num(vectors)  # nobody votes for a value without a vector
    chances = np.exp(whole @ whole.T / (GRID**2 * ASTRAY))
    chances /= chances.sum(axis=1, keepdims=True)  # row: a text's value; column: that of its vote
    shares = np.full(len(votes), 1 / len(votes))
    for _ in range(ROUNDS):
        shares = shares * (chances @ (votes / (shares @ chances)))
        shares /= shares.sum()
    return shares


def _ends(shares: Sequence[float]) -> Float64Array:
    ends = np.cumsum(np.array(shares, np.float64))
    if not (np.diff(ends, prepend=0) >= 0).all():
        raise ValueError("shares below 0, or none")
    ends[-1] = np.inf
    return ends


class FittedChatSettings(ChatSettings, VoteSettings):
    """Settings of `fitted_chat`: those of `chat`, and of the votes."""


class FittedChat(VotesForAttributes, Chat):
    """As `chat`, but the private texts vote once, under DP, how often each attribute is drawn.

    Args:
        settings: see `FittedChatSettings`.

    Raises:
        RecipeError: a setting is wrong.
    """

    Settings = FittedChatSettings
    starter = Chat.starter.replace(PROMPTED, _VALUES)
    info = replace(
        Chat.info,
        machine_settings=(*Chat.info.machine_settings, _PUBLIC),
        fit_share=SHARE,
    )


class FittedCausalSettings(CausalSettings, VoteSettings):
    """Settings of `fitted_causal_lm`: those of `causal_lm`, and of the votes."""


class FittedCausalLM(VotesForAttributes, CausalLM):
    """As `causal_lm`, but the private texts vote once, under DP, how often each attribute is drawn.

    Args:
        settings: see `FittedCausalSettings`.

    Raises:
        RecipeError: a setting is wrong.
    """

    Settings = FittedCausalSettings
    starter = CausalLM.starter.replace(PROMPTED, _VALUES)
    info = replace(
        CausalLM.info,
        machine_settings=(*CausalLM.info.machine_settings, _PUBLIC),
        fit_share=SHARE,
    )
