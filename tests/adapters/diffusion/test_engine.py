"""The engine: batches, memory, devices, and items that differ in everything."""

from __future__ import annotations

import platform
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adapters.diffusion.device import choose_devices
from adapters.diffusion.engine import BatchSize, Engine
from adapters.diffusion.items import Item, Job, _check_form, normals, seeded, steps_run
from adapters.diffusion.pixel import PixelSpace
from adapters.diffusion.text_to_image import TextToImage
from pe.errors import APIError, ContractError, PluginError, RecipeError
from pe.plugins.protocols import Answer, Failed, RandomRequest, VariationRequest
from tests.adapters.diffusion import tiny
from tests.fake_cards import REFUSALS

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # diffusers and numpy 2

SEEDS = np.random.default_rng(1).integers(0, 2**64, 24, dtype=np.uint64)
LABELS = ("a",) * 24


class Memory:
    """In place of torch's convolution: one with room for so many images at once, and torch's own error beyond."""

    def __init__(self, room: int, error: Callable[[], Exception]) -> None:
        self.room, self.error = room, error
        self.batches: list[int] = []

    def use(self, monkeypatch: pytest.MonkeyPatch) -> Memory:
        convolve = torch.nn.functional.conv2d

        def limited(images: torch.Tensor, *rest: Any) -> torch.Tensor:
            self.batches.append(len(images))
            if len(images) > self.room:
                raise self.error()
            return convolve(images, *rest)

        monkeypatch.setattr(torch.nn.functional, "conv2d", limited)
        return self


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return tiny.pixel_folder(tmp_path / "model", classes=3)


