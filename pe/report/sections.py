"""How a run evolved, from what was released and what is public: shareable like the run itself.

Durations, calls and retries are not here: they are confidential, or depend on crashes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pe.data.population import Population
from pe.data.samples import GENERATOR, Samples, suspicions
from pe.errors import DamagedFile, RunError
from pe.planning.build import price_of
from pe.planning.checks import guarantee_warnings
from pe.planning.choice import signal_of
from pe.planning.layout import plan_of
from pe.plugins.price import Price
from pe.plugins.protocols import NOTHING, Usage
from pe.privacy.accounting import epsilon
from pe.privacy.release import Relation
from pe.privacy.words import NO_NOISE, POOL_OVERLAPS, found_at_most, round_up
from pe.recipe.schema import Recipe
from pe.report.page import Line, render, shown
from pe.report.pictures import NEAR, collapse_warnings, extremes, strips, varieties, whole
from pe.steps import Plan, Step
from pe.store.journal import Journal
from pe.store.places import CERTIFICATE, CONFIDENTIAL, RECIPE, without_folders
from pe.store.run import Run
from pe.store.writer import read_journal

Floats = npt.NDArray[np.float64]

BLOCK = 4096


@dataclass(frozen=True, eq=False)
class Generation:
    """Iteration t ≥ 1.

    Attributes:
        t: the iteration.
        degree: v_t.
        votes: float64 (m,), noisy votes of S_{t−1}'s m members, in votes; may be negative.
        threshold: H, in votes.
        sigma: standard deviation of the noise, in votes.
        signal: votes per candidate by the declared size, of the label with the fewest, over σ; None: not declared,
            or no noise.
        passing: share of candidates over the threshold, in [0, 1].
        effective: (Σw)² / Σw² with the weights w = max(votes − H, 0): as many equal parents would be as even.
        parents: distinct members of S_{t−1} that have offspring in S_t; None: S_t is not finished.
        founders: distinct members of S_0 that have descendants in S_t; None: likewise.
        unchanged: members of S_t that equal their parent: kept ones, refused ones; None: S_t is not finished.
        moved: mean distance of a member of S_t from its parent, in the modality's unit; None: likewise.
    """

    t: int
    degree: float
    votes: Floats
    threshold: float
    sigma: float
    signal: float | None
    passing: float
    effective: float
    parents: int | None
    founders: int | None
    unchanged: int | None
    moved: float | None


def public_plan(run: Run) -> tuple[Recipe, Plan]:
    """The run's shareable recipe, and the plan that it lays out."""
    recipe = Recipe.load(run.folder / RECIPE)
    return recipe, plan_of(run, recipe)


def certificate_of(run: Run) -> dict[str, Any] | None:
    """The run's certificate; None while the run is not finished."""
    return run.guarantee if (run.folder / CERTIFICATE).is_file() else None


def evolution(run: Run) -> dict[str, Any]:
    """What both reports show of how a run evolved.

    Raises:
        RunError: nothing of the run is there yet to be shown.
    """
    recipe, plan = public_plan(run)
    populations = run.populations(len(plan.classes))
    if not populations:
        raise RunError(f"{run.folder} has no population yet: there is nothing to report.")
    shown = [strips(population, plan.classes) for population in populations]
    return {"name": run.name, "plan": plan, "found": generations(run, recipe, plan), "populations": shown}


def generations(run: Run, recipe: Recipe, plan: Plan) -> list[Generation]:
    """Every iteration whose votes were released."""
    populations = run.populations(len(plan.classes))
    found = []
    lineage = np.arange(len(populations[0])) if populations else np.empty(0, dtype=np.int64)
    for step in plan.steps:
        votes = noisy_votes(run, step)
        if votes is None or len(populations) < step.t:
            break
        before, after = populations[step.t - 1], populations[step.t] if len(populations) > step.t else None
        if after is not None:
            lineage = lineage[after.parents]
        distances = None if after is None else _distances(before.samples, after)
        weights = np.maximum(votes - step.threshold, 0.0)
        square = float(np.square(weights).sum())
        signal = signal_of(recipe, plan, step, np.bincount(before.labels, minlength=len(plan.classes)).tolist())
        one = Generation(
            t=step.t,
            degree=step.degree,
            votes=votes,
            threshold=step.threshold,
            sigma=signal.sigma,
            signal=signal.to_noise,
            passing=float(np.mean(votes > step.threshold)),
            effective=float(weights.sum() ** 2 / square) if square else 0.0,
            parents=None if after is None else len(np.unique(after.parents)),
            founders=None if after is None else len(np.unique(lineage)),
            unchanged=None if distances is None else int(np.count_nonzero(distances == 0)),
            moved=None if distances is None else float(distances.mean()),
        )
        found.append(one)
    return found


