"""`evolution: auto`, and the signal to noise of the votes, from public numbers alone.

docs/plan.md explains the rule; it was chosen on drawn digits and public pictures
(benchmarks/choice.py).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, erfc, exp, floor, inf, log10, pi, prod, sqrt
from typing import Any

from pe.data.samples import Samples
from pe.errors import RecipeError
from pe.planning.calls import IMAGES, may_try
from pe.planning.parts import declared, price_of
from pe.planning.releases import lay_out, planned_releases
from pe.plugins.protocols import PluginInfo, info_of
from pe.plugins.settings import read_settings
from pe.private.source import RECORD, PrivateSource
from pe.recipe.page import page
from pe.recipe.schema import Evolution, Recipe
from pe.steps import Plan, Step

MOST_NOISE = 0.5
"""The largest share of the parents' weight that may be noise without a warning, if several votes
follow each other."""
ENOUGH_ONCE = 0.25
"""Ratio of an average candidate's votes to the noise on it, from which a run's only vote brings no
warning: the number that the planner aims at (SIGNAL_ONCE), and that was tried
(benchmarks/results/choice.md)."""
FEW = 5.0
"""Ratio of a label's records to the noise of one histogram with the whole budget, below which
evolving drawn digits gave nothing better than un-evolved samples (benchmarks/results/choice.md)."""
MANY_NEIGHBORS = 32
"""The most votes per record that a warning proposes. The planner chooses no more."""


@dataclass(frozen=True)
class Signal:
    """Signal and noise of an iteration's histogram, if the declared records spread evenly."""

    candidates: int  # members of S_{t-1}
    noise_multiplier: float  # standard deviation of the noise, over the sensitivity
    # standard deviation of the noise on a candidate, in votes; `threshold`, H, is in votes, too
    sigma: float
    threshold: float
    votes: float | None  # votes per candidate, over all labels; None: no declared size
    # votes per candidate of each label; empty: not known label by label
    by_label: tuple[float, ...]
    once: bool  # True for the run's only vote

    @property
    def fewest(self) -> float | None:
        """Votes per candidate of the label that has the fewest."""
        return min(self.by_label, default=self.votes)

    @property
    def to_noise(self) -> float | None:
        """Votes per candidate of the label that has the fewest, over the noise.

        It is None if the size is not declared, or if there is no noise.
        """
        return None if self.fewest is None or not self.sigma else self.fewest / self.sigma

    @property
    def most_noise(self) -> float:
        """The largest noise share without a warning.

        It is MOST_NOISE, or for an only vote the share at ENOUGH_ONCE if that is larger.
        """
        enough = self.noise_share(ENOUGH_ONCE * self.sigma) if self.once else 0.0
        return max(MOST_NOISE, enough)

    def noise_share(self, votes: float) -> float:
        """Return the share of noise in the weight by which parents are chosen, in [0, 1].

        It is the expected weight E[max(noise − H, 0)] of a candidate without votes, over the weight
        at `votes`.
        """
        if not self.sigma:
            return 0.0
        empty = _excess(self.threshold / self.sigma)
        return empty / _excess((self.threshold - votes) / self.sigma) if empty else 0.0

    def votes_needed(self) -> float:
        """Return the least votes per candidate without a warning."""
        low = 0.0
        high = abs(self.threshold) + 2 * self.sigma
        most = self.most_noise
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self.noise_share(middle) > most else (low, middle)
        return high

    def passing(self, votes: float) -> float:
        """Return the number of candidates expected over the threshold if each has `votes`."""
        if not self.sigma:
            return float(self.candidates) * (votes > self.threshold)
        return self.candidates * _tail((self.threshold - votes) / self.sigma)


def _tail(x: float) -> float:
    """P(Z > x) of a standard normal Z."""
    return erfc(x / sqrt(2)) / 2


def _excess(x: float) -> float:
    """E[max(Z − x, 0)] of a standard normal Z. 0 from x = 8 on, where it is below 1e-16."""
    return max(exp(-x * x / 2) / sqrt(2 * pi) - x * _tail(x), 0.0) if x < 8 else 0.0


