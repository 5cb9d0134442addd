"""The two reports of a run: how it evolved, its certificate, its quality, its costs.

The shareable report is post-processing of the run's releases: it reads nothing under confidential/
and holds no time. The confidential one has no guarantee: it is written into confidential/, says so
in red, and `pe purge` deletes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pe.data.arrays import Float64Array
from pe.data.bounded import read_bytes
from pe.data.population import Population
from pe.data.samples import GENERATOR, Samples, slices, suspicions
from pe.errors import DamagedFile, RunError
from pe.planning.choice import signal_of
from pe.planning.notices import notices, sentences
from pe.planning.parts import price_of
from pe.planning.releases import plan_of
from pe.plugins.protocols import NOTHING
from pe.privacy.accounting import epsilon
from pe.privacy.certificate_text import NO_NOISE, POOL_OVERLAPS
from pe.privacy.covered import release_file
from pe.recipe.schema import Recipe
from pe.report.columns import columns_on_page
from pe.report.pictures import NEAR, collapse_warnings, extremes, strips, varieties, whole
from pe.report.render import Line, render, show
from pe.steps import Plan, Step
from pe.store.places import CONFIDENTIAL, RECIPE, without_folders
from pe.store.run import Run
from pe.store.writer import read_journal

Metrics = Mapping[str, Any]
Table = list[tuple[str, ...]]
"""Rows of cells. As a rule the first row is the head."""

REPORT = "report.html"
INTERNAL_REPORT = f"{CONFIDENTIAL}/report.html"
METRICS = f"{CONFIDENTIAL}/metrics.json"
BLOCK = 4096

_POINTS = 160
_WORST = 20  # confusions that are listed if there are too many classes for a matrix
_SETS = {
    "synthetic": ("synthetic", "the run's data."),
    "unevolved": (
        "un-evolved",
        "samples straight from the generator, before any vote.",
    ),
    "one_vote": (
        "one vote",
        "samples straight from the generator, chosen by a single vote with the whole budget and "
        "not varied. The difference from it is what evolving brought.",
    ),
    "public": (
        "public data",
        "the public samples that the generator was given, with their labels.",
    ),
    "real": ("real", "the private records: 10 on the scale."),
}


def shareable_report(run: Run) -> str:
    """Return the page of a run, finished or not.

    Raises:
        RunError: there is nothing to show yet.
    """
    values = evolution(run)
    plan = values["plan"]
    history = values["found"]
    populations = run.populations(len(plan.classes))
    certificate = certificate_of(run)
    last = populations[-1]
    t = len(populations) - 1
    variety = varieties(populations, plan.classes, plan.seed)
    shares = generator_shares(populations, history)
    if certificate:
        warnings = certificate["warnings"]
    else:
        # what a certificate will warn of, as far as it is known
        recipe = Recipe.load(run.folder / RECIPE)
        told = notices(recipe, plan, epsilon(plan.releases, recipe.privacy.delta))
        warnings = sentences(told, "guarantee", "votes")
    values |= columns_on_page(run, populations, plan.classes) | {
        "certificate": certificate,
        "pool_overlaps": POOL_OVERLAPS,
        "no_noise": NO_NOISE if run.noiseless else "",
        "warnings": [
            *warnings,
            *collapse_warnings(t, last.samples, variety[-1], plan.steps[t - 1] if t else None),
            *suspicions(f"S_{t}", last.samples),
        ],
        "count": len(last),
        "varieties": [whole(by_label) for by_label in variety],
        "variety": variety[-1],
        "near": NEAR,
        "degree": run.degree,
        "noun": last.samples.noun,
        "unit": last.samples.unit,
        "extensions": [(len(one), strips(one, plan.classes)) for one in run.extensions()],
        "generators": shares,
        "generator_lines": share_lines(shares),
        "extremes": extremes(populations[history[-1].t - 1], history[-1].votes) if history else [],
        "recipe": without_folders(read_bytes(run.folder / RECIPE).decode()),
        "page": REPORT,
    }
    return render("shareable.html", values)


def internal_report(run: Run) -> str:
    """Return the confidential page of a run."""
    if not run.confidential.is_dir():
        raise RunError(f"{run.folder} has no confidential side: it was purged, or is a copy.")
    metrics = read_metrics(run)
    values: dict[str, Any] = evolution(run) | costs(run) | {"metrics": None}
    if metrics is not None:
        values |= quality(run, metrics)
    real = (metrics or {}).get("table", {}).get("reference")
    values |= columns_on_page(run, run.populations(), values["plan"].classes, real)
    return render("confidential.html", values)


@dataclass(frozen=True, eq=False)
class Generation:
    """Iteration t ≥ 1 of a run. Fields that need S_t are None while S_t is not finished."""

    t: int
    degree: float
    votes: Float64Array  # (m,), noisy votes of S_{t−1}'s m members, in votes; may be negative
    threshold: float  # H, in votes
    sigma: float  # standard deviation of the noise, in votes
    # expected votes per candidate, by declared size, of the label with the fewest, over σ; None: no
    # size, or no noise
    signal: float | None
    passing: float  # share of candidates over the threshold, in [0, 1]
    effective: float  # effective number of parents, (Σw)² / Σw² with w = max(votes − H, 0)
    parents: int | None = None  # distinct members of S_{t−1} that have offspring in S_t
    founders: int | None = None  # distinct members of S_0 that have descendants in S_t
    equals: int | None = None  # members of S_t that equal their parent: kept ones, refused ones
    # mean distance of a member of S_t from its parent, in the modality's unit
    mean_move: float | None = None

    @property
    def curve(self) -> Line:
        """The noisy votes from most to fewest, over the candidates in per cent."""
        votes = np.sort(self.votes)[::-1]
        # a thinned curve looks the same, and keeps the page small
        places = np.unique(np.linspace(0, len(votes) - 1, min(_POINTS, len(votes))).round())
        shares = 100 * places / max(len(votes) - 1, 1)
        return f"iteration {self.t}", shares.tolist(), votes[places.astype(int)].tolist()

    @property
    def percent_passing(self) -> float:
        """The share of candidates over the threshold, in per cent."""
        return 100 * self.passing


def public_plan(run: Run) -> tuple[Recipe, Plan]:
    """Return the run's shareable recipe, and its plan."""
    recipe = Recipe.load(run.folder / RECIPE)
    return recipe, plan_of(run, recipe)


