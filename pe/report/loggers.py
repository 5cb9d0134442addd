"""Loggers, which get every iteration as values that may be shared, and no other values.

Guarantee: the values are made of the run's shareable side (populations, releases, recipe) and of
the generator's bill, all post-processing of the releases; none is a time, or comes from
confidential/.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from PIL import Image

from pe.report.pages import released_votes
from pe.report.pictures import contact_sheet
from pe.steps import Plan
from pe.store.run import Run

if TYPE_CHECKING:
    import wandb

_EXPERIMENT = "private-evolution"


@dataclass(frozen=True)
class Logged:
    """One iteration, S_t, as a logger gets it.

    Attributes:
        run: the name of the run's directory.
        t: the iteration, ≥ 0.
        noun: what samples are called.
        sizes: label → members.
        votes: noisy votes for S_{t−1}: highest, mean, and share over the threshold; empty at t = 0.
        epsilon: ε of all planned releases; None: no ε holds.
        delta: δ.
        images: number of images billed so far; None: S_t was made before this process began.
        cost: cost of all that was billed so far, in the price's currency; None: S_t was made before
            this process began.
        picture: a PNG file: S_t's samples by label.
    """

    run: str
    t: int
    noun: str
    sizes: Mapping[str, int]
    votes: Mapping[str, float]
    epsilon: float | None
    delta: float
    images: int | None
    cost: float | None
    picture: bytes

    def numbers(self) -> dict[str, float]:
        """Return all numbers by names that any logger takes.

        Names hold letters, digits, spaces, `_`, `-`, `.` and `/`.
        """
        numbers: dict[str, float | None] = {}
        for i, (label, size) in enumerate(self.sizes.items()):
            # numbered, since names may differ only in what is replaced
            name = re.sub(r"[^\w .-]", "_", label).strip()
            numbers[f"size/{i} {name}"] = size
        for name, value in self.votes.items():
            numbers[f"votes/{name}"] = value
        numbers |= {"privacy/epsilon": self.epsilon, "privacy/delta": self.delta}
        numbers |= {"billed/images": self.images, "billed/cost": self.cost}
        return {name: float(value) for name, value in numbers.items() if value is not None}


class Logger(Protocol):
    """A plug-in of the group `pe.loggers`, constructed with one text: the place where it logs.

    A resumed run logs every iteration again, by the same `t`.
    """

    def log(self, entry: Logged) -> None:
        """Log one more iteration. They come in order."""

    def close(self) -> None:
        """End the log, because the run has ended or stopped."""


def make_entry(
    run: Run,
    plan: Plan,
    t: int,
    epsilon: float | None,
    delta: float,
    images: int | None,
    cost: float | None,
) -> Logged:
    """Return the shareable values of S_t, which is finished."""
    population = run.population(t)
    assert population is not None
    counts = np.bincount(population.labels, minlength=len(plan.classes)).tolist()
    numbers = {}
    # S_0 has no votes before it
    if t:
        step = plan.steps[t - 1]
        votes = released_votes(run, step)
        if votes is not None:
            numbers = {
                "highest": float(votes.max()),
                "mean": float(votes.mean()),
                "over the threshold": float(np.mean(votes > step.threshold)),
            }
    return Logged(
        run=run.name,
        t=t,
        noun=population.samples.noun,
        sizes=dict(zip(plan.classes, counts, strict=True)),
        votes=numbers,
        epsilon=epsilon,
        delta=delta,
        images=images,
        cost=cost,
        picture=contact_sheet([population], plan.classes),
    )


class MLflow:
    """Logs to a run in the experiment `private-evolution` of a tracking server or store.

    `where` is its URI.
    """

    def __init__(self, where: str) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=where)
        self._run: str | None = None

    def log(self, entry: Logged) -> None:
        """Log a metric for each number, and an artifact for the picture."""
        if self._run is None:
            earlier = self._client.get_experiment_by_name(_EXPERIMENT)
            experiment = (
                earlier.experiment_id if earlier else self._client.create_experiment(_EXPERIMENT)
            )
            self._run = self._client.create_run(experiment, run_name=entry.run).info.run_id
        for name, value in entry.numbers().items():
            self._client.log_metric(self._run, name, value, step=entry.t)
        self._client.log_image(
            self._run, Image.open(io.BytesIO(entry.picture)), f"{entry.noun}/{entry.t:03d}.png"
        )

    def close(self) -> None:
        """Mark the run as ended."""
        if self._run is not None:
            self._client.set_terminated(self._run)


class TensorBoard:
    """Writes event files below the folder `where`.

    The time of each event is its iteration, so that no time is told.
    """

    def __init__(self, where: str) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._folder = Path(where)
        self._new_writer = EventFileWriter
        self._event = event_pb2.Event
        self._summary = summary_pb2.Summary
        self._writer: EventFileWriter | None = None

    def log(self, entry: Logged) -> None:
        """Write one event: the numbers, and the picture of the samples."""
        if self._writer is None:
            self._writer = self._new_writer(str(self._folder / entry.run))
        summary = self._summary()
        for name, value in entry.numbers().items():
            summary.value.add(tag=name, simple_value=value)
        width, height = Image.open(io.BytesIO(entry.picture)).size
        picture = self._summary.Image(
            height=height, width=width, colorspace=3, encoded_image_string=entry.picture
        )
        summary.value.add(tag=entry.noun, image=picture)
        self._writer.add_event(self._event(step=entry.t, wall_time=entry.t, summary=summary))
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


class WandB:
    """Logs to the project `where` of Weights & Biases.

    All that wandb collects by itself (console, …) is off. wandb itself reads WANDB_MODE, WANDB_DIR
    and WANDB_API_KEY.
    """

    def __init__(self, where: str) -> None:
        import wandb

        self._wandb = wandb
        self._project = where
        self._run: wandb.Run | None = None

    def log(self, entry: Logged) -> None:
        """Log one step: the numbers, and the picture of the samples."""
        if self._run is None:
            quiet = self._wandb.Settings(
                console="off",
                disable_code=True,
                disable_git=True,
                save_code=False,
                silent=True,
                x_disable_machine_info=True,
                x_disable_meta=True,
                x_disable_stats=True,
                x_save_requirements=False,
            )
            self._run = self._wandb.init(project=self._project, name=entry.run, settings=quiet)
        picture = self._wandb.Image(Image.open(io.BytesIO(entry.picture)))
        self._run.log({**entry.numbers(), entry.noun: picture}, step=entry.t)

    def close(self) -> None:
        """Finish the run."""
        if self._run is not None:
            self._run.finish()
