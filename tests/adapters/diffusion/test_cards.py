"""Local diffusion on GPUs that this machine lacks: no tensor of one device meets one of another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from adapters.diffusion.engine import LocalDiffusion
from adapters.diffusion.improved import ImprovedDiffusion
from adapters.diffusion.improved_unet import ImprovedUNet, Shape
from adapters.diffusion.pixel import PixelSpace
from adapters.diffusion.text_to_image import TextToImage
from pe.plugins.protocols import Answer, GenerationAPI, RandomRequest, VariationRequest
from tests.adapters.diffusion import tiny
from tests.adapters.diffusion.kinds import EACH, maker, saved
from tests.fake_cards import Cards, claim, fake_cards

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # diffusers and numpy 2
    pytest.mark.filterwarnings("ignore:.callback_steps. is deprecated:FutureWarning"),  # Kandinsky's own call
]

SEEDS = np.random.default_rng(3).integers(0, 2**64, 4, dtype=np.uint64)


@pytest.fixture
def cards() -> Iterator[Cards]:
    with fake_cards() as found:
        yield found


@pytest.fixture(scope="module")
def api_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TextToImage]:
    """A pipeline on the first card, saved once."""
    make = maker(lambda: tmp_path_factory.mktemp("kind"))
    common: dict[str, object] = {"device": "cuda:0", "steps": 2, "batch_size": 2}
    return lambda name, **changes: make(name, **(common | changes))


def images(api: GenerationAPI, count: int = 2, degree: float = 0.5) -> npt.NDArray[np.uint8]:
    """New images, and a variation of each."""
    labels, seeds = ("a",) * count, SEEDS[:count]
    parents = api.random_api(RandomRequest(labels, seeds))
    request = VariationRequest(parents.samples, labels, parents.conditions, seeds ^ np.uint64(9), degree)
    return np.stack([_all(parents), _all(api.variation_api(request))])


def _all(answer: Answer) -> npt.NDArray[np.uint8]:
    assert not answer.missing
    return answer.samples.array


def places(api: LocalDiffusion) -> list[set[str]]:
    """Where the weights lie after a call, for each model."""
    models: list[Any] = [worker.model for worker in api._engine._workers]  # type: ignore[attr-defined]
    parts = [model._text.components.values() for model in models]
    modules = [[part for part in each if isinstance(part, torch.nn.Module)] for each in parts]
    return [{str(claim(weight)) for module in each for weight in module.parameters()} for each in modules]


@pytest.mark.usefixtures("cards")
@pytest.mark.parametrize("name", EACH)
def test_every_family_draws_and_varies_on_a_card(name: str, api_of: Callable[..., TextToImage]) -> None:
    api = api_of(name)
    images(api)
    assert places(api) == [{"cuda:0"}]


@pytest.mark.usefixtures("cards")
@pytest.mark.parametrize("sampler", ["ddim", "euler", "euler_ancestral", "dpm_solver", "lcm"])
def test_every_sampler_steps_on_a_card(sampler: str, api_of: Callable[..., TextToImage]) -> None:
    images(api_of("Stable Diffusion 1.5", sampler=sampler))


@pytest.mark.usefixtures("cards")
@pytest.mark.parametrize("offload", ["model", "group", "sequential"])
def test_offloaded_weights_are_on_the_card_only_while_they_work(
    offload: str, api_of: Callable[..., TextToImage]
) -> None:
    api = api_of("Stable Diffusion 1.5", offload=offload)
    images(api)
    (found,) = places(api)
    assert found <= {"cpu", "meta"}


@pytest.mark.usefixtures("cards")
def test_two_cards_draw_what_the_processor_draws(api_of: Callable[..., TextToImage]) -> None:
    api = api_of("Stable Diffusion XL", device="auto")
    found = images(api, 4)
    assert places(api) == [{"cuda:0"}, {"cuda:1"}]
    np.testing.assert_array_equal(found, images(api_of("Stable Diffusion XL", device="cpu"), 4))


@pytest.mark.usefixtures("cards")
def test_the_safety_checker_looks_on_the_card(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = saved(tiny.stable_diffusion(tiny.safety_checker(threshold=2.0)), tmp_path)
    images(TextToImage(model=model, prompts="a", steps=2, size=tiny.SIDE, device="cuda:0", batch_size=2))


@pytest.mark.usefixtures("cards")
def test_a_card_that_computes_in_bf16_is_given_bf16(
    api_of: Callable[..., TextToImage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    api = api_of("Stable Diffusion 1.5")
    images(api)
    model: Any = api._engine._workers[0].model
    assert model._text.unet.dtype == model._text.vae.dtype == torch.bfloat16


def pixel_space(folder: Path, **settings: Any) -> PixelSpace:
    return PixelSpace(model=tiny.pixel_folder(folder, classes=3), device="cuda:0", batch_size=2, **settings)


def improved(folder: Path, **settings: Any) -> ImprovedDiffusion:
    torch.manual_seed(0)
    torch.save(ImprovedUNet(Shape(32, (1, 2), 1, (1,), 7)).state_dict(), folder / "small.pt")
    return ImprovedDiffusion(model=str(folder / "small.pt"), size=8, device="cuda:0", batch_size=2, **settings)


@pytest.mark.usefixtures("cards")
@pytest.mark.parametrize(
    "settings", [{}, {"guidance": 2.0}, {"eta": 1.0}, {"sampler": "ddpm"}], ids=["ddim", "guided", "noisy", "ddpm"]
)
def test_models_in_pixel_space_draw_and_vary_on_a_card(settings: dict[str, Any], tmp_path: Path) -> None:
    images(pixel_space(tmp_path, steps=4, **settings))


@pytest.mark.parametrize("make", [pixel_space, improved])
def test_the_loop_over_the_steps_leaves_the_card_alone(
    make: Callable[..., LocalDiffusion], cards: Cards, tmp_path: Path
) -> None:
    """What is copied and what Python waits for does not grow with the steps."""
    moves = []
    for steps in (4, 8):
        api: Any = make(tmp_path, steps=steps)
        images(api)  # loads the model
        cards.moves.clear()
        images(api)
        moves.append(list(cards.moves))
    assert moves[0] == moves[1]
