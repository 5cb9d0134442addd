"""DP-SGD in a fit: the noise that the budget asks for, and one release after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

from adapters.diffusion.device import choose_devices
from adapters.trained.dp_sgd import DPSGD, calibrated, releases
from adapters.trained.dp_sgd.hyperparameters import FineTuning
from pe.errors import Interrupted, RecipeError
from pe.fit.trainer import FIT, FitTerms, Fitting, PrivateRecords
from pe.plugins.devices import words_for
from pe.privacy.ledger import Budget
from pe.privacy.release import Relation, Release

if TYPE_CHECKING:
    import torch

    from adapters.trained.dp_sgd.state import FloatArray
    from adapters.trained.dp_sgd.training import Training
    from pe.privacy.noise import Noise

TRAINING = f"{FIT}training"


def settled(training: FineTuning, terms: FitTerms, others: tuple[Release, ...], budget: Budget | None = None) -> DPSGD:
    """The fine-tuning with the least noise for which it and `others` meet a budget, the fit's unless another is given.

    It is found once per process: where records are sampled, it takes many seconds.

    Raises:
        RecipeError: a setting out of range.
        PrivacyError: too little is left for one useful step, or the unit is larger than a record.
    """
    open_ = training.dp_sgd(terms.declared_size)
    blocks_of(open_.with_noise(1.0), terms)  # a unit that it cannot protect, before the long search
    return _calibrated(open_, budget or terms.budget, Relation(terms.relation), others)


def blocks_of(settings: DPSGD, terms: FitTerms, name: str = TRAINING) -> tuple[Release, ...]:
    """The release of each block of steps, in order."""
    return releases(settings, name, terms.relation, terms.unit)


def train_blocks(
    training: Training,
    blocks: tuple[Release, ...],
    fitting: Fitting,
    private: Callable[[], PrivateRecords],
    what: str = "training on the private records",
    after: Callable[[FloatArray], None] | None = None,
) -> FloatArray:
    """The state after all `blocks`: stored ones are taken as they are, the others are drawn.

    Guarantee: the releases'. The private records are asked for only while a block is drawn.

    Args:
        training: what a block does.
        blocks: in order.
        fitting: ledger, progress, and the signal to stop.
        private: gives the records.
        what: the task's name.
        after: told of each block's state, which is released.

    Raises:
        Interrupted: the fit was told to stop.
        RecipeError: memory does not suffice.
        RunError: another process of the training ended.
    """
    state = training.start()
    with closing(training), fitting.progress.task(what, training.settings.steps) as task:
        if not all(fitting.ledger.drawn(release) for release in blocks):
            training.gather()
        for release in blocks:
            check_stop(fitting)
            state = fitting.ledger.release(release, _next(training, state, private))
            if after is not None:
                after(state)
            task.advance(release.count)
    return state


@contextmanager
def counted_steps(fitting: Fitting, what: str, steps: int) -> Iterator[Callable[[], None]]:
    """A task of so many steps; call what it yields after each: it raises Interrupted if a stop was requested."""
    with fitting.progress.task(what, steps) as task:

        def step_done() -> None:
            task.advance(1)
            check_stop(fitting)

        yield step_done


def training_device(wanted: str | list[str]) -> torch.device:
    """Where to train; MPS lacks float64, in which gradients are summed.

    Raises:
        RecipeError: there is no such device.
    """
    import torch

    found = choose_devices(wanted)[0]
    return found if found.type != "mps" else torch.device("cpu")


def training_devices(wanted: str | list[str], training: FineTuning) -> list[torch.device]:
    """Where each process of a training computes: a GPU of its own, or all on the processor; see `training_device`.

    Raises:
        RecipeError: there is no such device, or there are fewer GPUs than processes.
    """
    first, count = training_device(wanted), training.processes
    if first.type == "cpu":
        return [first] * count
    found = choose_devices(wanted)
    if len(found) < count:
        raise RecipeError(
            f"{training.section}.processes is {count}, and device names {words_for(len(found))}: name as many GPUs, or "
            f"take {training.section}.processes: {len(found)}."
        )
    return found[:count]


def check_stop(fitting: Fitting) -> None:
    """Raise Interrupted if a stop was requested."""
    if fitting.stop.is_set():
        raise Interrupted(
            "Stopped as asked, with every block of the fit that was released kept; "
            f"`pe resume {fitting.folder.parent}` goes on."
        )


def _next(
    training: Training, state: FloatArray, private: Callable[[], PrivateRecords]
) -> Callable[[Noise], FloatArray]:
    """Draws the block after `state`."""

    def draw(noise: Noise) -> FloatArray:
        records = private()
        return training.block(state, records.samples, records.labels, noise)

    return draw


@lru_cache(maxsize=64)
def _calibrated(settings: DPSGD, budget: Budget, relation: Relation, others: tuple[Release, ...]) -> DPSGD:
    return calibrated(settings, budget, relation, others)
