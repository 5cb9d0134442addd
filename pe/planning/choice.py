"""`evolution: auto`: what a recipe leaves open of its evolution, chosen from public numbers alone.

docs/plan.md explains the rule; it was chosen on drawn digits and public pictures (benchmarks/choice.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, prod, sqrt
from typing import Any

from pe.errors import RecipeError
from pe.planning.build import price_of
from pe.planning.fitting import fit_releases
from pe.planning.layout import planned_releases
from pe.planning.measuring import IMAGES, may_measure
from pe.planning.signal import votes_cast
from pe.plugins.protocols import PluginInfo, info_of
from pe.plugins.registry import load, plugins
from pe.plugins.validation import read_settings
from pe.private.source import RECORD
from pe.recipe.evolution import Evolution
from pe.recipe.schema import Recipe

SIGNAL_ONCE, SIGNAL = 0.25, 0.75
"""The votes that an average candidate shall get, over the noise on it: in one vote, which needs many candidates to
choose from; in each of several."""

BLIND, ONCE, AGAIN = 2.5, 0.5, 1.0
"""H, in standard deviations of the noise: of every vote for samples of unknown labels, of which most are of another
label; of samples of known ones, of one vote, and of each of several, or of one whose choice could be varied, and is
not."""

NEIGHBORS = (1, 2, 4, 8, 16, 32)
MEMBERS, DEALT, FEWEST, SPARE, LEAST = 1000, 2000, 150, 50, 10
"""Candidates of a label: at most; of those that are dealt from a pool, which cost nothing to make, at most; below which
the budget is not divided among iterations; nor the images that limits allow, if the labels are known; and at least."""

GROWTH = 1.5
"""Each iteration's share of the budget, over the share of the one before."""

MORE, LARGEST = 2.5, 10_000
"""Images at the end for each record, and the most; as many as there are records where an image costs something."""

FINAL_SHARE, SLACK = 0.3, 0.05
"""Of the images that the limits allow: the share for the end, if they are varied, and what is left for refused ones."""


@dataclass(frozen=True)
class Choice:
    """A recipe with all of its evolution settled.

    Attributes:
        recipe: it.
        chosen: what was chosen, by key (`evolution.neighbors`); what the recipe gives is not among it.
        reasons: why, a sentence each.
    """

    recipe: Recipe
    chosen: dict[str, Any]
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Numbers:
    """What the rule knows, all of it public.

    Attributes:
        labels: their number.
        records: the declared size.
        units: privacy units, of which each casts votes of L2 norm 1.
        sigma: noise on a candidate if one histogram has the whole budget, in votes.
        growing: whether more iterations mean more noise in each; not where the recipe gives the noise.
        images: that may be asked for in all; infinite without a limit.
        paid: whether an image costs something.
        degrees: the generator's, widest first.
        by_label: whether it makes what a label names.
        distinct: different new samples of a label that it has; None: it makes ever new ones.
        lookahead: k, that the recipe gives: variations of each candidate in an iteration; a list has one for each.
        final_share: of the images, for the end; 0 where one vote's choice is taken as it is.
    """

    labels: int
    records: int
    units: int
    sigma: float
    growing: bool
    images: float
    paid: bool
    degrees: tuple[float, ...]
    by_label: bool
    distinct: int | None
    lookahead: int | list[int] = 0
    final_share: float = FINAL_SHARE

    def noise(self, iterations: int) -> float:
        """σ of each of so many histograms with equal shares, in votes."""
        return self.sigma * (sqrt(iterations) if self.growing else 1)

    def limit(self, iterations: int) -> float:
        """Candidates of a label in each iteration that the images allow."""
        return self.images * (1 - self.final_share) / (max(self.each(iterations), 1) * self.labels)

    def each(self, iterations: int) -> int:
        """Images that a candidate takes in all iterations: itself, and its lookahead's variations."""
        ahead = self.lookahead if isinstance(self.lookahead, list) else [self.lookahead] * iterations
        return iterations + sum(ahead)

    @property
    def fewest(self) -> int:
        """Candidates of a label that each of several votes needs, if images are few."""
        return SPARE if self.by_label or self.labels == 1 else FEWEST

    def members(self, iterations: int, neighbors: int) -> int:
        """Candidates of a label that have their signal."""
        cast = votes_cast(self.records, self.units, neighbors) / self.labels
        noise = self.noise(iterations)
        return int(cast / ((SIGNAL if iterations > 1 else SIGNAL_ONCE) * noise)) if noise else LARGEST