def certificate_of(run: Run) -> dict[str, Any] | None:
    """Return the run's certificate, or None while the run is not finished."""
    return run.guarantee if run.is_finished else None


def evolution(run: Run) -> dict[str, Any]:
    """Return the values that both reports show of how a run evolved.

    Raises:
        RunError: there is nothing to show yet.
    """
    recipe, plan = public_plan(run)
    populations = run.populations(len(plan.classes))
    if not populations:
        raise RunError(f"{run.folder} has no population yet: there is nothing to report.")
    rows = [strips(population, plan.classes) for population in populations]
    return {
        "name": run.name,
        "plan": plan,
        "found": generations(run, recipe, plan),
        "populations": rows,
    }


def generations(run: Run, recipe: Recipe, plan: Plan) -> list[Generation]:
    """Return every iteration whose votes were released."""
    populations = run.populations(len(plan.classes))
    history = []
    lineage = np.arange(len(populations[0])) if populations else np.empty(0, dtype=np.int64)
    for step in plan.steps:
        votes = released_votes(run, step)
        if votes is None or len(populations) < step.t:
            break
        before = populations[step.t - 1]
        weights = np.maximum(votes - step.threshold, 0.0)
        square = float(np.square(weights).sum())
        sizes = np.bincount(before.labels, minlength=len(plan.classes)).tolist()
        signal = signal_of(recipe, plan, step, sizes)
        one = Generation(
            t=step.t,
            degree=step.degree,
            votes=votes,
            threshold=step.threshold,
            sigma=signal.sigma,
            signal=signal.to_noise,
            passing=float(np.mean(votes > step.threshold)),
            effective=float(weights.sum() ** 2 / square) if square else 0.0,
        )
        # the votes are there before the population that they choose
        if len(populations) > step.t:
            after = populations[step.t]
            lineage = lineage[after.parents]
            distances = _distances(before.samples, after)
            one = replace(
                one,
                parents=len(np.unique(after.parents)),
                founders=len(np.unique(lineage)),
                equals=int(np.count_nonzero(distances == 0)),
                mean_move=float(distances.mean()),
            )
        history.append(one)
    return history


