"""The protocols of generators (RANDOM_API, VARIATION_API) and embeddings, and their values.

Any object with these methods serves; no base class is needed. docs/write-your-own.md shows how to
write one.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable
from urllib.parse import urlsplit

import numpy as np

from pe.data.arrays import Float32Array, Int64Array, UInt64Array
from pe.data.samples import Array, Conditions, Samples, Shape
from pe.errors import ContractError, check_list

Seeds = UInt64Array
Vectors = Float32Array

KINDS = ("text_in", "image_in", "text_out", "image_out")
"""The kinds of tokens."""

MOST = 10**12
"""The largest amount of anything (calls, images, tokens, megapixels, cost) for which one answer is
billed."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Usage:
    """The billed amounts of one or more answers.

    Attributes:
        calls: requests made.
        images: images made.
        tokens: all tokens; those that none of the four kinds below counts cost as much as the
            dearest kind.
        text_in: tokens of prompts.
        image_in: tokens of parents.
        text_out: tokens of text that the model wrote.
        image_out: tokens of images that the model made.
        megapixels: millions of pixels of the images made, as they were drawn.
        cost: the cost of all these amounts, if several generators have different prices; else 0.
    """

    calls: int = 1
    images: int = 0
    tokens: int = 0
    text_in: int = 0
    image_in: int = 0
    text_out: int = 0
    image_out: int = 0
    megapixels: float = 0.0
    cost: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        """The sum of both usages, amount by amount."""
        return Usage(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))

    def fill(self, default: int) -> Usage:
        """Replace impossible numbers: calls by 1, images by `default`, all others by 0."""
        calls, images, *tokens, megapixels, cost = astuple(self)
        counts = (count_of(calls, 1), count_of(images, default), *map(count_of, tokens))
        return Usage(*counts, *(float(_amount_of(each) or 0) for each in (megapixels, cost)))


NOTHING = Usage(0)


def count_of(value: object, unknown: int = 0) -> int:
    """Return an amount that an answer states, or `unknown` if it is no whole number in 0…MOST."""
    amount = _amount_of(value, whole=True)
    return unknown if amount is None else int(amount)


def _amount_of(value: object, whole: bool = False) -> float | None:
    """`value` if it is a number from 0 to MOST, and a whole one if `whole`.

    None for any other value.
    """
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(
        value, bool
    )
    if number and 0 <= value <= MOST and (not whole or value == int(value)):  # type: ignore[operator, call-overload]
        return value  # type: ignore[return-value]
    if value is not None:
        _log_once()
    return None


@cache
def _log_once() -> None:
    log.warning(
        "An answer states a usage that no request can have (not from 0 to %s): it counts as not "
        "stated.",
        MOST,
    )


def _keep_nothing(job: str) -> None:
    """Do nothing: outside of a run no id is durable."""


def _go_on() -> None:
    """Do nothing: outside of a run nothing stops a request."""


@dataclass
class JobNote:
    """A host's job for one request, noted so that a killed run does not pay for it twice.

    A generator whose host answers by jobs writes the job's id before it waits for the job. After a
    kill or a stop the same request comes with the same note, and the generator waits for that job
    in place of starting another. The run forgets a note when it has stored the request's answer.
    Outside of a run (`pe probe`) a note lasts for one request.

    Attributes:
        job: the id, or whatever else names the job to its host; empty if none was noted.
        calls: jobs that were started, or may have been; each may be billed.
        key: names the request in its run.
        keep: makes an id durable.
        check_stop: to be called again and again while a request waits; raises if the run is to
            stop.
    """

    job: str = ""
    calls: int = 0
    key: str = ""
    keep: Callable[[str], None] = _keep_nothing
    check_stop: Callable[[], None] = _go_on

    def write(self, job: str) -> None:
        """Note a job in place of any other. It is durable when this returns."""
        self.keep(job)
        self.job = job


@dataclass(frozen=True)
class Capabilities:
    """The limits and habits of a generator, by which the dispatcher cuts the work into requests.

    Attributes:
        max_chunk: most items one request may hold, ≥ 1.
        concurrency: requests that may run at once, ≥ 1.
        shares: what all items of one request must have in common: nothing, the condition (and the
            label), or the parent. In the last two cases all items of a RANDOM_API request have one
            drawn condition.
        degree: whether the variation degree is obeyed exactly, by wording, or not at all.
        deterministic: True if an item asked for again gets an equal sample, in whatever chunk it is
            asked for.
        one_by_one: True if the generator asks for the items of a request one by one, so that it
            cannot mix them up.
    """

    max_chunk: int = 1024
    concurrency: int = 1
    shares: Literal["nothing", "condition", "parent"] = "nothing"
    degree: Literal["exact", "wording", "none"] = "exact"
    deterministic: bool = True
    one_by_one: bool = False


