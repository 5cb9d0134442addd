"""The engine: batches, memory, devices, and items that differ in everything."""

import gc
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
import torch

from adapters.diffusion.engine import Engine
from adapters.diffusion.items import Item, Job, _check_form, normals, steps_run, torch_rng
from adapters.diffusion.pixel import PixelSpace
from pe.errors import APIError, ContractError, PluginError
from pe.plugins.protocols import Failed
from tests.adapters.diffusion import tiny
from tests.fake_cards import REFUSALS, fake_cards


class Grey:
    """A model that draws its seed as a grey level, notes its batches, and has room for so many
    images at once.
    """

    def __init__(self, room=10_000, before=lambda items: None):
        self.room, self.before = room, before
        self.sizes, self.held = [], []

    def sample(self, job, items):
        self.before(items)
        self.sizes.append(len(items))
        tensor = torch.zeros(len(items))
        self.held.append(weakref.ref(tensor))
        if len(items) > self.room:
            raise REFUSALS["cudnn get"]()
        return [np.full((1, 1, 1), item.seed, dtype=np.uint8) for item in items]

    vary = sample


def items_of(count):
    return [Item(Job(1), seed) for seed in range(count)]


def greys(made):
    return [int(image[0, 0, 0]) for image in made]


def test_a_batch_that_memory_refuses_is_halved_once_and_for_all(caplog):
    model = Grey(room=5)
    engine = Engine(lambda _: model, device="cpu", batch_size=16)
    with caplog.at_level("INFO"):
        assert greys(engine.run(items_of(24))) == list(range(24))
    assert "cpu has no memory for 16 images at once: 8 from now on." in caplog.text
    assert model.sizes == [16, 8, *[4] * 6]
    engine.run(items_of(24))
    assert max(model.sizes[8:]) == 4


def test_the_batch_grows_until_memory_refuses_and_then_steps_back():
    model = Grey(room=5)
    Engine(lambda _: model, device="cpu").run(items_of(24))
    assert model.sizes == [1, 2, 4, 8, *[4] * 4, 1]


@pytest.mark.parametrize(("device", "most"), [("cuda:0", 1024), ("mps", 64)])
def test_a_batch_grows_to_a_whole_request_on_a_gpu_and_not_where_memory_is_never_refused(
    device, most
):
    """Processors and MPS do not refuse it: they swap."""
    model = Grey()
    with fake_cards():
        engine = Engine(lambda _: model, device=device)
        for _ in range(2):
            engine.run([Item(Job(1), 0)] * 1024)
    assert max(model.sizes) == most


def test_what_a_refused_batch_held_is_given_back_before_the_next_is_tried(monkeypatch):
    """An error holds its frames, and they the tensors; only what nobody holds can the device have
    back.
    """
    model, left = Grey(room=1), []
    monkeypatch.setattr(
        gc, "collect", lambda: left.append(sum(held() is not None for held in model.held))
    )
    Engine(lambda _: model, device="cpu", batch_size=4).run(items_of(4))
    assert model.sizes == [4, 2, 1, 1, 1, 1]
    assert left == [0, 0]


def test_what_is_too_large_ends_in_a_sentence_with_the_error_s_words():
    """Some words have other causes than memory, so they are never hidden."""
    with pytest.raises(APIError) as caught:
        Engine(lambda _: Grey(room=0), device="cpu").run(items_of(2))
    words = str(REFUSALS["cudnn get"]())
    assert f"cpu refused a single image, most likely for lack of memory ({words}). Use" in str(
        caught.value
    )

    def load(device):
        raise REFUSALS["cuda"]()

    with pytest.raises(
        APIError,
        match=r"cpu refused the model, .* \(CUDA out of memory.*\)\. Use `precision: bf16`",
    ):
        Engine(load, device="cpu").run(items_of(1))


