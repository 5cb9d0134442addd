"""How pipelines share a device's memory: slices, tiles, and parts that wait on the CPU until they are at work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pe.errors import RecipeError

if TYPE_CHECKING:
    import torch

Offload = Literal["none", "model", "sequential", "group"]


@dataclass(frozen=True)
class Memory:
    """How memory is saved at the cost of time.

    Attributes:
        attention_slicing: attention head by head.
        vae_slicing: decode latents one at a time.
        vae_tiling: decode an image tile by tile.
        offload: keep in the accelerator's memory only what is at work: none, model (a part), group (a few blocks), or
            sequential (layers).
    """

    attention_slicing: bool = False
    vae_slicing: bool = False
    vae_tiling: bool = False
    offload: Offload = "none"

    def place(self, pipelines: Sequence[Any], device: torch.device) -> None:
        """Put the weights where they belong.

        Raises:
            RecipeError: offloading from a CPU, or a pipeline has not what is to be sliced.
        """
        if self.offload != "none" and device.type == "cpu":
            raise RecipeError(f"offload is '{self.offload}', but the model runs on the CPU already: leave it as none.")
        offloaded: list[Any] = []
        for pipeline in pipelines:
            if self.attention_slicing:
                pipeline.enable_attention_slicing()
            if self.vae_slicing:
                self._autoencoder(pipeline, "vae_slicing", "enable_slicing")()
            if self.vae_tiling:
                self._autoencoder(pipeline, "vae_tiling", "enable_tiling")()
            if self.offload == "none":
                pipeline.to(device)
            elif self.offload == "group":
                done = [name for name, part in pipeline.components.items() if any(part is other for other in offloaded)]
                pipeline.enable_group_offload(
                    onload_device=device, num_blocks_per_group=1, use_stream=True, exclude_modules=done
                )
                offloaded += pipeline.components.values()

    def engage(self, pipeline: Any, device: torch.device) -> None:
        """Hand shared weights over to this of the pipelines."""
        if self.offload == "model":
            pipeline.enable_model_cpu_offload(device=device)
        elif self.offload == "sequential":
            pipeline.enable_sequential_cpu_offload(device=device)

    def _autoencoder(self, pipeline: Any, setting: str, method: str) -> Any:
        found = getattr(getattr(pipeline, "vae", None), method, None)
        if found is None:
            raise RecipeError(f"{setting}: {type(pipeline).__name__} has no autoencoder that can, so leave it out.")
        return found