@dataclass(frozen=True)
class PluginInfo:
    """A plug-in's declaration about itself, its attribute `info`.

    What it leaves out is reported as not declared.

    The class says what holds for all its objects; an object may know more, such as the host in its
    settings.

    Attributes:
        modality: the kind of samples that it makes or embeds: the name of an entry point of
            `pe.modalities`.
        hosts: other machines to which it sends samples, private or not; () for none; None if not
            declared.
        machine_settings: dotted keys that may change in a run: they concern the machine (device,
            batch size), or how samples are asked for, and not what the samples mean.
        code_settings: settings that name code to run; for a run that somebody else made they must
            be given again.
        schedules: settings that may be a list of one entry per iteration; a list of another length
            is refused.
        by_label: True if a new sample has the label that was asked for.
        distinct: the number of different new samples that a label can have, as in a pool; None if
            it has no limit.
        shape: (height, width, channels) of all the images that a generator makes; None if not
            declared.
        drawn: (height, width) at which a generator draws images, before it resizes them; None if
            not declared.
        kept: (height, width) of a copy of each image, kept to vary it (condition `drawn`); None if
            no copy is kept.
        tokens: the tokens billed for an average sample, as far as the recipe tells beforehand; None
            if unknown.
        degrees: variation degrees for a recipe that leaves them to the planner, one per useful
            iteration, widest first.
        anew: True if variations are drawn from scratch, of a varied caption, say. Their distance to
            the parent then does not tell whether the degree was heeded, so a run measures that only
            if told to.
        fitted_before: True for a `Trainer` that an earlier run fitted, so that no share of the
            budget is set apart.
        fit_share: the share of ε that a `Trainer` is fitted with where a recipe that evolves it
            names none; None: the recipe must name it.
        standard_inception: True for an embedding if distances between its vectors are FID and KID
            as published.

    Raises:
        ContractError: a text stands where a list of hosts or of settings is wanted.
    """

    modality: str = "images"
    hosts: tuple[str, ...] | None = None
    machine_settings: tuple[str, ...] = ()
    code_settings: tuple[str, ...] = ()
    schedules: tuple[str, ...] = ()
    by_label: bool = False
    distinct: int | None = None
    shape: tuple[int, int, int] | None = None
    drawn: tuple[int, int] | None = None
    kept: tuple[int, int] | None = None
    tokens: Usage | None = None
    degrees: tuple[float, ...] = (0.7, 0.6, 0.5, 0.4)
    anew: bool = False
    fitted_before: bool = False
    fit_share: float | None = None
    standard_inception: bool = False

    def __post_init__(self) -> None:
        for name in ("hosts", "machine_settings", "code_settings", "schedules"):
            check_list(f"PluginInfo.{name}", getattr(self, name), ContractError)

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """The hosts that are other machines: all but loopback addresses."""
        names = {host: urlsplit(f"//{host}").hostname or "" for host in self.hosts or ()}
        return tuple(
            host
            for host, name in names.items()
            if not re.fullmatch(r"localhost|127\.[\d.]+|::1", name)
        )


def info_of(plugin: object) -> PluginInfo:
    """The declaration of a plug-in, or of its class.

    Raises:
        ContractError: its `info` is no `PluginInfo`.
    """
    info = getattr(plugin, "info", PluginInfo())
    if not isinstance(info, PluginInfo):
        raise ContractError(f"The info of {plugin!r} is {info!r}: it must be a PluginInfo.")
    return info


@dataclass(frozen=True)
class RandomRequest:
    """RANDOM_API for one chunk of n items.

    Attributes:
        labels: the public label name of each item.
        seeds: uint64 (n,), one per item: all randomness of item i is from seeds[i], and none from
            the chunk it came in.
        conditions: n rows, which the generator's `draw_conditions` drew; no columns if it has no
            such method.
        job: for a generator whose host answers by jobs.
    """

    labels: tuple[str, ...]
    seeds: Seeds
    conditions: Conditions = field(default_factory=Conditions)
    job: JobNote = field(default_factory=JobNote)

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class VariationRequest:
    """VARIATION_API for one chunk of n items.

    Attributes:
        samples: the n parents.
        labels: the public label name of each item.
        conditions: the parents' conditions, n rows.
        seeds: uint64 (n,), one per item.
        degree: variation in [0, 1]; 0 = unchanged, 1 = as new.
        iteration: the t ≥ 1 whose offspring or lookahead these are, by which a generator may choose
            its settings. In a request after the run it is the last iteration; in one that only
            tries the generator it is 1.
        explores: True if the variations become S_t: a generator that asks several others may make
            some of them anew.
        job: for a generator whose host answers by jobs.
    """

    samples: Samples
    labels: tuple[str, ...]
    conditions: Conditions
    seeds: Seeds
    degree: float
    iteration: int = 1
    explores: bool = False
    job: JobNote = field(default_factory=JobNote)

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Refused:
    """The generator would not make this item (a content filter, say). An outcome, not an error.

    Attributes:
        reason: in the generator's words.
    """

    reason: str


