"""Memory that does not suffice: what a failed call leaves behind, and how decoding takes less."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from adapters.diffusion.engine import Engine
from adapters.diffusion.improved_unet import ImprovedUNet, Shape
from adapters.diffusion.items import Item, Job
from adapters.diffusion.text_to_image import TextToImage
from pe.plugins.protocols import Answer, RandomRequest
from tests.adapters.diffusion import tiny

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # diffusers and numpy 2

SEEDS = np.random.default_rng(1).integers(0, 2**64, 8, dtype=np.uint64)


@pytest.fixture(scope="module")
def xl(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("xl")
    torch.manual_seed(0)
    tiny.stable_diffusion_xl().save_pretrained(place)
    return str(place)


def api_of(model: str, **settings: Any) -> TextToImage:
    common: dict[str, Any] = {"prompts": "a", "steps": 2, "size": 16, "device": "cpu", "guidance": 1.0, "offline": True}
    return TextToImage(model=model, **(common | settings))


def drawn(api: TextToImage, count: int) -> Answer:
    return api.random_api(RandomRequest(("a",) * count, SEEDS[:count]))


def decodings(api: TextToImage) -> list[int]:
    """How many images each pass through the decoder holds, from now on."""
    api._engine.load()
    found: list[int] = []
    model: Any = api._engine._workers[0].load()
    model._text.vae.decoder.register_forward_pre_hook(lambda _, inputs: found.append(len(inputs[0])))
    return found


@pytest.mark.filterwarnings("ignore:.*upcast_vae.*:FutureWarning")  # diffusers' own call
def test_decoding_that_ran_out_of_memory_in_float32_spoils_no_later_batch(
    xl: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SDXL's pipeline casts its autoencoder from fp16 to float32 to decode, and back only after success."""
    expected = drawn(api_of(xl, precision="fp16", batch_size=2), 4)
    convolve, refused = torch.nn.functional.conv2d, []

    def limited(images: torch.Tensor, weight: torch.Tensor, *rest: Any) -> torch.Tensor:
        if weight.dtype == torch.float32 and not refused:  # only the autoencoder's ever are
            refused.append(len(images))
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return convolve(images, weight, *rest)

    monkeypatch.setattr(torch.nn.functional, "conv2d", limited)
    answer = drawn(api_of(xl, precision="fp16", batch_size=4), 4)
    assert refused == [4]
    assert not answer.missing
    np.testing.assert_array_equal(answer.samples.array, expected.samples.array)


@pytest.mark.parametrize(
    ("slicing", "count", "passes"),
    [(None, 4, [4]), (None, 5, [1] * 5), (True, 4, [1] * 4), (False, 5, [5])],
    ids=["four together", "five alone", "always", "never"],
)
def test_a_batch_above_four_is_decoded_one_image_at_a_time(
    slicing: bool | None, count: int, passes: list[int], xl: str
) -> None:
    api = api_of(xl, batch_size=8, vae_slicing=slicing)
    found = decodings(api)
    drawn(api, count)
    assert found == passes
    found.clear()
    drawn(api, 2)
    assert found == ([1, 1] if slicing else [2])


class Sizes:
    """A model that notes how many images it is asked for."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def sample(self, job: Job, items: Any) -> Any:
        self.seen.append(len(items))
        return [np.zeros((1, 1, 1), dtype=np.uint8) for _ in items]

    def vary(self, job: Job, items: Any) -> Any:
        return self.sample(job, items)


def test_batches_on_mps_do_not_grow_further_than_on_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither refuses memory: they swap."""
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    model = Sizes()
    Engine(lambda _: model, device="mps", most=256, most_on_cpu=4).run([Item(Job(1), seed) for seed in range(15)])
    assert model.seen == [1, 2, 4, 4, 4]


def test_what_a_refused_batch_held_is_given_back_before_the_next_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error holds its frames, and they the tensors; only what nobody holds can the device have back."""
    held: list[Any] = []
    left: list[int] = []
    monkeypatch.setattr(gc, "collect", lambda: left.append(sum(reference() is not None for reference in held)))

    class Refusing(Sizes):
        def sample(self, job: Job, items: Any) -> Any:
            tensor = torch.zeros(len(items))
            held.append(weakref.ref(tensor))
            if len(items) > 1:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return super().sample(job, items)

    Engine(lambda _: Refusing(), device="cpu", batch_size=4).run([Item(Job(1), seed) for seed in range(4)])
    assert len(held) == 6  # 4, 2, and 1 four times
    assert left == [0, 0]


def test_attention_is_asked_for_in_the_layout_that_torch_fuses(monkeypatch: pytest.MonkeyPatch) -> None:
    attend, asked = torch.nn.functional.scaled_dot_product_attention, []

    def noting(*tensors: torch.Tensor) -> torch.Tensor:
        asked.extend(tensors)
        return attend(*tensors)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", noting)
    ImprovedUNet(Shape(32, (1, 2), 1, (1,), None))(torch.zeros(2, 3, 8, 8), torch.zeros(2))
    assert asked
    assert all(tensor.is_contiguous() for tensor in asked)


def test_attention_is_not_sliced_where_torch_fuses_it(xl: str) -> None:
    model: Any = api_of(xl, attention_slicing=True)._loader.load(torch.device("cpu"))
    kinds = {type(processor).__name__ for processor in model._text.unet.attn_processors.values()}
    assert kinds == {"AttnProcessor2_0"}