def noisy_votes(run: Run, step: Step) -> Floats | None:
    """The released votes of iteration t, float64 (m,); None while they are not there.

    Raises:
        RunError: the file is not what a release is.
    """
    path = run.folder / "releases" / f"{step.release.name.replace('/', '-')}.npy"
    if not path.is_file():
        return None
    try:
        votes = np.asarray(np.lib.format.open_memmap(path, mode="r"), dtype=np.float64) / step.release.grid
    except (EOFError, OSError, TypeError, ValueError) as error:
        raise DamagedFile(f"{path} is damaged: restore it from a copy.") from error
    if votes.ndim != 1 or not np.isfinite(votes).all():
        raise DamagedFile(f"{path} is damaged: restore it from a copy.")
    return votes


def _distances(before: Samples, after: Population) -> Floats:
    """Of each member from its parent (n,), BLOCK by BLOCK: they may be more than memory holds."""
    parts = (slice(start, start + BLOCK) for start in range(0, len(after), BLOCK))
    found = [after.samples.take(part).distances(before.take(after.parents[part])) for part in parts]
    return np.concatenate(found).astype(np.float64)


# What `pe evaluate` measured (docs/evaluation.md), as templates/quality.html shows it.


Metrics = Mapping[str, Any]

_SETS = {
    "synthetic": ("synthetic", "the run's data."),
    "unevolved": ("un-evolved", "samples straight from the generator, what it knows without any private record."),
    "random_selection": (
        "random selection",
        "the run again with parents chosen at random: what the votes have brought is the difference to it.",
    ),
    "one_vote": (
        "one vote",
        "as many samples straight from the generator, chosen by one vote with the budget of all the run's, and "
        "not varied: what evolving has brought is the difference to it.",
    ),
    "real": ("real", "the private records themselves: the ceiling."),
}
_WORST = 20  # confusions that are listed where there are too many classes for a matrix


def quality(run: Run, metrics: Metrics) -> dict[str, object]:
    """What the template shows, the metrics included."""
    utility, fidelity, memorisation = (metrics.get(key) or {} for key in ("utility", "fidelity", "memorisation"))
    trained_on: dict[str, int | None] = {}
    for by_set in utility.values():
        for name, one in by_set.items():
            trained_on.setdefault(name, one.get("images"))
    there = {"synthetic"}.union(trained_on, *(each.get("controls") or {} for each in fidelity.values()))
    verdict, chosen = (metrics.get(key) or {} for key in ("verdict", "chosen_classifier"))
    judge = verdict.get("classifier") or chosen.get("synthetic")
    judged = utility.get(judge, {})
    return {
        "metrics": metrics,
        "trained_on": trained_on,
        "sets": [words for name, words in _SETS.items() if name in there],
        "judge": judge,
        "judged": judged,
        "judged_sets": [_title(name) for name in judged],
        "bound": _bound(run, (metrics.get("run") or {}).get("noun", "images")),
        "nearest": _nearest,
        "pairs": _pairs(run, memorisation, ".png"),
        "text_pairs": [pair for one in _pairs(run, memorisation, ".json") for pair in _text_pairs(one)],
        "of_texts": _of_texts(metrics.get("texts") or {}),
        "noun": (metrics.get("run") or {}).get("noun", "images"),
        "distance_names": distance_names,
        "most_confused": _most_confused,
        "spread": spread,
        "title": _title,
    }