@dataclass(frozen=True)
class Failed:
    """The generator could not make this item.

    Attributes:
        reason: in the generator's words.
        retryable: whether asking again may help.
        rejected: whether the request itself was rejected (too long, say), which says nothing of
            other requests. A run that has had answers goes on: after `evolution.attempts` the
            parent takes the place of a variation.
    """

    reason: str
    retryable: bool = True
    rejected: bool = False


@dataclass(frozen=True)
class Answer:
    """The answer to one chunk.

    Attributes:
        samples: the good items, in the request's order.
        conditions: one row per good item; without columns, variations inherit their parents'
            condition.
        missing: index in the request → why that item has no sample.
        usage: what is billed for it; None counts as one call and as many images as there are
            samples.
    """

    samples: Samples
    conditions: Conditions = field(default_factory=Conditions)
    missing: Mapping[int, Refused | Failed] = field(default_factory=dict)
    usage: Usage | None = None

    @property
    def bill(self) -> Usage:
        """Return the billed usage, with defaults for amounts that are missing or impossible."""
        count = len(self.samples)
        return Usage(1, count) if self.usage is None else self.usage.fill(count)


@runtime_checkable
class GenerationAPI(Protocol):
    """A generator: RANDOM_API and VARIATION_API, synchronous, each answering one chunk."""

    @property
    def capabilities(self) -> Capabilities:
        """The limits that the dispatcher must respect."""

    def random_api(self, request: RandomRequest) -> Answer:
        """New samples, one per item of the request."""

    def variation_api(self, request: VariationRequest) -> Answer:
        """One variation of each parent of the request."""


@runtime_checkable
class Embedding(Protocol):
    """Maps samples to vectors in which nearness means likeness.

    It is handed private samples as arguments and must keep none.
    """

    @property
    def batch_size(self) -> int:
        """Samples per call, ≥ 1.

        Private samples come in padded blocks of exactly this many, so that a record's vector cannot
        depend on how many others there are.
        """

    def embed(self, samples: Samples) -> Vectors:
        """Return float32 (n, d): one row per sample, which depends on that sample alone."""


@dataclass(frozen=True)
class Finding:
    """One line of `pe doctor`.

    Attributes:
        state: whether all is well, something is not installed, or does not work.
        what: the thing that was examined, and what was found.
        remedy: what to do about it.
    """

    state: Literal["ok", "missing", "problem"]
    what: str
    remedy: str = ""