def settle(recipe: Recipe, api: object | None = None) -> Choice:
    """The recipe with what it leaves open of its evolution chosen; what it gives stays.

    Args:
        recipe: what is wanted.
        api: the generator, of which `info` counts; None: that of the class that the recipe names.

    Raises:
        RecipeError: the declared size is missing, or that of units where a unit may have several records.
        PrivacyError: no noise meets the budget.
    """
    if recipe.evolution.settled:
        return Choice(recipe, {}, ())
    given = recipe.evolution.given
    if recipe.privacy.schedule is not None:
        given = {"iterations": len(recipe.privacy.schedule)} | given
    numbers = _numbers(recipe, _info(recipe, api), votes=given.get("iterations") != 0)
    whole = choose(numbers, given)
    evolution = {key: value for key, value in whole.items() if key not in recipe.evolution.given}
    chosen = {f"evolution.{key}": value for key, value in evolution.items()}
    changes: dict[str, Any] = {"evolution": read_settings(Evolution, whole, "evolution")}
    if recipe.privacy.schedule is None and numbers.growing and whole["iterations"] > 1:
        chosen["privacy.schedule"] = [round(GROWTH**t, 4) for t in range(whole["iterations"])]
        changes["privacy"] = recipe.privacy.model_copy(update={"schedule": chosen["privacy.schedule"]})
    return Choice(
        recipe.model_copy(update=changes), chosen, _reasons(numbers, given, whole, recipe.private.modality.noun)
    )


def choose(numbers: Numbers, given: dict[str, Any]) -> dict[str, Any]:
    """The keys of an evolution over these numbers: `given` ones as they are, and the others to fit them.

    A population that is given is one number: a list says how many iterations there are, so nothing is left open.
    """
    iterations: int = given.get("iterations", _iterations(numbers))
    if not iterations:
        return {"iterations": 0, "population": _population(numbers, 0, 1)} | given
    chosen_degree = [0.0] if is_sparing(numbers, given) else _degrees(numbers.degrees, iterations)
    degree = given.get("degree", chosen_degree)
    if degree in (0, [0] * iterations):  # nobody is asked for a lookahead of copies
        numbers = replace(numbers, final_share=0.0 if iterations == 1 else numbers.final_share, lookahead=0)
    neighbors: int = given.get("neighbors", _neighbors(numbers, iterations, given.get("population")))
    chosen: dict[str, Any] = {
        "iterations": iterations,
        "population": _population(numbers, iterations, neighbors),
        "degree": degree,
        "lookahead": 0,
        "neighbors": neighbors,
    }
    if iterations == 1:
        chosen["selection"] = "systematic"
    if iterations > 1:
        chosen["keep"] = "winners"
    if "threshold" not in given:
        chosen["threshold_sigmas"] = _threshold(numbers, iterations)
    return chosen | given


def is_sparing(numbers: Numbers, given: dict[str, Any]) -> bool:
    """Whether limits leave too few images for the several votes that the records would do for.

    Then there is one vote, and what it chooses is taken as it is, so that all images are candidates.
    """
    if given.get("lookahead") or given.keys() & {"degree", "initial_variations"} or given.get("iterations", 1) != 1:
        return False
    return _iterations(numbers) == 1 < _iterations(replace(numbers, images=inf))


def _threshold(numbers: Numbers, iterations: int) -> float:
    """H, in standard deviations of the noise."""
    if not numbers.by_label and (iterations == 1 or numbers.labels > 1):
        return BLIND
    if iterations > 1 or (any(numbers.degrees) and not numbers.final_share):
        return AGAIN
    return ONCE


def _iterations(numbers: Numbers) -> int:
    """T: as many as the generator has degrees, while each has enough candidates of a label."""
    most, free = len(numbers.degrees), replace(numbers, images=inf)
    enough = (t for t in range(most, 1, -1) if _affordable(free, t, NEIGHBORS[-1]) >= FEWEST)
    return next((t for t in enough if numbers.limit(t) >= numbers.fewest), min(most, 1))


def _neighbors(numbers: Numbers, iterations: int, population: int | None) -> int:
    """q: the smallest with which as many candidates as there may be have their signal; at most half of a label's."""
    if population is None:
        members = {q: max(_affordable(numbers, iterations, q), LEAST) for q in NEIGHBORS}
        wanted = max(members.values())
    else:
        wanted = population // numbers.labels
        members = dict.fromkeys(NEIGHBORS, wanted)
    fitting = [q for q in NEIGHBORS if q == 1 or 2 * q <= members[q]]
    return next((q for q in fitting if numbers.members(iterations, q) >= wanted), fitting[-1])


def _affordable(numbers: Numbers, iterations: int, neighbors: int) -> int:
    """Candidates of a label: as many as have their signal, as there may be, and as the limits allow."""
    most = MEMBERS if numbers.distinct is None else min(numbers.distinct, DEALT)
    return int(min(numbers.members(iterations, neighbors), most, numbers.limit(iterations)))