def released_votes(run: Run, step: Step) -> Float64Array | None:
    """Load the released votes of an iteration, float64 (m,), or None before they are there."""
    path = run.folder / release_file(step.release.name)
    if not path.is_file():
        return None
    try:
        steps = np.lib.format.open_memmap(path, mode="r")
        votes = np.asarray(steps, dtype=np.float64) / step.release.grid
        if votes.ndim != 1 or not np.isfinite(votes).all():
            raise ValueError("these are no votes")
    except (EOFError, OSError, TypeError, ValueError) as error:
        raise DamagedFile(f"{path} is damaged. Restore it from a copy.") from error
    return votes


def _distances(before: Samples, after: Population) -> Float64Array:
    """Return the distance of each member from its parent (n,).

    It goes block by block, because samples may take more than memory holds.
    """
    blocks = [
        after.samples.take(part).distances(before.take(after.parents[part]))
        for part in slices(len(after), BLOCK)
    ]
    return np.concatenate(blocks).astype(np.float64)


@dataclass(frozen=True)
class GeneratorShare:
    """The part that one of several generators has in iteration t."""

    t: int  # the iteration that votes for S_{t−1}; T + 1 for S_T, for which no iteration votes
    name: str
    part_of_all: float  # share of S_{t−1}'s samples that it made, in [0, 1]
    # its samples' share of the noisy votes; None: no votes, or their sum is not above 0
    votes: float | None
    # standard deviation of `votes` by the noise alone, if the sum of votes is large
    noise: float | None


def generator_shares(
    populations: Sequence[Population], history: Sequence[Generation]
) -> list[GeneratorShare]:
    """Return each generator's share of samples and votes by iteration.

    The last population has samples alone. The list is empty if the samples do not say which
    generator made them.

    Guarantee: post-processing of the released votes.
    """
    if not all(GENERATOR in population.conditions for population in populations):
        return []
    makers = [np.asarray(population.conditions[GENERATOR]) for population in populations]
    names = np.unique(np.concatenate(makers)).tolist()
    shares = []
    for t, maker in enumerate(makers, 1):
        one = history[t - 1] if t <= len(history) else None
        total = 0.0 if one is None else float(one.votes.sum())
        for name in names:
            own = maker == name
            votes = None
            noise = None
            if one is not None and total > 0:
                votes = float(one.votes[own].sum()) / total
                # of V_g / V to first order, over σ²
                variance = float(own.sum() * (1 - votes) ** 2 + (~own).sum() * votes**2)
                noise = one.sigma * variance**0.5 / total
            shares.append(GeneratorShare(t, name, float(own.mean()), votes, noise))
    return shares


def share_lines(shares: Sequence[GeneratorShare]) -> list[Line]:
    """Return a curve for each generator: its share of the samples of S_0, S_1, …, in per cent."""
    curves: dict[str, tuple[list[float], list[float]]] = {}
    for one in shares:
        xs, ys = curves.setdefault(one.name, ([], []))
        xs.append(one.t - 1)
        ys.append(100 * one.part_of_all)
    return [(name, *curve) for name, curve in curves.items()]


def costs(run: Run) -> dict[str, object]:
    """Return the values of templates/costs.html.

    They are events, and what was asked, refused and billed by phase and in all.
    """
    phases = []
    # read in one transaction, since the run may go on meanwhile
    with read_journal(run) as journal:
        for name in journal.phases():
            chunks = journal.chunks(name)
            misses = journal.misses(name)
            phases.append(
                {
                    "name": name,
                    "chunks": len(chunks),
                    "usage": sum((row.usage for row in chunks), NOTHING),
                    "misses": len(misses),
                    "refusals": sum(miss.outcome == "refused" for miss in misses),
                    "seconds": sum(row.seconds for row in chunks),
                }
            )
        return {
            "events": journal.events(),
            "phases": phases,
            "totals": journal.totals(),
            "price": price_of(public_plan(run)[0]),
        }