def test_items_of_one_call_may_differ_in_everything(tmp_path):
    api = PixelSpace(
        model=tiny.pixel_folder(tmp_path, classes=3), steps=4, device="cpu", batch_size=4
    )
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
    assert [type(outcome).__name__ for outcome in made] == ["ndarray"] * 3 + ["Failed"] * 3 + [
        "ndarray",
        "Failed",
    ]
    np.testing.assert_array_equal(made[1], image)
    reasons = [str(outcome.reason) for outcome in made if isinstance(outcome, Failed)]
    assert reasons[0].startswith("Degree 0.1 of 4 steps leaves no denoising step to run")
    assert reasons[1] == "The model varies images of 8×8×1, not of 9×9×1."
    assert reasons[2] == "The model has 3 classes, counted from 0, and 7 is not one of them."
    assert reasons[3] == "The model has 3 classes, counted from 0, and None is not one of them."
    for item, together in zip(items, made, strict=True):
        (alone,) = api._engine.run([item])
        assert (
            alone == together
            if isinstance(alone, Failed)
            else np.abs(alone.astype(int) - together).max() <= 1
        )
    with pytest.raises(ContractError, match="has no image"):
        api._engine.run([Item(Job(4, 0.5), 1, api_class=0)])


def test_several_devices_work_side_by_side_with_a_model_each():
    both, models = threading.Barrier(2), []

    def load(device):
        model = Grey(
            before=lambda _: None if model.sizes else both.wait(20)
        )  # until the other is at work, too
        models.append(model)
        return model

    engine = Engine(load, device=["cpu", "cpu"], batch_size=3)
    assert greys(engine.run(items_of(20))) == list(range(20))
    assert sum(sum(model.sizes) for model in models) == 20
    assert len(models) == 2


def test_an_error_on_one_device_ends_the_call_and_not_the_engine():
    def before(items):
        if any(item.seed == 13 for item in items):
            raise ValueError("unlucky")

    engine = Engine(lambda _: Grey(before=before), device=["cpu", "cpu"], batch_size=2)
    with pytest.raises(ValueError, match="unlucky"):
        engine.run(items_of(20))
    assert len(engine.run(items_of(12))) == 12


@pytest.fixture
def default_dtype():
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


@pytest.mark.usefixtures("default_dtype")
def test_no_device_samples_while_another_loads_its_model_under_another_default_dtype():
    """As diffusers and transformers load: their default dtype is the whole process's."""
    loaded, sampling, dtypes = [], threading.Event(), set()

    def before(items):
        dtypes.add(torch.get_default_dtype())
        sampling.set()

    def load(device):
        torch.set_default_dtype(torch.bfloat16)
        if loaded:
            sampling.wait(0.2)  # for the other device, if it does not wait for this one
        torch.set_default_dtype(torch.float32)
        loaded.append(device)
        return Grey(before=before)

    Engine(load, device=["cpu", "cpu"], batch_size=1).run(items_of(4))
    assert len(loaded) == 2
    assert dtypes == {torch.float32}


def test_a_degree_is_a_share_of_the_steps_rounded_down():
    assert [steps_run(steps, degree) for steps, degree in ((100, 0.58), (10, 0.99), (7, 1.0))] == [
        58,
        9,
        7,
    ]


@pytest.mark.usefixtures("default_dtype")
def test_noise_of_a_seed_is_standard_normal_and_its_own_under_any_default_dtype():
    torch.set_default_dtype(torch.bfloat16)
    drawn = normals((16, 16), [torch_rng(seed) for seed in range(400)])
    assert drawn.dtype == torch.float32
    assert abs(float(drawn.mean())) < 0.015
    assert float(drawn.std()) == pytest.approx(1, abs=0.01)
    correlations = np.corrcoef(drawn.reshape(400, -1).numpy()) - np.eye(400)
    assert np.abs(correlations).max() < 0.4
    torch.set_default_dtype(torch.float32)
    assert torch.equal(normals((16, 16), [torch_rng(3)])[0], drawn[3])
    assert not torch.equal(
        normals((8,), [torch_rng(5)]), normals((8,), [torch_rng(5 + 2**32)])
    )  # all 64 bits count


def test_a_torch_that_keeps_its_state_in_another_form_is_refused(monkeypatch):
    monkeypatch.setattr("adapters.diffusion.items._HEADER", 16)
    _check_form.cache_clear()
    with pytest.raises(
        PluginError, match="keeps the state of its random numbers in an unknown form"
    ):
        torch_rng(1)
    monkeypatch.undo()
    torch_rng(1)


def test_without_a_gpu_adapters_and_plans_load_no_heavy_library():
    code = (
        "import sys, adapters.diffusion.text_to_image, adapters.diffusion.improved\n"
        "from adapters.diffusion.pixel import PixelSpace\n"
        "print(PixelSpace(model='small').describe_precision())\n"
        "print([name for name in ('torch', 'diffusers', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "auto, which is fp32 here\n[]\n"
