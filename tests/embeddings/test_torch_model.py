"""Networks in batches: a vector is a function of its image, on the device and in the precision asked for."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from embeddings.torch_model import Network, TorchEmbedding, _arithmetic
from pe.errors import ContractError, RecipeError
from pe.private import PrivateDataset, embed_private
from tests.embeddings.networks import dinov2_folder, images, networks


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


class OfSums(TorchEmbedding):
    kind = "sums"

    def __init__(self, module: Sums, device: str = "cpu", precision: str = "fp32", batch_size: int = 4) -> None:
        super().__init__(device, precision, batch_size, offline=True)
        self._module = module

    def _load(self) -> Network:
        return Network(self._module, lambda x: x, lambda module, x: module(x))


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
    from embeddings.dinov2 import DINOv2

    low = DINOv2(
        model=str(dinov2_folder(tmp_path)), resize=32, crop=28, device="cpu", precision=precision, batch_size=8
    )
    vectors, exact = low.embed(images(8)), three["dinov2"].embed(images(8))
    assert vectors.dtype == np.float32
    assert 0 < np.abs(vectors - exact).max() < 0.1


def test_constructing_loads_neither_torch_nor_weights():
    code = (
        "import sys\n"
        "from pe.plugins.registry import construct\n"
        "for kind in ('open_clip', 'inception', 'dinov2', 'efficientnet_lite'):\n"
        "    assert construct('pe.embeddings', kind, {}).batch_size in (32, 64)\n"
        "heavy = {'torch', 'transformers', 'open_clip', 'torchvision', 'timm'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_a_card_that_is_hidden_or_not_there_is_named():
    code = (
        "from embeddings.inception import Inception\n"
        "from pe.errors import RecipeError\n"
        "from tests.embeddings.networks import images\n"
        "for device in ('cuda', 'cuda:7'):\n"
        "    try:\n"
        "        Inception(device=device, offline=True).embed(images(1))\n"
        "    except RecipeError as error:\n"
        "        print(error)\n"
    )
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    for device, line in zip(("cuda", "cuda:7"), done.stdout.splitlines(), strict=True):
        assert line.startswith(f"device is '{device}', and this machine has 0 CUDA devices to use (CUDA_VISIBLE_DEV")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (("gpu", "fp32", 4), "device is 'gpu'"),
        (("cuda:x", "fp32", 4), "device is 'cuda:x'"),
        (("cpu", "int8", 4), "precision is 'int8'"),
        (("cpu", "fp32", 0), "batch_size is 0"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(changes, says):
    with pytest.raises(RecipeError, match=says):
        OfSums(Sums(uneven=False), *changes)


def test_samples_that_are_no_images_are_refused():
    with pytest.raises(ContractError, match="'sums' takes images"):
        model_of(Sums(uneven=False)).embed(["text"])  # type: ignore[arg-type]