def _bound(run: Run, noun: str) -> str:
    """Bound by the certificate the difference that the membership test sees."""
    certificate = certificate_of(run)
    if certificate is None or not certificate["holds"]:
        return f"No certificate bounds what the {noun} tell of a record."
    epsilon, delta, unit = certificate["epsilon"], certificate["delta"], certificate["unit"]["name"]
    most = found_at_most(epsilon, delta, certificate["gdp_mu"])
    return f"Of one {unit} the certificate allows a test that wrongly accuses 1 in 100 to find at most {most}."


def headline_numbers(metrics: Metrics) -> list[tuple[str, str]]:
    """(what, value of the synthetic data), one of each classifier, embedding and test."""
    verdict = metrics.get("verdict") or {}
    asked = {"did the votes help": "outcome", "did evolving beat one vote": "evolving"}
    found = [(what, verdict[key].replace("_", " ")) for what, key in asked.items() if verdict.get(key)]
    found += [
        (f"accuracy, {name}", spread(sets["synthetic"]["accuracy"]))
        for name, sets in (metrics.get("utility") or {}).items()
        if "synthetic" in sets
    ]
    found += [
        (f"{distance_names(each)[0]}, {name}", shown(each.get("frechet"), ",.4g"))
        for name, each in (metrics.get("fidelity") or {}).items()
    ]
    if "membership" in metrics.get("memorisation", {}):
        found.append(("membership AUC", f"{metrics['memorisation']['membership']['auc']:.3f}"))
    return found


def distance_names(found: Metrics) -> tuple[str, str]:
    """Names of the Fréchet and the kernel distance."""
    return ("FID", "KID") if found.get("standard_inception") is True else ("Fréchet", "kernel")


def spread(found: Metrics, error: str = "std", forms: tuple[str, str] = (".1%", ".1%")) -> str:
    """Mean ± error, where they are known."""
    around = "" if found.get(error) is None else f" ± {found[error]:{forms[1]}}"
    return shown(found.get("mean"), forms[0]) + around


def _most_confused(labels: Sequence[str], confusion: Sequence[Sequence[int]]) -> list[tuple[str, str, str]]:
    shares = [
        (count / sum(counts), labels[i], labels[j])
        for i, counts in enumerate(confusion)
        for j, count in enumerate(counts)
        if count and i != j
    ]
    worst = sorted(shares, key=lambda each: -each[0])[:_WORST]
    return [(true, called, f"{share:.1%}") for share, true, called in worst]


def _nearest(found: Metrics, names: Mapping[str, str]) -> list[Line]:
    """Distribution functions of distances, as far as they were measured."""
    measured = [(name, found[key]) for key, name in names.items() if found.get(key)]
    return [(name, one["quantiles"], [100 * level for level in one["levels"]]) for name, one in measured]


def _pairs(run: Run, found: Metrics, suffix: str) -> list[bytes]:
    """The files of the nearest pairs that end so, as far as they lie in the run's confidential folder."""
    paths = [run.folder / name for name in (found.get("nearest_pairs") or {}).get("files", [])]
    inside = [path for path in paths if path.resolve().is_relative_to(run.confidential.resolve())]
    return [path.read_bytes() for path in inside if path.is_file() and path.suffix == suffix]


def _text_pairs(file: bytes) -> list[tuple[str, str, float]]:
    """Generated text, private text and their distance, of each pair."""
    return [(pair["generated"], pair["private"], pair["distance"]) for pair in json.loads(file)]


def _of_texts(found: Metrics) -> list[tuple[str, ...]]:
    """Lengths and words of each set, as rows of a table."""
    rows = []
    for name, one in (found.get("sets") or {}).items():
        words = dict(zip(found["levels"], one["words"], strict=True))
        middle = (f"{words[level]:,.0f}" for level in (0.05, 0.5, 0.95))
        own = f"{one['vocabulary']:,}", shown(one["covered"], ".1%"), shown(one["divergence"], ".3f")
        rows.append((_title(name), *middle, *own))
    return rows


def _title(name: str) -> str:
    return _SETS[name][0] if name in _SETS else name


# Which of several generators the private records preferred: post-processing of the released votes, at no further ε.


