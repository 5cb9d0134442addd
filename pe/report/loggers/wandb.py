"""Weights & Biases: a run in a project."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from PIL import Image

from pe.report.logged import Logged

if TYPE_CHECKING:
    import wandb


class WandB:
    """Logs to a project. What wandb collects by itself (console, code, host, arguments, load) is turned off.

    Args:
        where: the project's name. WANDB_MODE, WANDB_DIR and WANDB_API_KEY are wandb's own.
    """

    def __init__(self, where: str) -> None:
        import wandb

        self._wandb, self._project = wandb, where
        self._run: wandb.Run | None = None

    def log(self, logged: Logged) -> None:
        """One step: the numbers, and the picture of the samples."""
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
            self._run = self._wandb.init(project=self._project, name=logged.run, settings=quiet)
        picture = self._wandb.Image(Image.open(io.BytesIO(logged.picture)))
        self._run.log({**logged.numbers(), logged.noun: picture}, step=logged.t)

    def close(self) -> None:
        """Finish the run."""
        if self._run is not None:
            self._run.finish()
