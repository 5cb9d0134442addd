"""GPUs that the driver has and torch does not see: `auto` refuses to leave them idle, and says why."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from adapters.diffusion.device import choose_devices
from embeddings.networks import EfficientNetLite
from pe.engine.health import findings
from pe.errors import RecipeError
from pe.evaluation.labelled import NetworkSettings
from pe.evaluation.training import fit_network
from pe.plugins import devices
from pe.plugins.devices import find_device, listed_cards, memory_refused, unseen_cards
from tests.evaluation.test_utility import stripes
from tests.fake_cards import REFUSALS

SEEN_NONE = r"[Tt]he driver has 2 GPUs, and torch \S+, built for CUDA 12\.9, sees none"
REFUSED = rf"^{SEEN_NONE}: install a torch that fits the driver \(.+\), or set "


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two GPUs, for a torch that is too new for their driver."""
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-caps"):
        (tmp_path / name).touch()
    monkeypatch.setattr(devices, "DRIVER", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "12.9")
    return tmp_path


@pytest.mark.usefixtures("driver")
def test_auto_refuses_to_leave_them_idle() -> None:
    for choose in (find_device, choose_devices):
        for name in ("auto", "cuda", "cuda:1"):
            with pytest.raises(RecipeError, match=f"{REFUSED}device: cpu\\.$"):
                choose(name)
    with pytest.raises(RecipeError, match=f"{REFUSED}device: cpu\\.$"):
        _ = EfficientNetLite().batch_size
    with pytest.raises(RecipeError, match=f"{REFUSED}--device cpu\\.$"):
        fit_network(stripes(9, 0), stripes(9, 1), 3, 0, NetworkSettings(epochs=1))


@pytest.mark.usefixtures("driver")
def test_what_is_named_is_taken() -> None:
    assert str(find_device("cpu")) == "cpu"
    assert [str(one) for one in choose_devices("cpu")] == ["cpu"]
    assert EfficientNetLite(device="cpu").batch_size == 32


@pytest.mark.usefixtures("driver")
def test_doctor_says_so_in_the_same_words() -> None:
    found = list(findings())
    (problem,) = (one for one in found if one.state == "problem" and one.what.startswith("accelerator: "))
    assert problem.what == f"accelerator: {unseen_cards()}"
    assert re.match(r"install a torch that fits the driver \(.+\), or .*device: cpu", problem.remedy)
    assert "accelerator: none" not in " ".join(one.what for one in found)


@pytest.mark.parametrize(
    ("visible", "cards"),
    [
        (None, 2),
        ("0", 2),
        ("1,0", 2),
        ("GPU-8932f937", 2),
        ("", 0),
        ("-1", 0),
        ("-1,0", 0),
        ("NoDevFiles", 0),
        ("2", 0),
    ],
)
def test_those_that_are_hidden_are_not_missed(
    driver: Path, visible: str | None, cards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert listed_cards() == cards
    assert bool(unseen_cards()) is bool(cards)
    if not cards:
        assert find_device("auto").type != "cuda"


def test_without_a_gpu_s_file_there_is_none(driver: Path) -> None:
    """A container may have the driver's control files, and none of its GPUs."""
    for name in ("nvidia0", "nvidia1"):
        (driver / name).unlink()
    assert not unseen_cards()
    assert find_device("auto").type != "cuda"


@pytest.mark.usefixtures("driver")
def test_a_torch_without_cuda_is_named_and_one_that_sees_a_gpu_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(RecipeError, match=r"torch \S+, built without CUDA, sees none: install"):
        find_device("auto")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert not unseen_cards()
    assert str(find_device("auto")) == "cuda"


def test_want_of_memory_is_known_by_its_words_and_other_errors_are_not_taken_for_it() -> None:
    assert memory_refused(torch.OutOfMemoryError("Tried to allocate 2.00 GiB."))
    assert memory_refused(MemoryError())
    for refusal in REFUSALS.values():
        assert memory_refused(refusal())
    assert not memory_refused(RuntimeError("The size of tensor a (4) must match the size of tensor b (3)"))
    assert not memory_refused(ValueError("out of memory"))
