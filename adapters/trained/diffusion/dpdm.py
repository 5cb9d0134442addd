"""DPDM: a diffusion model trained on the private records alone (Dockhorn, Cao, Vahdat and Kreis 2023)."""

from __future__ import annotations

from adapters.trained.diffusion.base import FineTuned
from adapters.trained.public import ReadsPublic


class DPDM(ReadsPublic, FineTuned):
    """Trained by DP-SGD from a new network on, without public images (Dockhorn, Cao, Vahdat and Kreis 2023).

    See `FittedDiffusion`.
    """

    public = None
