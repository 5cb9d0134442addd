"""How pipelines share a device's memory: slices, tiles, and parts that wait on the CPU until they are at work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pe.errors import RecipeError

if TYPE_CHECKING:
    import torch

Offload = Literal["none", "model", "sequential", "group"]

_WHOLE = 4  # images decoded at once; the autoencoder works on whole pictures, and so needs more for each than the rest


@dataclass(frozen=True)
class Memory:
    """How memory is saved at the cost of time.

    Attributes:
        attention_slicing: attention head by head on MPS; elsewhere torch fuses attention, which takes less memory yet.
        vae_slicing: decode latents one at a time; None: those of a batch above 4.
        vae_tiling: decode an image tile by tile.
        offload: keep in the accelerator's memory only what is at work: none, model (a part), group (a few blocks), or
            sequential (layers).
    """

    attention_slicing: bool = False
    vae_slicing: bool | None = None
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
            if self.attention_slicing and device.type == "mps":
                pipeline.enable_attention_slicing()
            if self.vae_slicing:
                _autoencoder(pipeline, "vae_slicing", "use_slicing").enable_slicing()
            if self.vae_tiling:
                _autoencoder(pipeline, "vae_tiling", "use_tiling").enable_tiling()
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

    def slice(self, pipeline: Any, count: int) -> None:
        """Before each call: decode `count` images one at a time or together, where that is not set for good."""
        autoencoder: Any = getattr(pipeline, "vae", None)
        if self.vae_slicing is not None or not hasattr(autoencoder, "use_slicing"):
            return
        (autoencoder.enable_slicing if count > _WHOLE else autoencoder.disable_slicing)()


def _autoencoder(pipeline: Any, setting: str, switch: str) -> Any:
    found = getattr(pipeline, "vae", None)
    if not hasattr(found, switch):
        raise RecipeError(f"{setting}: {type(pipeline).__name__} has no autoencoder that can, so leave it out.")
    return found