def read_metrics(run: Run) -> dict[str, Any] | None:
    """Load the result of `pe evaluate`, or return None if there is none."""
    path = run.folder / METRICS
    if not path.is_file():
        return None
    try:
        metrics: dict[str, Any] = json.loads(read_bytes(path))
    except ValueError as error:
        raise RunError(f"{path} is not JSON: run `pe evaluate` again.") from error
    version = metrics.get("version") if isinstance(metrics, dict) else None
    if version != 2:
        raise RunError(f"{path} has version {version!r}, not 2: run `pe evaluate` again.")
    return metrics


def quality(run: Run, metrics: Metrics) -> dict[str, object]:
    """Return the values of templates/quality.html: what `pe evaluate` measured.

    docs/evaluation.md has the names.
    """
    fidelity = metrics.get("fidelity") or {}
    memorisation = metrics.get("memorisation") or {}
    trained = trained_sets(metrics)
    controls = [each.get("controls") or {} for each in fidelity.values()]
    names = {"synthetic"}.union(trained, *controls)
    return {
        "metrics": metrics,
        "trained": trained,
        "trained_rows": trained_rows(metrics),
        "fidelity_rows": fidelity_rows,
        "table_rows": table_rows(metrics),
        "constraint_rows": constraint_rows(metrics),
        "sets": [words for name, words in _SETS.items() if name in names],
        "trained_sets": [_title(name) for name in trained],
        "title": _title,
        "certificate": certificate_of(run),
        "nearest": _nearest,
        "pairs": _pairs(run, memorisation, ".png"),
        "text_pairs": [
            pair for file in _pairs(run, memorisation, ".json") for pair in json.loads(file)
        ],
        "noun": (metrics.get("run") or {}).get("noun", "images"),
        "distance_names": distance_names,
        "most_confused": _most_confused,
        "spread": spread_of,
    }


def trained_sets(metrics: Metrics) -> Metrics:
    """Return what a classifier reached after each set, by the set's name. Empty: not measured."""
    trained: Metrics = (metrics.get("judgement") or {}).get("trained") or {}
    return trained


def headline_numbers(
    metrics: Metrics, others: Mapping[str, tuple[str, float]] | None = None
) -> dict[str, str]:
    """Return the synthetic data's results, name → value.

    They are the places for each purpose, and a number for each embedding and test.

    Args:
        metrics: what `pe evaluate` wrote.
        others: controls of other runs on the same scale: the name of each, its run, and its score.
    """
    numbers = {}
    judgement = metrics.get("judgement") or {}
    place = (trained_sets(metrics).get("synthetic") or {}).get("place")
    brought = judgement.get("brought") or {}
    if place:
        low, high = (show(place[end], ".1f") for end in ("low", "high"))
        numbers["for training, of 10"] = f"{show(place['score'], '.1f')} ({low} to {high})"
    if judgement.get("analyse") is not None:
        numbers["for statistics, of 10"] = show(judgement["analyse"], ".1f")
    for name, one in brought.items():
        low, high = (show(one[end], "+.1f") for end in ("low", "high"))
        numbers[f"gained over {_title(name)}"] = f"{show(one['score'], '+.1f')} ({low} to {high})"
    for name, (run, score) in (others or {}).items():
        if place and name not in brought:
            difference = show(place["score"] - score, "+.1f")
            numbers[f"gained over {_title(name)}"] = f"{difference} (that of {run})"
    for name, each in (metrics.get("fidelity") or {}).items():
        numbers[f"{distance_names(each)[0]}, {name}"] = show(each.get("frechet"), ",.4g")
    if "membership" in metrics.get("memorisation", {}):
        numbers["membership AUC"] = show(metrics["memorisation"]["membership"]["auc"], ".3f")
    return numbers


def distance_names(fidelity: Metrics) -> tuple[str, str]:
    """Return the names of the Fréchet and the kernel distance.

    They are FID and KID if they use the standard Inception network.
    """
    return ("FID", "KID") if fidelity.get("standard_inception") is True else ("Fréchet", "kernel")


def spread_of(values: Metrics, error: str = "std", forms: tuple[str, str] = (".1%", ".1%")) -> str:
    """Return mean ± error, as far as they are known."""
    around = "" if values.get(error) is None else f" ± {values[error]:{forms[1]}}"
    return show(values.get("mean"), forms[0]) + around