def votes_cast(records: int, units: int | None, neighbors: int) -> float:
    """Return an upper bound on the sum of all votes that the records can cast.

    A unit's votes for k candidates have L2 norm 1, so they sum to at most √k.
    """
    return sqrt(records * min(units or records, records) * neighbors)


def whole_noise(signals: Sequence[Signal]) -> float:
    """Return σ, in votes, of one histogram that has the budget of all. 0 without votes or noise."""
    squares = [signal.sigma**2 for signal in signals]
    return 1 / sqrt(sum(1 / square for square in squares)) if squares and all(squares) else 0.0


def signal_of(recipe: Recipe, plan: Plan, step: Step, candidates: Sequence[int]) -> Signal:
    """Return the signal of an iteration's histogram.

    `candidates` are the members of S_{t-1} per label. Labels have records in the recipe's public
    proportions; if these are estimated, only the sum of votes is known.
    """
    release = step.release
    evolution = recipe.evolution
    records = recipe.private.declared_size
    votes: float | None = None
    by_label: tuple[float, ...] = ()
    if records is not None:
        cast = votes_cast(records, recipe.private.declared_units, evolution.neighbors)
        votes = cast / sum(candidates)
        # Sizes that are estimated are not known before a release, so the labels' votes are not.
        if evolution.estimate_label_sizes is None:
            sizes = evolution.label_sizes
            shares = [1.0 if sizes == "equal" else sizes[name] for name in plan.classes]
            by_label = tuple(
                cast * share / sum(shares) / m for share, m in zip(shares, candidates, strict=True)
            )
    return Signal(
        candidates=sum(candidates),
        noise_multiplier=release.noise_multiplier,
        sigma=release.sensitivity * release.noise_multiplier,
        threshold=step.threshold,
        votes=votes,
        by_label=by_label,
        once=len(plan.steps) == 1,
    )


def signal_warnings(recipe: Recipe, plan: Plan, signals: Sequence[Signal]) -> list[str]:
    """Say what is wrong with votes, noise and threshold, a sentence each.

    The worst iteration speaks for all.
    """
    pairs = [(signal, signal.votes) for signal in signals if signal.votes is not None]
    if not pairs:
        return []
    # The noise comes first: where it is too large, what the threshold does means nothing.
    sentence = _noise_warning(recipe, plan, signals)
    if sentence:
        return [sentence]
    labels = len(plan.classes)
    neighbors = recipe.evolution.neighbors
    lowest, votes = min(pairs, key=lambda pair: pair[0].passing(pair[1]))
    if lowest.threshold > 0 and lowest.passing(votes) < labels:
        most = floor(lowest.candidates * votes / lowest.threshold) // labels * labels
        remedy = f", or take a population of at most {most}" if most >= labels * neighbors else ""
        return [
            f"Hardly any candidate will be over the threshold of {lowest.threshold:.3g} votes, "
            f"with {votes:.2g} votes per candidate and noise of σ = {lowest.sigma:.3g}: lower the "
            f"threshold{remedy}."
        ]
    weak = {
        plan.classes[label]
        for signal in signals
        for label, each in enumerate(signal.by_label)
        if signal.noise_share(each) > signal.most_noise
    }
    return [
        f"Label '{name}' has too few private records for the noise, by evolution.label_sizes and "
        "declared_size: its parents will be chosen by noise, mostly."
        for name in plan.classes
        if name in weak
    ]


@dataclass(frozen=True)
class _Lack:
    """Factors by which a candidate and a label have too few votes beside the noise.

    Each is 1 or less if enough.

    `each` is the votes of a label at q = 1, `sigma` the noise of one histogram with the budget of
    all.
    """

    candidate: float
    label: float
    each: float
    sigma: float

    @classmethod
    def of(cls, recipe: Recipe, labels: int, signals: Sequence[Signal]) -> _Lack:
        private = recipe.private
        each = votes_cast(private.declared_size or 0, private.declared_units, 1) / labels
        sigma = whole_noise(signals)
        candidate = max(signal.votes_needed() / signal.votes for signal in signals if signal.votes)
        return cls(candidate, FEW * sigma / each, each, sigma)

    @property
    def factor(self) -> float:
        """Factor by which there are too few votes, in all."""
        return max(self.candidate, self.label)

    def __bool__(self) -> bool:
        return self.factor > 1 + 1e-9