@dataclass(frozen=True)
class Fared:
    """A generator at iteration t.

    Attributes:
        t: the iteration that votes for S_t−1; one more than the last for S_T, for which none does.
        name: of the generator.
        made: share of S_t−1's samples that it made, in [0, 1].
        votes: share of the noisy votes for them, which noise may put outside of [0, 1]; None: there are none, or noise
            leaves no sum of them above 0.
        noise: standard deviation of that share by the noise alone, the sum of all votes taken as large; None: likewise.
    """

    t: int
    name: str
    made: float
    votes: float | None = None
    noise: float | None = None


def fared(populations: Sequence[Population], found: Sequence[Generation]) -> list[Fared]:
    """Each generator at each iteration, and in the last population; nothing where samples do not say who made them."""
    if not all(GENERATOR in population.conditions for population in populations):
        return []
    makers = [np.asarray(population.conditions[GENERATOR]) for population in populations]
    told = []
    for t, made in enumerate(makers, 1):
        one = found[t - 1] if t <= len(found) else None
        for name in np.unique(np.concatenate(makers)).tolist():
            told.append(_fared(t, name, made == name, one))
    return told


def _fared(t: int, name: str, own: np.ndarray[tuple[int], np.dtype[np.bool_]], one: Generation | None) -> Fared:
    made, everything = float(own.mean()), 0.0 if one is None else float(one.votes.sum())
    if one is None or everything <= 0:
        return Fared(t, name, made)
    share, count = float(one.votes[own].sum()) / everything, int(own.sum())
    spread = count * (1 - share) ** 2 + (len(own) - count) * share**2  # of V_g / V to first order, over σ²
    return Fared(t, name, made, share, one.sigma * spread**0.5 / everything)


def lines_of(told: Sequence[Fared]) -> list[Line]:
    """Each generator's share of S_0 …, in per cent."""
    lines: dict[str, tuple[list[float], list[float]]] = {}
    for one in told:
        xs, ys = lines.setdefault(one.name, ([], []))
        xs.append(one.t - 1)
        ys.append(100 * one.made)
    return [(name, xs, ys) for name, (xs, ys) in lines.items()]


# The confidential report: quality measured on private and held-out records, calls, costs and times, the evolution.
#
# Guarantee: none. It is written into confidential/, says so in red, and `pe purge` deletes it.


INTERNAL_REPORT = f"{CONFIDENTIAL}/report.html"
METRICS = f"{CONFIDENTIAL}/metrics.json"


def internal_report(run: Run) -> str:
    """The confidential page of a run.

    Raises:
        RunError: the confidential side was purged, or nothing of the run is there yet to be shown.
    """
    if not run.confidential.is_dir():
        raise RunError(f"{run.folder} has no confidential side: it was purged, or is a copy.")
    metrics = read_metrics(run)
    values = evolution(run) | costs(run) | ({"metrics": None} if metrics is None else quality(run, metrics))
    return render("confidential.html", values)


def read_metrics(run: Run) -> dict[str, Any] | None:
    """What `pe evaluate` measured; None when it did not.

    Raises:
        RunError: the file is damaged, or of another version.
    """
    path = run.folder / METRICS
    if not path.is_file():
        return None
    try:
        metrics: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunError(f"{path} is not JSON: run `pe evaluate` again.") from error
    version = metrics.get("version") if isinstance(metrics, dict) else None
    if version != 1:
        raise RunError(f"{path} has version {version!r}, not 1: run `pe evaluate` again.")
    return metrics


def costs(run: Run) -> dict[str, object]:
    """Calls, images, refusals, cost and time, phase by phase and in all; when what happened."""
    price = price_of(public_plan(run)[0])
    with read_journal(run) as journal:
        events, phases = journal.events(), [_phase(journal, name, price) for name in journal.phases()]
        totals = journal.totals()
    spent = totals.usage
    numbers = (f"{spent.calls:,}", "", f"{spent.images:,}", f"{totals.refused:,}", "", _money(price, spent), "")
    return {"events": events, "phases": [*phases, ("all", *numbers)]}


def _phase(journal: Journal, name: str, price: Price) -> tuple[str, ...]:
    chunks, misses = journal.chunks(name), journal.misses(name)
    spent = sum((row.usage for row in chunks), NOTHING)
    refused = sum(miss.outcome == "refused" for miss in misses)
    return (
        name,
        f"{spent.calls:,}",
        f"{spent.calls - len(chunks):,}",
        f"{spent.images:,}",
        f"{refused:,}",
        f"{len(misses) - refused:,}",
        _money(price, spent),
        f"{sum(row.seconds for row in chunks):,.1f}",
    )


