"""A frozen classifier, read: its logits, and the moments of what enters its GroupNorm layers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call

from adapters.trained.plain import tensors

Vector = npt.NDArray[np.float64]


class Reader:
    """Logits and moments of images, by a classifier that stays as it is.

    To be called by one thread at a time: what enters a layer is caught where the layer is.

    Args:
        teacher: frozen, in evaluation mode, so that each image is seen alone. Its buffers are copied for each call:
            what a layer writes to them is gone with it.
    """

    def __init__(self, teacher: nn.Module) -> None:
        self.teacher = teacher.eval().requires_grad_(False)
        self._layers = [module for module in teacher.modules() if isinstance(module, nn.GroupNorm)]
        self.widths = tuple(layer.num_channels for layer in self._layers)

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (n, classes), means (n, d) and mean squares (n, d) of all channels, layer by layer."""
        seen: list[Tensor] = []
        hooks = [
            layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].flatten(2)))
            for layer in self._layers
        ]
        try:
            buffers = {name: value.clone() for name, value in self.teacher.named_buffers()}
            logits: Tensor = functional_call(self.teacher, buffers, (images,))
        finally:
            for hook in hooks:
                hook.remove()
        means = torch.cat([each.mean(dim=2) for each in seen], dim=1)
        squares = torch.cat([each.square().mean(dim=2) for each in seen], dim=1)
        return logits, means, squares

    def moments(self, images: npt.NDArray[np.uint8], device: torch.device) -> tuple[Vector, Vector]:
        """Means and mean squares of uint8 n×h×w×c, float64 (n, d) each.

        A private image is asked for alone: so its moments depend on no other, to the last bit.
        """
        with torch.no_grad():
            _, means, squares = self(tensors(images, device))
        return means.cpu().double().numpy(), squares.cpu().double().numpy()
