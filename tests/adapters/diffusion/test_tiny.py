"""Every tiny pipeline survives a folder, draws by its seeds, and answers about a parent where it takes one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from diffusers import ControlNetModel, DiffusionPipeline, StableDiffusionControlNetPipeline
from PIL import Image

from tests.adapters.diffusion import tiny, tiny_edit, tiny_more, tiny_qwen

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # diffusers and numpy 2
    pytest.mark.filterwarnings("ignore:.callback_steps. is deprecated:FutureWarning"),  # Kandinsky's own call
]

SIDE = 64
SMALL = {"height": SIDE, "width": SIDE}
KONTEXT = SMALL | {"max_area": SIDE**2, "_auto_resize": False, "max_sequence_length": 16}
KANDINSKY = SMALL | {"prior_num_inference_steps": 2}
RANDOM: dict[str, tuple[Callable[[], DiffusionPipeline], dict[str, object]]] = {
    "Flux Kontext": (tiny_edit.flux_kontext, KONTEXT),
    "FLUX.2": (tiny_edit.flux_2, SMALL | {"max_sequence_length": 32}),
    "Kandinsky 2.2": (tiny_edit.kandinsky, KANDINSKY),
    "PixArt-Sigma": (tiny_more.pixart_sigma, SMALL | {"use_resolution_binning": False, "max_sequence_length": 16}),
    "Qwen-Image": (tiny_qwen.qwen_image, SMALL),
    "Z-Image": (tiny_qwen.z_image, SMALL | {"max_sequence_length": 64}),
}
EDITS: dict[str, tuple[Callable[[], DiffusionPipeline], dict[str, object]]] = {
    "Flux Kontext": RANDOM["Flux Kontext"],
    "FLUX.2": RANDOM["FLUX.2"],
    "InstructPix2Pix": (tiny_edit.instruct_pix2pix, {}),
    "Qwen-Image-Edit": (tiny_qwen.qwen_image_edit, SMALL),
    "Qwen-Image-Edit Plus": (lambda: tiny_qwen.qwen_image_edit(plus=True), SMALL),
    "SD image variations": (tiny_edit.image_variation, SMALL | {"prompt": None}),
}


def reloaded(pipeline: DiffusionPipeline, folder: Path) -> DiffusionPipeline:
    pipeline.save_pretrained(folder)
    loaded = DiffusionPipeline.from_pretrained(folder, local_files_only=True)
    loaded.set_progress_bar_config(disable=True)
    return loaded


def draw(pipeline: DiffusionPipeline, seed: int = 0, **more: object) -> npt.NDArray[np.float32]:
    """One image; `prompt=None` leaves the prompt out."""
    arguments = {"prompt": "a cat", "num_inference_steps": 2, "output_type": "np"} | more
    given = {name: value for name, value in arguments.items() if value is not None}
    images = pipeline(generator=torch.Generator().manual_seed(seed), **given).images
    assert images.shape == (1, SIDE, SIDE, 3)
    assert np.isfinite(images).all()
    return images[0]


def parent(brightness: int) -> Image.Image:
    ramp = np.linspace(0, 100, SIDE, dtype=np.uint8)[:, None, None] + brightness
    return Image.fromarray(np.broadcast_to(ramp, (SIDE, SIDE, 3)).astype(np.uint8))


@pytest.mark.parametrize("name", RANDOM)
def test_a_folder_draws_by_its_seeds(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    build, arguments = RANDOM[name]
    pipeline = reloaded(build(), tmp_path)
    first, second = (draw(pipeline, seed, **arguments) for seed in (0, 1))
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("name", EDITS)
def test_a_parent_is_heeded(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    build, arguments = EDITS[name]
    pipeline = reloaded(build(), tmp_path)
    first, second = (draw(pipeline, image=parent(grey), **arguments) for grey in (0, 150))
    assert 255 * np.abs(first - second).mean() > 0.5  # so that 8 bits tell them apart


def test_kandinsky_mixes_a_prompt_and_a_parent(tmp_path: Path) -> None:
    torch.manual_seed(0)
    pipeline = reloaded(tiny_edit.kandinsky(), tmp_path)

    def varied(grey: int, weight: float) -> npt.NDArray[np.float32]:
        generator = torch.Generator().manual_seed(0)
        weights = [weight, 1 - weight]
        mixed = pipeline.prior_pipe.interpolate(
            ["a cat", parent(grey)], weights, num_inference_steps=2, generator=generator
        )
        out = pipeline.decoder_pipe(**mixed, **SMALL, num_inference_steps=2, generator=generator, output_type="np")
        return out.images[0]

    assert not np.array_equal(varied(0, 0.5), varied(150, 0.5))
    np.testing.assert_array_equal(varied(0, 1.0), varied(150, 1.0))


def test_an_ip_adapter_shows_the_parent_to_stable_diffusion(tmp_path: Path) -> None:
    torch.manual_seed(0)
    pipeline = reloaded(tiny.stable_diffusion(), tmp_path / "base")
    pipeline.load_ip_adapter(**tiny_edit.ip_adapter(tmp_path / "adapter", pipeline.unet), local_files_only=True)
    first, second = (draw(pipeline, ip_adapter_image=parent(grey), **SMALL) for grey in (0, 150))
    assert not np.array_equal(first, second)
    pipeline.set_ip_adapter_scale(0.0)
    first, second = (draw(pipeline, ip_adapter_image=parent(grey), **SMALL) for grey in (0, 150))
    np.testing.assert_array_equal(first, second)


def test_a_control_net_shows_the_parent_to_stable_diffusion(tmp_path: Path) -> None:
    torch.manual_seed(0)
    base = tiny.stable_diffusion()
    tiny_edit.control_net(base.unet).save_pretrained(tmp_path)
    net = ControlNetModel.from_pretrained(tmp_path, local_files_only=True)
    pipeline = StableDiffusionControlNetPipeline(**base.components, controlnet=net, requires_safety_checker=False)
    pipeline.set_progress_bar_config(disable=True)
    first, second = (draw(pipeline, image=parent(grey)) for grey in (0, 150))
    assert not np.array_equal(first, second)


def test_a_lora_changes_what_stable_diffusion_draws(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    torch.manual_seed(0)
    pipeline = tiny.stable_diffusion()
    pipeline.set_progress_bar_config(disable=True)
    file = tiny_more.lora(tmp_path, pipeline.unet)
    before = draw(pipeline, **SMALL)
    pipeline.load_lora_weights(file.parent, weight_name=file.name, local_files_only=True)
    assert not np.array_equal(draw(pipeline, **SMALL), before)
    pipeline.unload_lora_weights()
    np.testing.assert_array_equal(draw(pipeline, **SMALL), before)


def test_a_gguf_file_draws_nearly_as_its_folder(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    torch.manual_seed(0)
    arguments = SMALL | {"max_sequence_length": 16}
    pipeline = reloaded(tiny.flux(), tmp_path / "folder")
    full = draw(pipeline, **arguments)
    file = tiny_more.gguf_file(tmp_path / "flux.gguf", pipeline.transformer)
    pipeline.transformer = tiny_more.gguf_transformer(file, tmp_path / "folder")
    np.testing.assert_allclose(draw(pipeline, **arguments), full, atol=0.05)
