"""Foretell what a run will ask for, cost and guarantee.

It is told from public numbers, before anything is called or read.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import groupby, product, zip_longest
from math import inf
from pathlib import Path
from typing import Any

from pe.data.display import Page
from pe.errors import RecipeError
from pe.fit.trainer import DryRun
from pe.judgement.forecast import POOL, Interval, expected_share, measured
from pe.planning import checks
from pe.planning.calls import PARENTS, Trial, disk_of, most_calls
from pe.planning.choice import Choice, Signal, choose_evolution, signal_of, votes_cast
from pe.planning.deadlines import EMBEDDING, ClockPlan, held_back
from pe.planning.notices import notices, sentences
from pe.planning.other_runs import check_other_runs
from pe.planning.parts import class_of, declared, price_of, set_up, usage_of, without_price
from pe.planning.releases import fit_dry_runs, is_fitted, lay_out, noise_multiplier_for
from pe.plugins.protocols import Generator, PluginInfo, info_of
from pe.plugins.reach import leaves
from pe.plugins.specs import members_of
from pe.privacy.accounting import epsilon
from pe.privacy.certificate_text import finite, guarantee, round_up
from pe.privacy.ledger import Budget, kind_of
from pe.privacy.release import Poisson, Release
from pe.recipe.page import page
from pe.recipe.schema import OBJECT, Recipe
from pe.steps import Plan

_HEADINGS = ("t", "calls", "degree", "candidates", "votes/candidate", "σ, votes", "H, votes")


@dataclass(frozen=True)
class Iteration:
    """The most requests and images of iteration t.

    Requests are those of RANDOM_API and VARIATION_API, the lookahead's included.

    t = 0 is S_0. `signal` is of the iteration's histogram; `meaning` says in the generator's words
    what the degree means. None or "" stands for a value that is unknown or does not exist.
    """

    t: int
    random: int | None
    variation: int | None
    images: int
    degree: float = 1.0
    signal: Signal | None = None
    meaning: str = ""

    @property
    def calls(self) -> int | None:
        """Requests of RANDOM_API and VARIATION_API together. None: unknown."""
        return _total((self.random, self.variation))

    def row(self) -> tuple[str, ...]:
        """Return the iteration's row of the table."""
        start = (str(self.t), _words(self.calls), _words(self.images))
        signal = self.signal
        if signal is None:
            return start
        votes = "unknown" if signal.fewest is None else f"{signal.fewest:.3g}"
        numbers = f"{signal.candidates:,}", votes, f"{signal.sigma:.3g}", f"{signal.threshold:.3g}"
        return (*start, f"{self.degree:g}", *numbers)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        requests = {
            "iteration": self.t,
            "random": self.random,
            "variation": self.variation,
            "images": self.images,
        }
        if self.signal is None:
            return requests
        return requests | {
            "degree": self.degree,
            "degree_means": self.meaning or None,
            "candidates": self.signal.candidates,
            "noise_multiplier": self.signal.noise_multiplier,
            "sigma": self.signal.sigma,
            "threshold": self.signal.threshold,
            "votes_per_candidate": self.signal.fewest,
        }


