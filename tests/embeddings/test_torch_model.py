"""Networks in batches: a vector is a function of its image, on the device and in the precision asked for."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from embeddings import torch_model
from embeddings.networks import Inception
from embeddings.torch_model import Network, NetworkSettings, TorchEmbedding, _arithmetic
from pe.errors import ContractError, RecipeError
from pe.private import PrivateDataset, embed_private
from tests.embeddings.networks import dinov2_folder, images, networks
from tests.fake_cards import REFUSALS


class Sums(nn.Module):
    """Sums of an image's halves; where `uneven`, a row's sum is off by a hair that depends on its place."""

    def __init__(self, uneven: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.uneven = uneven
        self.sizes: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.sizes.append(len(x))
        found = x.reshape(len(x), 2, -1).sum(2) * self.weight
        return found * (1 + 1e-6 * torch.arange(len(x))[:, None]) if self.uneven else found


class OfSums(TorchEmbedding[NetworkSettings]):
    kind = "sums"
    Settings = NetworkSettings

    def __init__(self, module: Sums, device: str = "cpu", precision: str = "fp32", batch_size: int = 4) -> None:
        super().__init__(device=device, precision=precision, batch_size=batch_size, offline=True)
        self._module = module

    def _load(self) -> Network:
        return Network(self._module, lambda x: x, lambda module, x: module(x))

    def on(self, *places: str) -> "OfSums":
        """On these devices, as if `auto` had found them."""
        self._places = list(places)
        return self

    @property
    def batches(self) -> list[list[int]]:
        """The sizes of those that each device had, the trial's included."""
        return [on.network.module.sizes for on in self._copies]


def model_of(module: Sums, batch_size: int = 4) -> OfSums:
    return OfSums(module, batch_size=batch_size)


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    return networks(tmp_path_factory.mktemp("weights"))


@pytest.mark.parametrize("name", ["open_clip", "dinov2"])
def test_removing_a_record_leaves_all_other_private_vectors_bit_identical(three, name):
    pixels = images(20, height=20, width=15)

    def vectors(kept):
        records = PrivateDataset.of(pixels.take(kept), np.zeros(len(kept)), classes=["a"])
        return embed_private(records, three[name], None).vectors

    whole = vectors(list(range(20)))
    for gone in (0, 7, 8, 19):
        kept = [i for i in range(20) if i != gone]
        np.testing.assert_array_equal(vectors(kept), whole[kept])


def test_where_places_in_a_batch_differ_images_are_run_one_at_a_time():
    """It is the trial that protects them: without it the uneven network's vectors depend on the place."""
    module = Sums(uneven=True)
    embed = model_of(module).embed
    vectors = embed(images(4))
    np.testing.assert_array_equal(embed(images(4).take([3, 0, 1, 2])), vectors[[3, 0, 1, 2]])
    assert module.sizes == [4, *[1] * 8]
    even = Sums(uneven=False)
    model_of(even).embed(images(8))
    assert even.sizes == [4, 4, 4]  # the trial, and two batches


@pytest.mark.parametrize("count", [0, 1, 4, 5, 12, 14, 25])
@pytest.mark.parametrize("uneven", [False, True])
def test_several_devices_share_the_batches_and_change_no_vector(count, uneven):
    alone, together = model_of(Sums(uneven)), model_of(Sums(uneven)).on("cpu", "cpu", "cpu")
    assert (alone.batch_size, together.batch_size) == (4, 12)
    np.testing.assert_array_equal(together.embed(images(count)), alone.embed(images(count)))
    if count == 12 and not uneven:
        assert together.batches == [[4, 4]] * 3
    if count == 25 and not uneven:
        assert together.batches == [[4, 4, 4, 1], [4, 4, 4], [4, 4, 4]]


def test_on_which_device_a_private_record_s_vector_is_made_changes_no_bit_of_it(tmp_path):
    """A record's place in a block, hence its device, depends on how many records come before it."""
    embedding = networks(tmp_path)["dinov2"]
    block = images(16)
    alone = [embedding.embed(block.take(slice(start, start + 8))) for start in (0, 8)]
    embedding._places = ["cpu", "cpu"]
    del embedding._copies
    assert embedding.batch_size == 16
    for moved in (0, 1, 8, 11):
        order = np.roll(np.arange(16), moved)
        np.testing.assert_array_equal(embedding.embed(block.take(order)), np.concatenate(alone)[order])


class Drifting(Sums):
    """On another device it computes something else."""

    def __deepcopy__(self, memo):
        other = Sums(self.uneven)
        other.weight.data *= 1 + 1e-6
        return other


def test_a_device_that_gives_other_vectors_is_left_out(caplog):
    embedding = model_of(Drifting(uneven=False)).on("cpu", "cpu")
    np.testing.assert_array_equal(embedding.embed(images(8)), model_of(Sums(uneven=False)).embed(images(8)))
    assert embedding.batches == [[4, 4, 4]]
    assert "Two GPUs give a sample two vectors: the embedding 'sums' uses the first alone." in caplog.messages