@pytest.fixture(scope="module")
def drawer(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("drawer")
    torch.manual_seed(0)
    tiny.stable_diffusion().save_pretrained(place)
    return str(place)


def pixels(answer: Answer) -> np.ndarray:
    return answer.samples.array.astype(float)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library keeps what is freed, or does not")
def test_a_forward_pass_on_a_processor_fetches_no_memory_that_the_one_before_had() -> None:
    api = PixelSpace(model="small", steps=2, device="cpu", batch_size=24)
    request = RandomRequest(LABELS, SEEDS)
    for _ in range(2):
        api.random_api(request)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    api.random_api(request)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 2000  # pages; else some 8,000


@pytest.mark.parametrize("device", ["cuda", "cudnn get"])
def test_a_batch_that_memory_refuses_is_halved_and_the_run_goes_on(
    device: str, folder: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = PixelSpace(model=folder, steps=3, device="cpu").random_api(RandomRequest(LABELS, SEEDS))
    memory = Memory(5, REFUSALS[device]).use(monkeypatch)
    api = PixelSpace(model=folder, steps=3, device="cpu", batch_size=16)
    with caplog.at_level("INFO"):
        answer = api.random_api(RandomRequest(LABELS, SEEDS))
    assert np.abs(pixels(answer) - pixels(expected)).max() <= 1
    assert not answer.missing
    assert "cpu has no memory for 16 images at once: 8 from now on." in caplog.text
    assert "cpu has no memory for 8 images at once: 4 from now on." in caplog.text
    assert memory.batches.count(16) == memory.batches.count(8) == 1
    refusals = len([batch for batch in memory.batches if batch > 5])
    api.random_api(RandomRequest(LABELS, SEEDS))
    assert len([batch for batch in memory.batches if batch > 5]) == refusals  # what was found out is kept


def test_a_text_to_image_pipeline_out_of_memory_goes_on_with_half(drawer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"prompts": "a", "steps": 2, "size": 32, "device": "cpu", "guidance": 3.0}
    expected = TextToImage(model=drawer, **settings).random_api(RandomRequest(LABELS[:7], SEEDS[:7]))
    memory = Memory(4, REFUSALS["cuda"]).use(monkeypatch)
    api = TextToImage(model=drawer, batch_size=7, **settings)
    answer = api.random_api(RandomRequest(LABELS[:7], SEEDS[:7]))
    assert np.abs(pixels(answer) - pixels(expected)).max() <= 1
    assert not answer.missing
    assert sorted(set(memory.batches)) == [1, 2, 6, 14]  # 7, 3 and 1 images, doubled by guidance, and decoded alone


def test_the_batch_grows_until_memory_refuses_and_then_steps_back(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(5, REFUSALS["cuda"]).use(monkeypatch)
    PixelSpace(model=folder, steps=1, device="cpu").random_api(RandomRequest(LABELS, SEEDS))
    changes = [batch for i, batch in enumerate(memory.batches) if i == 0 or batch != memory.batches[i - 1]]
    assert changes == [1, 2, 4, 8, 4, 1]  # 1 + 2 + 4 made, 8 refused, 4 · 4 made, 1 left


def test_a_growing_batch_stops_at_the_most() -> None:
    batch = BatchSize.of(None, 6)
    sizes = []
    for _ in range(5):
        sizes.append(batch.size)
        batch.went_well(batch.size)
    assert sizes == [1, 2, 4, 6, 6]
    batch.went_well(2)  # a last batch that was not full says nothing
    assert batch.size == 6
    fixed = BatchSize.of(5, 64)
    fixed.went_well(5)
    assert fixed.size == 5


@pytest.mark.parametrize("device", ["cuda", "cudnn get"])
def test_one_image_that_is_too_large_ends_in_a_sentence_with_the_error_s_words(
    device: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some words have other causes than memory, so they are never hidden."""
    Memory(0, REFUSALS[device]).use(monkeypatch)
    words = str(REFUSALS[device]()).rstrip(".")
    with pytest.raises(APIError) as caught:
        PixelSpace(model=folder, steps=2, device="cpu").random_api(RandomRequest(LABELS, SEEDS))
    assert str(caught.value) == (
        f"cpu refused a single image, most likely for want of memory ({words}): take a smaller size, precision: bf16, "
        "offloading where the adapter has it, or another device."
    )
    assert str(caught.value.__cause__) == str(REFUSALS[device]())


def test_a_model_that_does_not_fit_ends_in_a_sentence() -> None:
    def load(device: torch.device) -> Any:
        raise REFUSALS["cuda"]()

    with pytest.raises(APIError, match=r"cpu refused the model, .* \(CUDA out of memory.*\): take precision: bf16"):
        Engine(load, device="cpu").run([Item(Job(3), 1)])


def test_items_of_one_call_may_differ_in_everything(folder: str) -> None:
    api = PixelSpace(model=folder, steps=4, device="cpu", batch_size=4)
    image = np.full((8, 8, 1), 90, dtype=np.uint8)
    items = [
        Item(Job(4), 1, api_class=0),
        Item(Job(4, 0.0), 2, image, api_class=0),
        Item(Job(4, 0.5), 3, image, api_class=1),
        Item(Job(4, 0.1), 4, image, api_class=1),
        Item(Job(4, 0.5), 5, np.zeros((9, 9, 1), dtype=np.uint8), api_class=1),
        Item(Job(4, 0.5), 6, image, api_class=7),
        Item(Job(6, 1.0), 7, image, api_class=2),
        Item(Job(4), 8, api_class=None),
    ]
    made = api._engine.run(items)
    assert [type(outcome).__name__ for outcome in made] == ["ndarray"] * 3 + ["Failed"] * 3 + ["ndarray", "Failed"]
    np.testing.assert_array_equal(made[1], image)
    reasons = [str(outcome.reason) for outcome in made if isinstance(outcome, Failed)]
    assert reasons[0].startswith("Degree 0.1 of 4 steps leaves no denoising step to run")
    assert reasons[1] == "The model varies images of 8×8×1, not of 9×9×1."
    assert reasons[2] == "The API class 7 is not one of the model's 3: give one from 0 on."
    assert reasons[3] == "The API class None is not one of the model's 3: give one from 0 on."
    alone = [api._engine.run([item])[0] for item in items]
    for one, together in zip(alone, made, strict=True):
        if isinstance(one, np.ndarray):
            assert np.abs(one.astype(int) - together).max() <= 1
        else:
            assert one == together


def test_an_item_with_a_degree_and_no_image_is_a_fault_of_the_caller(folder: str) -> None:
    api = PixelSpace(model=folder, steps=4, device="cpu")
    with pytest.raises(ContractError, match="holds no image"):
        api._engine.run([Item(Job(4, 0.5), 1, api_class=0)])


def test_several_callers_share_an_engine(folder: str) -> None:
    api = PixelSpace(model=folder, steps=3, device="cpu", batch_size=4)
    expected = api.random_api(RandomRequest(LABELS, SEEDS))
    answers: dict[int, Answer] = {}

    def ask(start: int) -> None:
        part = slice(start, start + 6)
        answers[start] = api.random_api(RandomRequest(LABELS[part], SEEDS[part]))

    threads = [threading.Thread(target=ask, args=(start,)) for start in range(0, 24, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    together = np.concatenate([pixels(answers[start]) for start in range(0, 24, 6)])
    assert np.abs(together - pixels(expected)).max() <= 1


class Counting:
    """A model that draws its seed as a grey level and knows which device it is on."""

    def __init__(self, both: threading.Barrier | None) -> None:
        self.both, self.made = both, 0

    def sample(self, job: Job, items: Any) -> Any:
        if self.both is not None and self.made == 0:
            self.both.wait(20)  # passes only when the other worker is at work, too
        self.made += len(items)
        return [np.full((1, 1, 1), item.seed, dtype=np.uint8) for item in items]

    def vary(self, job: Job, items: Any) -> Any:
        return self.sample(job, items)


def test_several_devices_work_side_by_side_with_a_model_each() -> None:
    both, models = threading.Barrier(2), []

    def load(device: torch.device) -> Counting:
        models.append(Counting(both))
        return models[-1]

    engine = Engine(load, device=["cpu", "cpu"], batch_size=3)
    made = engine.run([Item(Job(1), seed) for seed in range(20)])
    assert [int(image[0, 0, 0]) for image in made] == list(range(20))
    assert len(models) == 2
    assert sum(model.made for model in models) == 20
    assert all(model.made >= 3 for model in models)


def test_an_error_on_one_device_ends_the_call_and_not_the_engine() -> None:
    class Moody(Counting):
        def sample(self, job: Job, items: Any) -> Any:
            if any(item.seed == 13 for item in items):
                raise ValueError("unlucky")
            return super().sample(job, items)

    engine = Engine(lambda _: Moody(None), device=["cpu", "cpu"], batch_size=2)
    with pytest.raises(ValueError, match="unlucky"):
        engine.run([Item(Job(1), seed) for seed in range(20)])
    assert len(engine.run([Item(Job(1), seed) for seed in range(12)])) == 12


def test_a_device_that_is_not_there_is_named_in_a_sentence(folder: str) -> None:
    api = PixelSpace(model=folder, steps=3, device="cuda:7")
    with pytest.raises(RecipeError, match=r"device is 'cuda:7', and this machine has \d+ CUDA devices to use"):
        api.random_api(RandomRequest(LABELS, SEEDS))
    for wrong in ("gpu", "cuda:x", [], ["auto", "cuda:0"]):
        with pytest.raises(RecipeError, match=r"it must be auto, cpu, mps, cuda, cuda:1, or a list of such cards"):
            PixelSpace(model=folder, device=wrong)


@pytest.fixture
def two_cards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch says that there are two cards; none is touched by choosing."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    return


@pytest.mark.usefixtures("two_cards")
def test_the_device_that_is_named_is_taken_and_auto_takes_all() -> None:
    def names(device: Any) -> list[str]:
        return [str(chosen) for chosen in choose_devices(device)]

    assert names("auto") == ["cuda:0", "cuda:1"]
    assert names("cuda") == ["cuda:0"]
    assert names("cuda:1") == ["cuda:1"]
    assert names(["cuda:1", "cuda:0"]) == ["cuda:1", "cuda:0"]
    assert names("cpu") == ["cpu"]
    with pytest.raises(RecipeError, match="device is 'cuda:2', and this machine has 2 CUDA devices"):
        names("cuda:2")


def test_without_cards_auto_is_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert [str(device) for device in choose_devices("auto")] == ["cpu"]
    with pytest.raises(RecipeError, match="device is 'mps', and this machine has none"):
        choose_devices("mps")
    hidden = r"this machine has 0 CUDA devices to use \(CUDA_VISIBLE_DEVICES hides others\)"
    with pytest.raises(RecipeError, match=hidden):
        choose_devices("cuda:0")


@pytest.mark.parametrize(
    ("steps", "degree", "run"), [(100, 0.58, 58), (100, 0.98, 98), (50, 0.9, 45), (10, 0.99, 9), (7, 1.0, 7)]
)
def test_a_degree_is_a_share_of_the_steps_rounded_down(steps: int, degree: float, run: int) -> None:
    assert steps_run(steps, degree) == run


def test_noise_of_a_seed_is_standard_normal_and_its_own() -> None:
    generators = [seeded(seed) for seed in range(400)]
    drawn = normals((16, 16), generators).numpy()
    assert abs(drawn.mean()) < 0.015
    assert drawn.std() == pytest.approx(1, abs=0.01)
    flat = drawn.reshape(400, -1)
    correlations = np.corrcoef(flat) - np.eye(400)
    assert np.abs(correlations).max() < 0.4
    np.testing.assert_array_equal(normals((5,), [seeded(3)]), normals((5,), [seeded(3)]))


def test_all_64_bits_of_a_seed_count() -> None:
    one, other = seeded(5), seeded(5 + 2**32)
    assert not torch.equal(torch.randn(8, generator=one), torch.randn(8, generator=other))
    torch.randn(3, generator=seeded(2**64 - 1))


def test_importing_the_adapters_loads_no_heavy_library() -> None:
    code = (
        "import sys, adapters.diffusion.text_to_image, adapters.diffusion.pixel, adapters.diffusion.improved\n"
        "print([name for name in ('torch', 'diffusers', 'transformers') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_variation_of_degree_one_is_a_new_sample_of_the_parent_s_class(folder: str) -> None:
    api = PixelSpace(model=folder, steps=4, device="cpu")
    parents = api.random_api(RandomRequest(LABELS, SEEDS))
    seeds = SEEDS ^ np.uint64(1)
    request = VariationRequest(parents.samples, LABELS, parents.conditions, seeds, 1.0)
    items = [
        Item(Job(4), int(seed), api_class=int(one))
        for seed, one in zip(seeds, parents.conditions["api_class"], strict=True)
    ]
    np.testing.assert_array_equal(api.variation_api(request).samples.array, np.stack(api._engine.run(items)))


@pytest.mark.parametrize("header", [16, 32])
def test_a_torch_that_keeps_its_state_in_another_form_is_refused(monkeypatch: pytest.MonkeyPatch, header: int) -> None:
    monkeypatch.setattr("adapters.diffusion.items._HEADER", header)
    _check_form.cache_clear()
    with pytest.raises(PluginError, match="keeps the state of its random numbers in a form"):
        seeded(1)
    monkeypatch.undo()
    seeded(1)