@dataclass(frozen=True)
class Forecast:
    """A run as it will be if no item is refused or fails. `print` shows it.

    Attributes:
        choice: the recipe, its evolution complete, with the keys that were chosen and why.
        plan: the plan of the run.
        iterations: t = 0 … T.
        trial: requests before t = 0, by which the run checks that variations resemble their
            parents.
        has_price: True if the recipe states what is charged, or nobody elsewhere is asked.
        cost: the most that it costs, in `currency`; None: unknown, or not stated.
        epsilon: of all planned releases, at the recipe's δ; infinite where no ε holds, and null in
            JSON, like δ.
        degree: the generator's obedience to the degree: exact, wording, none; None: unknown.
        seconds: the time for the most images at the given rate; None: no rate was given.
        disk: the most bytes that samples take while the run goes on; None: unknown.
        clock: the public clock.
        fit_epsilon: ε of the releases by which the generator is fitted.
        dry_runs: of each part of the fit, where it was tried here.
        precision: of the generator's arithmetic on this machine; empty: it computes elsewhere, or
            that is not known.
        expected: what other data sets reached; None: nothing like this run was measured.
        warnings: one sentence each.
    """

    choice: Choice
    plan: Plan
    iterations: tuple[Iteration, ...]
    trial: Trial
    has_price: bool
    epsilon: float
    degree: str | None
    disk: int | None
    clock: ClockPlan
    fit_epsilon: float
    dry_runs: tuple[DryRun, ...]
    precision: str
    cost: float | None = None
    seconds: float | None = None
    expected: Interval | None = None
    warnings: tuple[str, ...] = ()

    @property
    def noun(self) -> str:
        """The noun for the samples: `images`."""
        return self.choice.recipe.private.modality.noun

    @property
    def embedding(self) -> str:
        """Name of the embedding by which the records vote. Empty: there are no votes."""
        return self.choice.recipe.embedding.kind.removeprefix(OBJECT) if self.plan.steps else ""

    @property
    def images(self) -> int:
        """The most images asked for over the whole run."""
        return self.trial.images + sum(one.images for one in self.iterations)

    @property
    def random(self) -> int | None:
        """The most calls of RANDOM_API. None: unknown."""
        return _total((self.trial.random, *(one.random for one in self.iterations)))

    @property
    def variation(self) -> int | None:
        """The most calls of VARIATION_API, the lookahead's included. None: unknown."""
        return _total((self.trial.variation, *(one.variation for one in self.iterations)))

    @property
    def calls(self) -> int | None:
        """The most calls of RANDOM_API and VARIATION_API together. None: unknown."""
        return _total((self.random, self.variation))

    @property
    def signals(self) -> list[Signal]:
        """Signals of iterations 1 … T."""
        return [one.signal for one in self.iterations if one.signal]

    @property
    def synthetic(self) -> int:
        """Images at the end, |S_T|."""
        return sum(self.plan.last_sizes)

    @property
    def currency(self) -> str:
        """The currency of the costs."""
        return price_of(self.choice.recipe).currency

    @property
    def fit(self) -> tuple[Release, ...]:
        """The releases by which the generator is fitted, before S_0."""
        return self.plan.fit

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values. Calls, images and cost are the most there can be."""
        fewest = [signal.fewest for signal in self.signals if signal.fewest is not None]
        multipliers = [signal.noise_multiplier for signal in self.signals]
        return {
            "noun": self.noun,
            "api_calls": {
                "random": self.random,
                "variation": self.variation,
                "images": self.images,
            },
            "cost": self.cost,
            "currency": self.currency,
            "synthetic_images": self.synthetic,
            "disk_bytes": self.disk,
            "seconds": self.seconds,
            "epsilon": finite(self.epsilon),
            "delta": None if finite(self.epsilon) is None else self.choice.recipe.privacy.delta,
            # One number if all histograms have the same noise, else one for each.
            "noise_multiplier": multipliers[0]
            if len(set(multipliers)) == 1
            else multipliers or None,
            "votes_per_candidate": min(fewest, default=None),
            "degree": self.degree,
            "embedding": self.embedding or None,
            "precision": self.precision or None,
            "measured_by": self.trial.images or None,
            "fit": {"epsilon": self.fit_epsilon, "releases": [one.to_dict() for one in self.fit]}
            if self.fit
            else None,
            "dry_run": [one.to_dict() for one in self.dry_runs] if self.dry_runs else None,
            "public_clock": {
                "on": self.clock.on,
                "why": self.clock.why,
                "deadlines": self.clock.seconds,
            },
            "chosen": self.choice.values,
            "why_chosen": list(self.choice.reasons),
            "per_iteration": [one.to_dict() for one in self.iterations],
            "expected": None if self.expected is None else asdict(self.expected),
            "warnings": list(self.warnings),
        }

    def __str__(self) -> str:
        meanings: defaultdict[tuple[float, str], list[int]] = defaultdict(list)
        for one in self.iterations:
            if one.meaning:
                meanings[one.degree, one.meaning].append(one.t)
        equal: defaultdict[tuple[float, Poisson | None], list[Release]] = defaultdict(list)
        for release in self.fit:
            equal[release.noise_multiplier, release.sampling].append(release)
        signals = self.signals
        varied = [one.degree for one in self.iterations if one.t and one.degree]
        works = [EMBEDDING, *(kind_of(release.name) for release in self.plan.releases)]
        text = page(
            "pe.planning",
            "forecast.txt.jinja",
            plan=self,
            table=self._table(),
            copies=[one.t for one in self.iterations if one.t and not one.degree],
            equal_releases=equal.values(),
            multipliers=dict.fromkeys(f"{signal.noise_multiplier:.4g}" for signal in signals),
            shares=[one.noise_share(one.votes) for one in signals if one.votes is not None],
            held=sum(self.clock.seconds.get(work, 0.0) for work in works),
            meanings=meanings,
            ways=Counter(degree for degree, _ in meanings),
            parents=PARENTS,
            tried=min(varied, default=0.0),
            words=_words,
            plain=_plain,
            duration=_duration,
            guarantee=guarantee,
            round_up=round_up,
        )
        return text.rstrip("\n")

    def _table(self) -> str:
        rows: list[tuple[str, ...]] = [(*_HEADINGS[:2], self.noun, *_HEADINGS[2:])]
        trial = self.trial
        if trial:
            rows.append(("try", _words(trial.random + trial.variation), _words(trial.images)))
        rows += [one.row() for one in self.iterations]
        rows.append(("all", _words(self.calls), _words(self.images)))
        widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
        lines = []
        for row in rows:
            cells = (cell.rjust(width) for cell, width in zip(row, widths, strict=False))
            lines.append("  ".join(cells))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return Page(self)._repr_html_()


def _words(number: int | None) -> str:
    return "unknown" if number is None else f"{number:,}"


def _total(numbers: Iterable[int | None]) -> int | None:
    """Return the sum, or None if one of the numbers is unknown."""
    known = list(numbers)
    return None if None in known else sum(known)  # type: ignore[arg-type]


def _plain(value: Any) -> str:
    """Return a number, or numbers, in few digits."""
    if isinstance(value, list):
        return f"[{', '.join(map(_plain, value))}]"
    return f"{value:.4g}" if isinstance(value, float) else f"{value}"


def _duration(seconds: float) -> str:
    """Return seconds in words.

    Minutes begin at two minutes, hours at two hours, and days at two days.
    """
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def forecast(
    recipe: Recipe,
    api: Generator | None,
    here: Sequence[str] = (),
    samples_per_second: float | None = None,
    dry_run: bool = False,
) -> Forecast:
    """Foretell a run of `recipe`. Call nothing and read no private record.

    Args:
        recipe: the recipe.
        api: the generator (`pe.planning.parts.set_up_generator`), asked what it can do; None: the
            calls are unknown.
        here: warnings about this machine (`pe.planning.checks.obstacles`), and why the calls are
            unknown.
        samples_per_second: the generator's rate, > 0; None: the time is unknown.
        dry_run: try the fit here, on made-up samples.
    """
    choice = choose_evolution(recipe, api)
    recipe = choice.recipe
    plan = lay_out(recipe)
    dry_runs = fit_dry_runs(recipe, dry_run)
    embedding, _ = set_up("pe.embeddings", recipe.embedding)
    if embedding is not None and info_of(embedding).hosts:  # a plan asks no other machine
        embedding = None
    delta = recipe.privacy.delta
    counted = Forecast(
        choice=choice,
        plan=plan,
        iterations=_iterations(recipe, plan, api),
        trial=Trial.of(recipe, plan, api),
        has_price=not any(
            info.hosts is None or info.elsewhere for info in without_price(recipe, api)
        ),
        epsilon=inf if recipe.privacy.noiseless else epsilon(plan.releases, delta),
        degree=None if api is None else api.capabilities.degree,
        disk=disk_of(recipe, plan, api),
        clock=held_back(recipe, plan, api, embedding, dry_runs),
        fit_epsilon=epsilon(plan.fit, delta) if plan.fit else 0.0,
        dry_runs=dry_runs,
        precision=checks.precision_of(api),
    )
    return _judge(counted, api, embedding, here, samples_per_second)


def _judge(
    counted: Forecast,
    api: Generator | None,
    embedding: object | None,
    here: Sequence[str],
    samples_per_second: float | None,
) -> Forecast:
    """Add what follows from the calls and images: cost, time, possible gain, and warnings."""
    recipe = counted.choice.recipe
    plan = counted.plan
    price = price_of(recipe)
    calls = counted.calls
    images = counted.images
    usage = None if calls is None and price.call else usage_of(price, api, calls or 0, images)
    cost = price.most_of(usage) if counted.has_price and usage is not None else None
    seconds = None if samples_per_second is None else images / samples_per_second
    needs = {"max_images": images, "max_cost": cost, "max_seconds": seconds}
    told = notices(recipe, plan, counted.epsilon, api, embedding)
    # What keeps a run from starting comes first, and what costs ε in other runs comes last.
    warnings = [
        *here,
        *checks.refusals(*([] if api is None else [partial(checks.check_degrees, plan, api)])),
        *checks.cost_warnings(recipe, api, calls, needs),
        *sentences(told, "overlap", "shape", "guarantee", "votes", "setting"),
        *filter(None, [counted.clock.warning]),
        *sentences(told, "network"),
        *checks.data_set_warnings(recipe, plan.releases),
        *checks.refusals(
            partial(checks.check_cap, recipe, plan.releases),
            partial(check_other_runs, recipe, plan.releases),
        ),
    ]
    return replace(
        counted,
        cost=cost,
        seconds=seconds,
        expected=None if api is None else _expected(recipe, plan, info_of(api), counted.epsilon),
        warnings=tuple(warnings),
    )


def _expected(recipe: Recipe, plan: Plan, info: PluginInfo, spent: float) -> Interval | None:
    """Return what runs of this kind reached on other data sets.

    None: nothing like it was measured, or the number of records is not declared.
    """
    private = recipe.private
    labels = len(plan.classes)
    is_both = bool(plan.fit and plan.steps)
    if private.declared_size is None or labels < 2 or is_both or not 0 < spent < inf:
        return None
    is_pool = info.distinct is not None and not info.by_label
    kind = POOL if is_pool else recipe.api.kind
    cast = votes_cast(private.declared_size, private.declared_units, 1)
    noise = noise_multiplier_for(Budget(spent, recipe.privacy.delta), 1)
    measure = "AUC" if labels == 2 else "mean recall"
    return expected_share(measured(), kind, measure, cast / labels / noise)


def _iterations(recipe: Recipe, plan: Plan, api: Generator | None) -> tuple[Iteration, ...]:
    iterations = []
    for t, phases in groupby(plan.phases, key=lambda phase: phase.t):
        asked = [phase for phase in phases if phase.asks]
        random, variation = (
            None
            if api is None
            else sum(most_calls(phase, plan, api) for phase in asked if phase.asks == asks)
            for asks in ("random", "variation")
        )
        one = Iteration(t, random, variation, sum(phase.most for phase in asked))
        if t:
            step = plan.steps[t - 1]
            signal = signal_of(recipe, plan, step, plan.candidates(t))
            meaning = checks.meaning_of(api, step.degree, t)
            one = replace(one, degree=step.degree, signal=signal, meaning=meaning)
        iterations.append(one)
    return tuple(iterations)


# Two recipes that mean the same run: one may go on where the other stopped.


_MACHINE_ONLY = (
    "name", "limits", "private.path", "private.ledger_file", "private.largest_side", "api.price",
    "refusals.max_share", "evolution.neighbor_search", "evolution.measure_degree",
    "evolution.attempts", "privacy.hold",
)  # fmt: skip
_MOST = 200
"""Characters of a value in a message."""


def differences(before: Recipe, after: Recipe) -> list[str]:
    """Return the keys whose change gives the run another meaning: `key: old → new`, sorted.

    Settings that concern only the machine may change, and so may the place of the private records:
    a fingerprint tells if these changed. So may the declared size, unless a fit is planned by it.
    Objects are compared by class name.
    """
    old, new = (dict(leaves(recipe.model_dump(mode="json"))) for recipe in (before, after))
    for values, key in product((old, new), ("api.kind", "embedding.kind")):
        values[key] = class_of(values[key])
    generators = {f"api.{key}": member.kind for key, member in members_of(after.api).items()}
    free = [*_MACHINE_ONLY, *(f"{section}.price" for section in generators)]
    for section, kind in {"api": after.api.kind, **generators}.items():
        settings = declared("pe.adapters", kind).machine_settings
        free += [f"{section}.{name}" for name in settings]
    settings = declared("pe.embeddings", after.embedding.kind).machine_settings
    free += [f"embedding.{name}" for name in settings]
    if not is_fitted(after.api.kind):
        free += ["private.declared_size", "private.declared_units"]
    keys = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    return [
        f"{key}: {_short(old.get(key))} → {_short(new.get(key))}"
        for key in keys
        if not any(key == name or key.startswith(f"{name}.") for name in free)
    ]


def load_changed(path: Path, changes: tuple[str, ...], verb: str) -> Recipe:
    """Return the recipe that a run holds at `path`, with `changes`.

    `verb` says in the message what cannot be done to the run: extended, or evaluated.

    Raises:
        RecipeError: the changes give the run another meaning.
    """
    recipe = Recipe.load(path, changes)
    changes_of_meaning = differences(Recipe.load(path), recipe)
    if changes_of_meaning:
        raise RecipeError(
            f"{path.parent} cannot be {verb} with another recipe: {'; '.join(changes_of_meaning)}."
        )
    return recipe


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MOST else f"{text[:_MOST]}…"