def _noise_warning(recipe: Recipe, plan: Plan, signals: Sequence[Signal]) -> str:
    """Return a sentence on votes that are too few for the noise, or an empty text.

    It names each single change that would do.
    """
    labels = len(plan.classes)
    lack = _Lack.of(recipe, labels, signals)
    if not lack:
        return ""
    worst = max(signals, key=lambda signal: signal.noise_share(signal.votes or 0.0))
    # What a label lacks, no choice of candidates can give.
    if lack.label > 1:
        what = (
            f"A label gets {lack.each:.2g} votes, fewer than {FEW:g} times the noise of "
            f"{lack.sigma:.2g} that one histogram with the whole budget has: samples that were "
            "never voted for have been as good (docs/plan.md), and they need no budget"
        )
    else:
        what = (
            f"A candidate gets {worst.votes:.2g} votes on average beside noise of "
            f"{worst.sigma:.2g}: about {worst.noise_share(worst.votes or 0.0):.0%} of the weight "
            "by which parents are chosen is noise"
        )
    for_what = " for votes to begin to help" if lack.label > 1 else ""
    return (
        f"{what}. Any one of these would be enough{for_what}: "
        f"{', '.join(_remedies(recipe, plan, signals, lack))}."
    )


def _remedies(recipe: Recipe, plan: Plan, signals: Sequence[Signal], lack: _Lack) -> list[str]:
    """Return the single changes with which votes are enough.

    These are the least ε and number of records, and the most labels and candidates. Fewer labels
    have as many candidates each. ε is left open where it takes a fit to tell.
    """
    labels = len(plan.classes)
    private = recipe.private
    neighbors = recipe.evolution.neighbors
    words = []
    if recipe.privacy.epsilon is not None and not plan.fit:
        lowest = bisect_right(_EPSILONS, recipe.privacy.epsilon)
        place = bisect_left(
            _EPSILONS,
            True,
            lowest,
            key=lambda epsilon: not _lack_at(epsilon, recipe, labels, signals),
        )
        words += [f"ε = {epsilon:g}" for epsilon in _EPSILONS[place : place + 1]]
    fewer = floor(labels / lack.factor)
    if fewer >= 1:
        words.append(f"{fewer} label{'s' if fewer > 1 else ''}")
    if lack.label <= 1:  # else no number of candidates would do
        limits = (
            signal.candidates * (signal.votes or 0.0) / signal.votes_needed() for signal in signals
        )
        limit = floor(min(limits)) // labels * labels
        more = ceil(neighbors * lack.candidate**2)  # votes grow with √q
        if limit >= labels * neighbors:
            words.append(f"a population of at most {limit:,}")
            if (
                more <= MANY_NEIGHBORS
                and 2 * more <= min(signal.candidates for signal in signals) // labels
            ):
                words.append(f"evolution.neighbors: {more}")
    return [*words, records_in_words(private, lack.factor)]


_EPSILONS = [float(f"{digits}e{power}") for power in range(-3, 1) for digits in range(10, 100)]
"""ε in two digits, from 0.01 to 99."""


def _lack_at(epsilon: float, recipe: Recipe, labels: int, signals: Sequence[Signal]) -> _Lack:
    """Return the lack of votes if the run had another ε."""
    privacy = recipe.privacy.model_copy(update={"epsilon": epsilon})
    steps = lay_out(recipe.model_copy(update={"privacy": privacy})).steps
    sigmas = [step.release.sensitivity * step.release.noise_multiplier for step in steps]
    changed = [
        replace(signal, sigma=sigma, threshold=step.threshold)
        for signal, sigma, step in zip(signals, sigmas, steps, strict=False)
    ]
    return _Lack.of(recipe, labels, changed)


def records_in_words(private: PrivateSource, factor: float) -> str:
    """Return `factor` times as many records, of as many times the units, in words."""
    units = (
        f" of {_round_up(private.declared_units * factor):,} units"
        if private.declared_units
        else ""
    )
    return f"{_round_up((private.declared_size or 0) * factor):,} records{units}"


