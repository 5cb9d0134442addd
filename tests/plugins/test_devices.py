"""GPUs that the driver has and torch does not see: `auto` refuses to leave them idle, and
says why.
"""

import pytest
import torch

from embeddings.networks import EfficientNetLite
from pe.errors import RecipeError
from pe.plugins import devices
from pe.plugins.devices import (
    choose_devices,
    find_device,
    listed_cards,
    memory_refused,
    unseen_cards,
)
from tests.fake_cards import REFUSALS

SEEN_NONE = r"[Tt]he driver has 2 GPUs, and torch \S+, built for CUDA 12\.9, sees none"
REFUSED = rf"^{SEEN_NONE}: install a torch that fits the driver \(.+\), or set "


@pytest.fixture(autouse=True)
def driver(tmp_path, monkeypatch):
    """Two GPUs, for a torch that is too new for their driver."""
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-caps"):
        (tmp_path / name).touch()
    monkeypatch.setattr(devices, "DRIVER", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "12.9")
    return tmp_path


@pytest.mark.parametrize(
    ("choose", "instead"),
    [
        (lambda: find_device("auto"), "device: cpu"),
        (lambda: choose_devices("auto"), "device: cpu"),
        (lambda: EfficientNetLite().batch_size, "device: cpu"),
    ],
)
def test_auto_refuses_to_leave_them_idle(choose, instead):
    with pytest.raises(RecipeError, match=f"{REFUSED}{instead}\\.$"):
        choose()


def test_those_that_are_hidden_or_have_no_file_are_not_missed(driver, monkeypatch):
    for visible, cards in (
        ("1,0", 2),
        ("GPU-8932f937", 2),
        ("", 0),
        ("-1,0", 0),
        ("NoDevFiles", 0),
        ("2", 0),
    ):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert (listed_cards(), bool(unseen_cards())) == (cards, bool(cards))
    assert find_device("auto").type != "cuda"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    for name in ("nvidia0", "nvidia1"):  # a container may have the driver's control files alone
        (driver / name).unlink()
    assert not unseen_cards()


def test_a_torch_without_cuda_is_named_and_one_that_sees_a_gpu_is_left_alone(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(RecipeError, match=r"torch \S+, built without CUDA, sees none: install"):
        find_device("auto")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert not unseen_cards()
    assert str(find_device("auto")) == "cuda"


def test_want_of_memory_is_known_by_its_words_and_other_errors_are_not_taken_for_it():
    assert memory_refused(torch.OutOfMemoryError("Tried to allocate 2.00 GiB."))
    assert memory_refused(MemoryError())
    assert all(memory_refused(refusal()) for refusal in REFUSALS.values())
    assert not memory_refused(
        RuntimeError("The size of tensor a (4) must match the size of tensor b (3)")
    )
    assert not memory_refused(ValueError("out of memory"))