def _money(price: Price, spent: Usage) -> str:
    return "free" if price.free else f"{price.of(spent):,.2f} {price.currency}"


# The report that goes with a run's data: made of released and public things alone.
#
# Guarantee: post-processing of the run's releases; it reads nothing under confidential/ and holds no time.


Certificate = Mapping[str, Any]

REPORT = "report.html"

_POINTS = 160

_OTHER_WORLD = {
    Relation.ADD_REMOVE: "had never been in the private data, or one more had been",
    Relation.REPLACE_ONE: "in the private data had been another",
    Relation.ZERO_OUT: "in the private data had been blank",
}


def shareable_report(run: Run) -> str:
    """The page of a run, finished or not.

    Raises:
        RunError: nothing of the run is there yet to be shown.
    """
    values = evolution(run)
    found, populations, certificate = values["found"], run.populations(len(values["plan"].classes)), certificate_of(run)
    plan = values["plan"]
    variety = varieties(populations, plan.classes, plan.seed)
    t = len(populations) - 1
    collapse = collapse_warnings(t, variety[-1], plan.steps[t - 1] if t else None)
    values |= {
        "certificate": certificate,
        "pool_overlaps": POOL_OVERLAPS,
        "no_noise": NO_NOISE if run.noiseless else "",
        "warnings": [
            *(certificate["warnings"] if certificate else _warnings(run, plan)),
            *collapse,
            *suspicions(f"S_{t}", populations[-1].samples),
        ],
        "promise": promise(certificate) if certificate else "No guarantee can be stated before the run is finished.",
        "count": len(populations[-1]),
        "varieties": [whole(by_label) for by_label in variety],
        "variety": variety[-1],
        "near": NEAR,
        "degree": run.degree,
        "noun": populations[-1].samples.noun,
        "unit": populations[-1].samples.unit,
        "extensions": [(len(one), strips(one, plan.classes)) for one in run.extensions()],
        "votes": [sorted_votes(one) for one in found],
        "passing": [100 * one.passing for one in found],
        "generators": (told := fared(populations, found)),
        "generator_lines": lines_of(told),
        "extremes": extremes(populations[found[-1].t - 1], found[-1].votes) if found else [],
        "recipe": without_folders((run.folder / RECIPE).read_text(encoding="utf-8")),
        "page": REPORT,
    }
    return render("shareable.html", values)


def promise(certificate: Certificate) -> str:
    """The certificate's promise without a technical term; where it is void, that it is."""
    if not certificate["holds"]:
        return str(certificate["statement"])
    epsilon, delta, unit = certificate["epsilon"], certificate["delta"], certificate["unit"]["name"]
    factor = round_up(math.exp(epsilon), 4) if epsilon < 500 else "e^ε"
    return (
        "Whatever anybody concludes from these files, and whatever else they know: the probability of that conclusion "
        f"is at most {factor} times what it would be if any one {unit} "
        f"{_OTHER_WORLD[Relation(certificate['relation']['name'])]}, plus {delta:g}. A test for whether a given {unit} "
        "was used that wrongly accuses 1 in 100 finds at most "
        f"{found_at_most(epsilon, delta, certificate['gdp_mu'])}."
    )


def _warnings(run: Run, plan: Plan) -> list[str]:
    """What the certificate of a run that is not finished will warn of."""
    recipe = Recipe.load(run.folder / RECIPE)
    return guarantee_warnings(recipe, plan, epsilon(plan.releases, recipe.privacy.delta))


def sorted_votes(one: Generation) -> Line:
    """The noisy votes of an iteration from most to fewest, as a curve over the candidates in per cent."""
    ordered = np.sort(one.votes)[::-1]
    places = np.unique(np.linspace(0, len(ordered) - 1, min(_POINTS, len(ordered))).round().astype(np.int64))
    shares = 100 * places / max(len(ordered) - 1, 1)
    return f"iteration {one.t}", shares.tolist(), ordered[places].tolist()