def _round_up(number: float) -> int:
    """Return the number rounded up to two digits, or to a whole number."""
    unit: int = 10 ** max(floor(log10(number)) - 1, 0)
    return ceil(number / unit) * unit


# `evolution: auto`.


SIGNAL_ONCE = 0.25
SIGNAL = 0.75
"""Ratio of an average candidate's votes to the noise on it that is wanted: in a run's only vote,
which needs many candidates to choose_numbers from; and in each of several votes."""
BLIND = 2.5
ONCE = 0.5
AGAIN = 1.0
"""H, in standard deviations of the noise. BLIND: the generator does not make what a label names, so
most candidates are of another label. ONCE: it does, and there is one vote. AGAIN: it does, and
there are several votes, or a single one whose choice could be varied, and is not."""
SHOWN = 0.5
SHOWN_WEAK = 0.75
MOST_SHOWN = 0.25
MOST_BY_LABEL = 0.5
"""Share of a pool's candidates that is taken, each once: MOST_BY_LABEL if the pool knows the
labels. Else SHOWN over the number of labels, or SHOWN_WEAK where noise leaves fewer candidates than
the pool has, and at most MOST_SHOWN. At least LEAST of a label are taken."""
NEIGHBORS = (1, 2, 4, 8, 16, 32)
MEMBERS = 1000
DEALT = 2000
FEWEST = 150
SPARE = 50
LEAST = 10
"""Numbers of candidates of a label. The most: MEMBERS; DEALT from a pool, where they cost nothing.
The least: FEWEST for several votes; SPARE for several votes if limits leave few images and labels
are known; LEAST in any case."""
GROWTH = 1.5
"""Ratio of each iteration's share of the budget to the share of the iteration before."""
MORE = 2.5
LARGEST = Samples.largest
"""Images at the end: MORE for each record, at most the modality's `largest`. Where they cost
something, one for each record."""
COUNTED = 0.05
"""Share of ε for noisy label counts, where a modality's labels are counted by default."""
FINAL_SHARE = 0.3
SLACK = 0.05
"""Shares of the images that limits allow: FINAL_SHARE for S_T, if the chosen are varied; SLACK for
refused images."""


@dataclass(frozen=True)
class Choice:
    """A recipe whose evolution is complete, the values that were chosen, and why.

    A value is named by its key, such as `evolution.neighbors`.
    """

    recipe: Recipe
    values: dict[str, Any]
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Numbers:
    """The numbers that the rule goes by, all of them public."""

    labels: int  # the number of labels
    records: int  # the declared size
    units: int  # privacy units, of which each casts votes of L2 norm 1
    sigma: float  # noise on a candidate if one histogram has the whole budget, in votes
    # True if more iterations mean more noise in each; False where the recipe gives the noise
    growing: bool
    images: float  # the number that may be asked for in all; infinite without a limit
    is_paid: bool  # True if an image costs something
    degrees: tuple[float, ...]  # the generator's, widest first
    by_label: bool  # True if the generator makes what a label names
    # number of different new samples of a label that the generator has; None: it makes ever new
    # ones
    distinct: int | None
    # k, as the recipe gives it: variations of each candidate; a list has one k for each iteration
    lookahead: int | list[int] = 0
    largest: int = LARGEST  # the most images at the end
    # share of the images for the end; 0 where one vote's choice is not varied
    final_share: float = FINAL_SHARE

    def noise(self, iterations: int) -> float:
        """Return σ, in votes, of each of `iterations` histograms that share the budget equally."""
        return self.sigma * (sqrt(iterations) if self.growing else 1)

    def each(self, iterations: int) -> int:
        """Return the images that a candidate takes in all iterations.

        These are the candidate itself and its lookahead's variations.
        """
        ahead = (
            self.lookahead if isinstance(self.lookahead, list) else [self.lookahead] * iterations
        )
        return iterations + sum(ahead)

    def limit(self, iterations: int) -> float:
        """Return how many candidates of a label the images allow in each iteration."""
        return self.images * (1 - self.final_share) / (max(self.each(iterations), 1) * self.labels)

    @property
    def shown(self) -> float:
        """The share of a pool's candidates that is taken, each once."""
        if self.by_label:
            return MOST_BY_LABEL
        is_weak = self.distinct is not None and self.members(1, NEIGHBORS[-1]) < min(
            self.distinct,
            DEALT,
        )
        return min((SHOWN_WEAK if is_weak else SHOWN) / self.labels, MOST_SHOWN)

    @property
    def fewest(self) -> int:
        """Candidates of a label that each of several votes needs, if images are few."""
        return SPARE if self.by_label or self.labels == 1 else FEWEST

    def votes(self, neighbors: int) -> float:
        """Return how many votes the records of a label cast."""
        return votes_cast(self.records, self.units, neighbors) / self.labels

    def members(self, iterations: int, neighbors: int) -> int:
        """Return the number of candidates of a label that have the wanted signal."""
        noise = self.noise(iterations)
        signal = SIGNAL if iterations > 1 else SIGNAL_ONCE
        return int(self.votes(neighbors) / (signal * noise)) if noise else LARGEST

    def affordable(self, iterations: int, neighbors: int) -> int:
        """Return how many candidates of a label have the wanted signal, exist, and fit limits."""
        most = MEMBERS if self.distinct is None else min(self.distinct, DEALT)
        return int(min(self.members(iterations, neighbors), most, self.limit(iterations)))

    def iterations(self) -> int:
        """Return T: the most iterations with enough candidates in each.

        There are no more than the generator has degrees.
        """
        most = len(self.degrees)
        free = replace(self, images=inf)
        enough = (t for t in range(most, 1, -1) if free.affordable(t, NEIGHBORS[-1]) >= FEWEST)
        return next((t for t in enough if self.limit(t) >= self.fewest), min(most, 1))


