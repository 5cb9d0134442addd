"""How a run evolved, from what was released and what is public: shareable like the run itself.

Durations, calls and retries are not here: they are confidential, or depend on crashes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pe.data.population import Population
from pe.data.samples import Samples
from pe.errors import DamagedFile, RunError
from pe.planning.layout import plan_of
from pe.planning.signal import signal_of
from pe.recipe.schema import Recipe
from pe.report.pictures import strips
from pe.steps import Plan, Step
from pe.store.places import CERTIFICATE, RECIPE
from pe.store.run import Run

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