def _population(numbers: Numbers, iterations: int, neighbors: int) -> list[int]:
    """Members of S_0 … S_T: the candidates, and in the end what is to be shared.

    If nothing is varied, that costs nothing. Only of a pool may it be more than the candidates, and thus hold copies.
    """
    members = max(_affordable(numbers, iterations, neighbors), neighbors, LEAST)
    wanted = numbers.records if numbers.paid and numbers.final_share else min(LARGEST, MORE * numbers.records)
    allowed = numbers.images - numbers.each(iterations) * members * numbers.labels
    if not numbers.final_share:
        allowed = members * numbers.labels if any(numbers.degrees) else wanted
    final = max(int(min(wanted, allowed)) // numbers.labels, 1) * numbers.labels
    return [members * numbers.labels] * iterations + [final]


def _degrees(degrees: tuple[float, ...], iterations: int) -> list[float]:
    """v_1 … v_T: evenly from the first of the generator's to its last; of one iteration the last."""
    if iterations == 0:
        return []
    last = len(degrees) - 1
    places = [last] if iterations == 1 else [round(t * last / (iterations - 1)) for t in range(iterations)]
    return [degrees[place] for place in places]


def _numbers(recipe: Recipe, info: PluginInfo, votes: bool) -> Numbers:
    private, privacy, price = recipe.private, recipe.privacy, price_of(recipe)
    if private.declared_size is None:
        raise RecipeError(
            "evolution: auto is chosen by private.declared_size, which is missing: state about how many private "
            "records there are (it will be public), or give evolution.iterations and evolution.population."
        )
    if private.privacy_unit != RECORD and private.declared_units is None:
        raise RecipeError(
            f"evolution: auto is chosen by private.declared_units, which is missing: state about how many units "
            f"({private.privacy_unit}) there are (it will be public)."
        )
    each = price.image + price.call + price.megapixel * (prod(info.drawn) / 1e6 if info.drawn else 1)
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
        images=min(limits) * (1 - SLACK) - (IMAGES if may_measure(recipe, info) else 0),
        paid=bool(each or price.has_tokens),
        degrees=info.degrees,
        by_label=info.by_label,
        distinct=info.distinct,
        lookahead=recipe.evolution.given.get("lookahead", 0),
    )


def _sigma(recipe: Recipe) -> float:
    """σ of one histogram that has all that fit and class counts leave of the budget, in votes."""
    settings = {"iterations": 1, "population": len(recipe.private.labels)}
    kept = {key: value for key, value in recipe.evolution.given.items() if key == "estimate_label_sizes"}
    whole = recipe.model_copy(
        update={
            "evolution": Evolution(**settings, **kept),
            "privacy": recipe.privacy.model_copy(update={"schedule": None}),
        }
    )
    unit = recipe.private.privacy_unit
    *_, histogram = planned_releases(whole, unit, fit_releases(whole, recipe.private.labels, unit))
    return histogram.sensitivity * histogram.noise_multiplier


def _info(recipe: Recipe, api: object | None) -> PluginInfo:
    """What the generator declares; what a plug-in declares by default where its class is not known."""
    if api is not None:
        return info_of(api)
    return info_of(load("pe.adapters", recipe.api.kind)) if recipe.api.kind in plugins("pe.adapters") else PluginInfo()


def _reasons(numbers: Numbers, given: dict[str, Any], whole: dict[str, Any], noun: str) -> tuple[str, ...]:
    iterations = whole["iterations"]
    if not iterations:
        return ()
    neighbors = whole["neighbors"]
    sizes = whole["population"]
    members = (sizes if isinstance(sizes, int) else sizes[0]) / numbers.labels
    sigma = numbers.noise(iterations)
    votes = votes_cast(numbers.records, numbers.units, neighbors) / numbers.labels / members
    against = f"{votes / sigma:.2g} times the noise on it (σ = {sigma:.3g} votes)" if sigma else f"{votes:.2g} votes"
    each = "once" if iterations == 1 else f"{iterations} times"
    final, degrees = sizes if isinstance(sizes, int) else sizes[-1], whole["degree"]
    copies = final / numbers.labels / members
    unvaried = (degrees[-1] if isinstance(degrees, list) else degrees) == 0
    told = (
        f"Degree 0 varies nothing, so the {final:,} {noun} at the end are copies of the candidates: {copies:.2g} of "
        "each if all were chosen, and more of those with many votes.",
    )
    often = (
        f"The records vote {each}: the generator names degrees of variation for "
        f"{len(numbers.degrees)} {'round' if len(numbers.degrees) == 1 else 'rounds'} at most, "
        "and more votes mean more noise in each."
    )
    sparing = (
        f"One vote over {members * numbers.labels:,.0f} {noun} is expected to be best, because the limits allow too "
        f"few for two votes, of which each needs {numbers.fewest} candidates of a label. Nothing is varied: all {noun} "
        "that are paid for are candidates, and the chosen ones are taken as they are."
    )
    return (
        sparing if is_sparing(numbers, given) else often,
        f"A record votes for its {neighbors} nearest of about {members:,.0f} candidates of its label, so an average "
        f"candidate gets {against}{'' if sigma else ', without noise'}.",
        *(told if unvaried and copies > 1 else ()),
    )
