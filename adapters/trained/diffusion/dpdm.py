"""DPDM: a diffusion model trained on the private records alone (Dockhorn, Cao, Vahdat and Kreis 2023)."""

from __future__ import annotations

from adapters.trained.diffusion.base import FittedDiffusion
from adapters.trained.diffusion.files import Sampling
from adapters.trained.diffusion.levels import Network
from adapters.trained.dp_sgd.hyperparameters import FineTuning


class DPDM(FittedDiffusion):
    """Trained by DP-SGD from a new network on, without public images (Dockhorn, Cao, Vahdat and Kreis 2023).

    See `FittedDiffusion`.
    """

    def __init__(
        self,
        *,
        network: Network | None = None,
        training: FineTuning | None = None,
        sampling: Sampling | None = None,
        device: str | list[str] = "auto",
        batch_size: int | None = None,
    ) -> None:
        super().__init__(network, training, sampling, device, batch_size)