class Generator:
    """All that the engine may ask of a generator, with defaults: an optional base class.

    An object with the members of `GenerationAPI` alone serves as well: `as_generator` adds the
    defaults.

    Attributes:
        info: what the generator declares about itself.
        starter: lines of `api` after `kind` with which a recipe may begin, indented by two; None:
            `pe init` cannot write one. Before a comment stands a tab. {prompts} becomes a prompt;
            {size} and {channels} become those of the private images, {longest} the most bytes of a
            text.
        shows_examples: whether it shows a model the parents' condition EXAMPLES, and asks for one
            more.
    """

    info = PluginInfo()
    starter: ClassVar[str | None] = None
    shows_examples: ClassVar[bool] = False

    @property
    def capabilities(self) -> Capabilities:
        """The limits that the dispatcher must respect."""
        raise NotImplementedError

    def random_api(self, request: RandomRequest) -> Answer:
        """New samples, one per item of the request."""
        raise NotImplementedError

    def variation_api(self, request: VariationRequest) -> Answer:
        """One variation of each parent of the request."""
        raise NotImplementedError

    # Before there is a run. None of these asks a host for a sample.

    def check_labels(self, labels: Sequence[str]) -> None:
        """Raise RecipeError for a label of which it cannot make samples."""

    def check_machine(self) -> None:
        """Raise a PEError if this machine lacks a device, key or file that is needed."""

    def describe_degree(self, degree: float, iteration: int = 1) -> str:
        """Return what `degree`, in [0, 1], means, as a clause without a full stop.

        `iteration` is 1 or later.

        Raises:
            RecipeError: the degree cannot be obeyed.
        """
        return ""

    def describe_precision(self) -> str:
        """Return the precision of its arithmetic on this machine as one clause.

        Empty if it computes elsewhere.

        Raises:
            RecipeError: this machine lacks a device.
        """
        return ""

    @classmethod
    def look(cls, settings: Mapping[str, Any]) -> Iterator[Finding]:
        """Yield findings about the endpoint.

        They say if it can be reached and takes the key, which server it is, and what that server
        supports.

        `settings` are a recipe's `api`: the address, the credentials, and settings to compare with
        the server's model.
        """
        return iter(())

    def public_paths(self) -> tuple[Path, ...]:
        """See `ReadsPublicSamples`."""
        return ()

    def public_samples(self, shape: Shape, rule: str | None) -> Iterator[tuple[str, Array]]:
        """See `ReadsPublicSamples`."""
        return iter(())

    def labelled_public(self, shape: Shape, seed: int) -> tuple[Samples, Sequence[str]] | None:
        """Return the public samples that it was given, in the records' shape, and their labels.

        They are a control for an evaluation. None: it was given none, or none with labels.
        """
        return None

    # How work is cut into requests.

    def draw_conditions(self, labels: tuple[str, ...], seeds: Seeds) -> Conditions:
        """Draw the public condition of each of n new samples, a prompt for example.

        It depends on labels and seeds alone.

        Called for all samples of a population at once, so a generator may deal a list out to them
        without repeats.
        """
        return Conditions()

    @property
    def ways(self) -> tuple[Capabilities, ...]:
        """The capabilities of each way that an item may go.

        There are several where items are passed on to other generators. All items of a request go
        the same way, and requests are cut by the capabilities of that way.
        """
        return (self.capabilities,)

    def ways_of(self, conditions: Conditions, seeds: Seeds, explores: bool) -> Int64Array:
        """Return the way of each of n items, int64 (n,), an index into `ways`.

        `explores` as in `VariationRequest`.
        """
        return np.zeros(len(seeds), np.int64)

    @property
    def others(self) -> Sequence[PluginInfo]:
        """Return the declarations of the generators that it asks, in the order of `members_of`."""
        return ()

    # While requests are under way.

    def describe_wait(self) -> str:
        """Return why its requests wait now, as one clause without a full stop. Empty if none waits.

        Called about twice a second, from another thread than the requests'; must not block. The
        progress line and `pe view` show the reason, so it may hold only public values, such as a
        server's words.
        """
        return ""

    def describe_answers(self) -> str:
        """Return a sentence, of public quantities alone, on answers that it changed or passed over.

        Empty: none.
        """
        return ""


class _Own(Generator):
    """A user's object, with the defaults of `Generator` for what it lacks."""

    def __init__(self, plugin: object) -> None:
        self._plugin = plugin

    def __getattribute__(self, name: str) -> Any:
        plugin = object.__getattribute__(self, "_plugin")
        return getattr(plugin, name) if has(plugin, name) else object.__getattribute__(self, name)


def as_generator(api: GenerationAPI) -> Generator:
    """Return `api` if it is a `Generator`, else an object that adds the defaults to it.

    That object's class has the same name.
    """
    if isinstance(api, Generator):
        return api
    own = type(api)
    names = {"__module__": own.__module__, "__qualname__": own.__qualname__}
    generator: Generator = type(own.__name__, (_Own,), names)(api)
    return generator


def class_default(factory: object, name: str) -> Any:
    """Return the attribute `name` of a generator's class, or the default of `Generator`."""
    return getattr(factory, name, getattr(Generator, name))


def has(plugin: object, name: str) -> bool:
    """Return True if the plug-in has the attribute `name`. Does not compute a property."""
    try:
        inspect.getattr_static(plugin, name)
    except AttributeError:
        return hasattr(plugin, name)
    return True


@runtime_checkable
class ReadsPublicSamples(Protocol):
    """A generator, a fit or an embedding that reads public samples from files.

    Before the plug-in's first call, a run keeps a digest of these samples, and compares images with
    private records. It asks for them with public values alone: no record, and nothing computed from
    one, is handed to the plug-in.
    """

    def public_paths(self) -> tuple[Path, ...]:
        """The files and folders that hold the samples.

        Empty if the plug-in makes them itself. Reads no sample.
        """

    def public_samples(self, shape: Shape, rule: str | None) -> Iterator[tuple[str, Array]]:
        """Yield the name and the array of every sample, decoded to `shape` like private records.

        The name is for messages.

        `rule` says how a sample of another shape gets this one, as it does for private records
        (`PrivateSource.rule`, for images `resize`). None: all private records have the shape
        already, so the plug-in takes a rule of its own.

        Raises:
            PEError: a sample cannot be decoded, since none may be left out.
        """


@runtime_checkable
class HasWeights(Protocol):
    """An embedding's class that tells whether its usual weights are on this machine."""

    @classmethod
    def weights_here(cls) -> bool:
        """True if the usual weights are on this machine.

        Nothing is fetched, and no network is built.
        """