def choose_evolution(recipe: Recipe, api: object | None = None) -> Choice:
    """Fill in the unset evolution keys of a recipe. Explicit ones are kept.

    The `info` used is that of the generator `api`, or of the class that the recipe names.

    Raises:
        RecipeError: declared_size is missing, or declared_units where a unit may have several
            records.
        PrivacyError: no noise meets the budget.
    """
    if recipe.evolution.is_complete:
        return Choice(recipe, {}, ())
    explicit = recipe.evolution.own_values
    if recipe.privacy.schedule is not None:
        explicit = {"iterations": len(recipe.privacy.schedule)} | explicit
    info = declared("pe.adapters", recipe.api.kind) if api is None else info_of(api)
    if not info.degrees:  # its fit has done what votes could do
        explicit = {"iterations": 0} | explicit
    counted = _label_counts(recipe)
    explicit = counted | explicit
    with_counts = recipe.model_copy(
        update={"evolution": recipe.evolution.model_copy(update=counted)}
    )
    numbers = _numbers(with_counts, info, votes=explicit.get("iterations") != 0)
    whole = choose_numbers(numbers, explicit)
    choices = {
        f"evolution.{key}": value
        for key, value in whole.items()
        if key not in recipe.evolution.own_values
    }
    changes: dict[str, Any] = {"evolution": read_settings(Evolution, whole, "evolution")}
    if recipe.privacy.schedule is None and numbers.growing and whole["iterations"] > 1:
        choices["privacy.schedule"] = [round(GROWTH**t, 4) for t in range(whole["iterations"])]
        changes["privacy"] = recipe.privacy.model_copy(
            update={"schedule": choices["privacy.schedule"]}
        )
    reasons = _reasons(numbers, explicit, whole, recipe.private.modality.noun)
    return Choice(recipe.model_copy(update=changes), choices, reasons)


def _label_counts(recipe: Recipe) -> dict[str, float]:
    """Return the share of ε for noisy label counts, by key.

    It is empty unless the modality's labels are counted and the recipe says nothing of them.
    """
    private = recipe.private
    own = recipe.evolution.own_values
    is_open = (
        not own.keys() & {"label_sizes", "estimate_label_sizes"}
        and recipe.privacy.epsilon is not None
    )
    is_counted = private.modality.counts_labels and len(private.labels) > 1 and is_open
    return {"estimate_label_sizes": COUNTED} if is_counted else {}