@pytest.mark.parametrize(
    ("kinds", "wanted", "places"),
    [
        (["H100", "H100", "H100"], "auto", ["cuda:0", "cuda:1", "cuda:2"]),
        (["H100", "A100"], "auto", ["cuda:0"]),
        (["H100"], "auto", ["cuda:0"]),
        ([], "auto", ["auto"]),
        (["H100", "H100"], "cuda:1", ["cuda:1"]),
    ],
)
def test_auto_takes_all_gpus_of_one_kind(kinds, wanted, places, monkeypatch, caplog):
    monkeypatch.setattr(torch_model, "has_driver", lambda: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "" if not kinds else "0,1,2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(kinds))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(kinds))
    monkeypatch.setattr(torch.cuda, "get_device_name", kinds.__getitem__)
    embedding = OfSums(Sums(uneven=False), wanted)
    assert embedding.batch_size == 4 * len(places)
    assert embedding._places == places
    assert caplog.messages == (
        ["H100, A100: the embedding 'sums' uses the first of these GPUs alone."] if len(set(kinds)) > 1 else []
    )


@pytest.mark.parametrize("name", ["open_clip", "dinov2"])
def test_vectors_are_the_same_to_1e_4_in_batches_of_any_size(three, name):
    embedding, pixels = three[name], images(11)
    whole = embedding.embed(pixels)
    for size in (1, 2, 3, 8):
        parts = [embedding.embed(pixels.take(slice(start, start + size))) for start in range(0, 11, size)]
        np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["open_clip", "dinov2", "inception"])
def test_grey_images_are_colour_images_without_colour_and_no_images_give_no_vectors(three, name):
    grey = images(2, channels=1)
    colour = type(grey)(np.repeat(grey.pixels, 3, axis=3))
    vectors = three[name].embed(colour)
    np.testing.assert_array_equal(three[name].embed(grey), vectors)
    assert three[name].embed(grey.take([])).shape == (0, vectors.shape[1])


@pytest.mark.parametrize("setting", ["tf32", "ieee"])
def test_on_a_card_arithmetic_is_exact_whatever_torch_was_told_and_so_it_is_left(setting):
    places = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)
    before = [place.fp32_precision for place in places]
    try:
        for place in places:
            place.fp32_precision = setting
        with _arithmetic(torch.device("cuda")):
            assert [place.fp32_precision for place in places] == ["ieee"] * 2
            assert torch.backends.cudnn.deterministic
        assert [place.fp32_precision for place in places] == [setting] * 2
        assert not torch.backends.cudnn.deterministic
    finally:
        for place, was in zip(places, before, strict=True):
            place.fp32_precision = was


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_lower_precision_is_near_and_comes_out_as_float32(tmp_path, three, precision):
    from embeddings.networks import DINOv2

    low = DINOv2(
        model=str(dinov2_folder(tmp_path)), resize=32, crop=28, device="cpu", precision=precision, batch_size=8
    )
    vectors, exact = low.embed(images(8)), three["dinov2"].embed(images(8))
    assert vectors.dtype == np.float32
    assert 0 < np.abs(vectors - exact).max() < 0.1


def test_constructing_loads_neither_torch_nor_weights():
    code = (
        "import sys\n"
        "from pe.plugins.specs import construct\n"
        "for kind in ('open_clip', 'inception', 'dinov2', 'efficientnet_lite'):\n"
        "    assert construct('pe.embeddings', kind, {'device': 'cpu'}).batch_size in (32, 64)\n"
        "sentences = construct('pe.embeddings', 'sentence_transformers', {'device': 'cpu', 'model': 'some/model'})\n"
        "assert sentences.batch_size == 64\n"
        "heavy = {'torch', 'transformers', 'open_clip', 'torchvision', 'timm'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_a_card_that_is_hidden_or_not_there_is_named(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device in ("cuda", "cuda:7"):
        says = rf"device is '{device}', and this machine has 0 CUDA devices to use \(CUDA_VISIBLE_DEVICES hides"
        with pytest.raises(RecipeError, match=says):
            Inception(device=device, offline=True).embed(images(1))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (("gpu", "fp32", 4), "device is 'gpu'"),
        (("cuda:x", "fp32", 4), "device is 'cuda:x'"),
        (("cpu", "int8", 4), "precision must be 'fp32', 'bf16' or 'fp16', not 'int8'"),
        (("cpu", "fp32", 0), "batch_size must be at least 1, not 0"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(changes, says):
    with pytest.raises(RecipeError, match=says):
        OfSums(Sums(uneven=False), *changes)


class Refused(Sums):
    """It raises when it is brought to a device, or when it computes."""

    def __init__(self, error, whole):
        super().__init__(uneven=False)
        self.error, self.whole = error, whole

    def to(self, *given, **more):
        if self.whole:
            raise self.error
        return super().to(*given, **more)

    def forward(self, x):
        raise self.error


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
@pytest.mark.parametrize(
    ("whole", "batch_size", "says", "remedy"),
    [
        (False, 4, "3 images at once", "take a smaller embedding.batch_size than 4, or embedding.device: cpu."),
        (False, 1, "1 images at once", "take embedding.device: cpu."),
        (True, 1, "the network", "take embedding.device: cpu."),
    ],
)
def test_want_of_memory_is_recognised_in_all_its_words(refusal, whole, batch_size, says, remedy):
    error = refusal()
    with pytest.raises(RecipeError) as caught:
        model_of(Refused(error, whole), batch_size).embed(images(3))
    words = str(error).rstrip(".")
    assert str(caught.value) == (
        f"The device refused {says} in the embedding 'sums', most likely for want of memory ({words}): {remedy}"
    )
    assert caught.value.__cause__ is error


def test_another_error_is_not_taken_for_want_of_memory():
    with pytest.raises(RuntimeError, match="sizes differ"):
        model_of(Refused(RuntimeError("sizes differ"), whole=False)).embed(images(3))


def test_samples_that_are_no_images_are_refused():
    with pytest.raises(ContractError, match="'sums' takes images"):
        model_of(Sums(uneven=False)).embed(["text"])  # type: ignore[arg-type]