def trained_rows(metrics: Metrics) -> Table:
    """Return a table of what a classifier learns from each set: a head, then a row for each set."""
    judgement = metrics.get("judgement") or {}
    head = ("trained on", "of 10", judgement.get("measure", ""), "accuracy", "log-loss")
    rows: Table = [(*head, "learner", "size")]
    for name, one in trained_sets(metrics).items():
        place = one["place"]
        low, high = (show(place[end], ".1f") for end in ("low", "high"))
        score = f"{show(place['score'], '.1f')} ({low} to {high})"
        numbers = (show(place["value"], ".3f"), show(one["accuracy"], ".1%"))
        loss = show(one["log_loss"], ".3f")
        rows.append((_title(name), score, *numbers, loss, place["learner"], show(one["samples"])))
    return rows


def fidelity_rows(fidelity: Metrics) -> Table:
    """Return a table of distances and shares.

    Below its head are a row for the synthetic data and one for each control.
    """
    shares = ("precision", "recall", "density", "coverage")
    rows: Table = [("", *distance_names(fidelity), *shares)]
    for name, one in {"synthetic": fidelity, **(fidelity.get("controls") or {})}.items():
        kernel = spread_of(one.get("kernel") or {}, "standard_error", (".4g", ".2g"))
        numbers = (show(one.get(share), ".3f") for share in shares)
        rows.append((_title(name), show(one.get("frechet"), ",.4g"), kernel, *numbers))
    return rows


def table_rows(metrics: Metrics) -> Table:
    """Return a table of how far a table's sets lie from the reference, or an empty one.

    Below its head is a row for each set.
    """
    names = {
        "one_way": "columns",
        "two_way": "pairs",
        "three_way": "triples",
        "association": "association",
    }
    rows: Table = [("", *names.values(), "farthest column", "pair")]
    for name, one in (metrics.get("table") or {"sets": {}})["sets"].items():
        column = max(one["columns"], key=one["columns"].get)
        worst = f"{column} {one['columns'][column]:.3f}", " and ".join(one["pair"] or ())
        rows.append((_title(name), *(show(one[key], ".3f") for key in names), *worst))
    return rows if len(rows) > 1 else []


def constraint_rows(metrics: Metrics) -> Table:
    """Return a table of the shares of rows that break each constraint, if there are any.

    Below its head is a row for each set.
    """
    breaks = (metrics.get("table") or {}).get("breaks") or {}
    if not breaks:
        return []
    rows: Table = [("", *next(iter(breaks.values())))]
    for name, shares in breaks.items():
        rows.append((_title(name), *(f"{share:.1%}" for share in shares.values())))
    return rows


def _most_confused(
    labels: Sequence[str], confusion: Sequence[Sequence[int]]
) -> list[tuple[str, str, str]]:
    confused = []
    for i, row in enumerate(confusion):
        for j, count in enumerate(row):
            if count and i != j:
                confused.append((labels[i], labels[j], count / sum(row)))
    confused.sort(key=lambda each: -each[2])
    return [(one, other, f"{share:.1%}") for one, other, share in confused[:_WORST]]


def _nearest(memorisation: Metrics, names: Mapping[str, str]) -> list[Line]:
    """Return the distribution function of the distances that were measured, as curves.

    `names` maps the keys of `memorisation` to the curves' names.
    """
    curves = [(name, memorisation[key]) for key, name in names.items() if memorisation.get(key)]
    return [
        (name, one["quantiles"], [100 * level for level in one["levels"]]) for name, one in curves
    ]


def _pairs(run: Run, memorisation: Metrics, suffix: str) -> list[bytes]:
    """Return the contents of the nearest pairs' files with this suffix.

    Files outside the run's confidential folder are left out.
    """
    paths = [
        run.folder / name for name in (memorisation.get("nearest_pairs") or {}).get("files", [])
    ]
    inside = [path for path in paths if path.resolve().is_relative_to(run.confidential.resolve())]
    return [read_bytes(path) for path in inside if path.is_file() and path.suffix == suffix]


def _title(name: str) -> str:
    return _SETS[name][0] if name in _SETS else name