def choose_numbers(numbers: Numbers, explicit: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of an evolution over these numbers.

    `explicit` ones stay as they are, and the others are chosen to fit them.

    An explicit population is one number: a list says how many iterations there are, so nothing is
    left open.
    """
    iterations: int = explicit.get("iterations", numbers.iterations())
    if not iterations:
        return {"iterations": 0, "population": _population(numbers, 0, 1)} | explicit
    degree = explicit.get(
        "degree",
        [0.0] if is_sparing(numbers, explicit) else _degrees(numbers.degrees, iterations),
    )
    if degree in (0, [0] * iterations):  # nobody is asked for a lookahead of copies
        numbers = replace(
            numbers,
            final_share=0.0 if iterations == 1 else numbers.final_share,
            lookahead=0,
        )
    neighbors: int = explicit.get(
        "neighbors",
        _neighbors(numbers, iterations, explicit.get("population")),
    )
    choices: dict[str, Any] = {
        "iterations": iterations,
        "population": _population(numbers, iterations, neighbors),
        "degree": degree,
        "lookahead": 0,
        "neighbors": neighbors,
        **({"selection": "systematic"} if iterations == 1 else {"keep": "winners"}),
    }
    threshold = _threshold(numbers, iterations)
    is_ranked = (
        explicit.get("selection", "rank") in ("rank", ["rank"]) and explicit.get("votes") != "raw"
    )
    if iterations == 1 and not any(numbers.degrees) and is_ranked:
        choices |= {"selection": "rank", "votes": "raw" if numbers.by_label else "smooth"}
        first = choices["population"][0] // numbers.labels
        threshold = 0.0
        choices["population"][1] = (
            max(int(first * numbers.shown), min(first, LEAST)) * numbers.labels
        )
    if "threshold" not in explicit:
        choices["threshold_sigmas"] = threshold
    return choices | explicit


def is_sparing(numbers: Numbers, explicit: dict[str, Any]) -> bool:
    """True if limits leave too few images for several votes that the records would allow.

    Then there is one vote, and its choice is not varied, so that all images are candidates.
    """
    rounds = explicit.get("iterations", 1)
    if (
        explicit.get("lookahead")
        or explicit.keys() & {"degree", "initial_variations"}
        or rounds != 1
    ):
        return False
    return numbers.iterations() == 1 < replace(numbers, images=inf).iterations()


def _threshold(numbers: Numbers, iterations: int) -> float:
    """Return H, in standard deviations of the noise."""
    if not numbers.by_label and (iterations == 1 or numbers.labels > 1):
        return BLIND
    if iterations > 1 or (any(numbers.degrees) and not numbers.final_share):
        return AGAIN
    return ONCE


def _neighbors(numbers: Numbers, iterations: int, population: int | None) -> int:
    """Return the least q with which a label has the most candidates at the wanted signal.

    It is at most half the number of the label's candidates. A generator that ignores labels is
    taken to make as many of each.
    """
    if population is None:
        members = {q: max(numbers.affordable(iterations, q), LEAST) for q in NEIGHBORS}
    else:
        members = dict.fromkeys(NEIGHBORS, population // numbers.labels)
    most = max(members.values())
    # one in so many candidates is of its own label
    of_label = 1 if numbers.by_label else numbers.labels
    fitting = [q for q in NEIGHBORS if q == 1 or 2 * q * of_label <= members[q]]
    return next((q for q in fitting if numbers.members(iterations, q) >= most), fitting[-1])


def _population(numbers: Numbers, iterations: int, neighbors: int) -> list[int]:
    """Return the sizes of S_0 … S_T: candidates, and last the data to share.

    If nothing is varied, the data exceed the candidates only where these come from a pool.
    """
    members = max(numbers.affordable(iterations, neighbors), neighbors, LEAST)
    most = (
        numbers.records
        if numbers.is_paid and numbers.final_share
        else min(numbers.largest, MORE * numbers.records)
    )
    budget = numbers.images - numbers.each(iterations) * members * numbers.labels
    if not numbers.final_share:
        budget = members * numbers.labels if any(numbers.degrees) else most
    final = max(int(min(most, budget)) // numbers.labels, 1) * numbers.labels
    return [members * numbers.labels] * iterations + [final]


def _degrees(degrees: tuple[float, ...], iterations: int) -> list[float]:
    """Return v_1 … v_T, spread evenly over the generator's degrees from first to last.

    For one iteration it is the last.
    """
    last = len(degrees) - 1
    places = (
        [last]
        if iterations == 1
        else [round(t * last / (iterations - 1)) for t in range(iterations)]
    )
    return [degrees[place] for place in places]


def _numbers(recipe: Recipe, info: PluginInfo, votes: bool) -> Numbers:
    private = recipe.private
    privacy = recipe.privacy
    price = price_of(recipe)
    if private.declared_size is None:
        raise RecipeError(
            "`evolution: auto` needs `private.declared_size`, about how many private records there "
            "are (it will be public). Set it, or set `evolution.iterations` and "
            "`evolution.population`."
        )
    if private.privacy_unit != RECORD and private.declared_units is None:
        raise RecipeError(
            "`evolution: auto` needs `private.declared_units`, about how many units "
            f"({private.privacy_unit}) there are (it will be public). Set it."
        )
    # A call may make one image only, so each image is taken to cost a call.
    each = (
        price.image + price.call + price.megapixel * (prod(info.drawn) / 1e6 if info.drawn else 1)
    )
    each += price.most_of(info.tokens) if info.tokens else 0.0
    limits = [float(recipe.limits.max_images or inf)]
    if each and recipe.limits.max_cost is not None:
        limits.append(recipe.limits.max_cost / each)
    return Numbers(
        labels=len(private.labels),
        records=private.declared_size,
        units=private.declared_units or private.declared_size,
        sigma=_sigma(recipe) if votes else 0.0,
        growing=privacy.epsilon is not None,
        images=min(limits) * (1 - SLACK) - (IMAGES if may_try(recipe, info) else 0),
        is_paid=bool(each or price.has_tokens),
        degrees=info.degrees,
        by_label=info.by_label,
        distinct=info.distinct,
        lookahead=recipe.evolution.own_values.get("lookahead", 0),
        largest=private.modality.largest,
    )


def _sigma(recipe: Recipe) -> float:
    """Return σ, in votes, of one histogram with all the budget that fit and counts leave."""
    settings = {"iterations": 1, "population": len(recipe.private.labels)}
    counts = {
        key: value
        for key, value in recipe.evolution.own_values.items()
        if key == "estimate_label_sizes"
    }
    privacy = recipe.privacy.model_copy(update={"schedule": None})
    whole = recipe.model_copy(
        update={"evolution": Evolution(**settings, **counts), "privacy": privacy}
    )
    *_, histogram = planned_releases(whole)
    return histogram.sensitivity * histogram.noise_multiplier


def _reasons(
    numbers: Numbers,
    explicit: dict[str, Any],
    whole: dict[str, Any],
    noun: str,
) -> tuple[str, ...]:
    """Say why these keys were chosen, in the lines of a template."""
    iterations = whole["iterations"]
    if not iterations:
        return ()
    sizes = whole["population"]
    degrees = whole["degree"]
    first, final = (sizes[0], sizes[-1]) if isinstance(sizes, list) else (sizes, sizes)
    members = first / numbers.labels
    is_best_first = whole.get("selection") == "rank"
    text = page(
        "pe.planning",
        "reasons.txt.jinja",
        numbers=numbers,
        noun=noun,
        chosen={"votes": "raw"} | whole,
        sparing=is_sparing(numbers, explicit),
        iterations=iterations,
        neighbors=whole["neighbors"],
        members=members,
        final=final,
        sigma=numbers.noise(iterations),
        votes=numbers.votes(whole["neighbors"]) / members,
        copies=final / numbers.labels / members,
        degree=degrees[-1] if isinstance(degrees, list) else degrees,
        ranked=is_best_first
        and not explicit.keys() & {"population", "threshold", "keep", "offspring"},
    )
    return tuple(text.splitlines())
