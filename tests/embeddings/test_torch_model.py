"""Networks in batches: a vector is a function of its image, on the device and in the precision
asked for.
"""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from embeddings import torch_model
from embeddings.torch_model import Network, TorchEmbedding, _arithmetic
from pe.data.texts import Texts
from pe.errors import RecipeError
from pe.private.embeddings import embed_private
from tests.embeddings.networks import images, networks
from tests.embeddings.test_sentence_transformers import written
from tests.fake_cards import REFUSALS
from tests.private_data import dataset_of


class Sums(nn.Module):
    """Sums of an image's halves; where `uneven`, a row's sum is off by a hair that depends on its
    place.
    """

    def __init__(self, uneven=False, error=None):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.uneven, self.error, self.sizes = uneven, error, []

    def forward(self, x):
        if self.error is not None:
            raise self.error
        self.sizes.append(len(x))
        found = x.reshape(len(x), 2, -1).sum(2) * self.weight
        return found * (1 + 1e-6 * torch.arange(len(x))[:, None]) if self.uneven else found


class OfSums(TorchEmbedding):
    kind = "sums"

    def __init__(self, module=None, places=None, **settings):
        super().__init__(**{"device": "cpu", "batch_size": 4, "offline": True} | settings)
        self._module = module or Sums()
        if places:  # as if `auto` had found them
            self._places = places
            self.batch_size = 4 * len(places)

    def _load(self):
        return Network(self._module, lambda x: x, lambda module, x: module(x))

    @property
    def batches(self):
        """The sizes of those that each device had, the trial's included."""
        return [on.network.module.sizes for on in self._copies]


@pytest.fixture(scope="module")
def random_networks(tmp_path_factory):
    return networks(tmp_path_factory.mktemp("weights"))


@pytest.mark.parametrize("name", ["dinov2", "sentence_transformers"])
def test_removing_a_record_leaves_all_other_private_vectors_bit_identical(random_networks, name):
    texts = Texts.of(written(*np.random.default_rng(0).integers(1, 60, 20)))
    records = images(20, height=20, width=15) if name == "dinov2" else texts

    def vectors(kept):
        dataset = dataset_of(records.take(kept), np.zeros(len(kept)), classes=["a"])
        return embed_private(dataset, random_networks[name], None).vectors

    whole = vectors(list(range(20)))
    for gone in (0, 7, 8, 15, 19):
        kept = [i for i in range(20) if i != gone]
        np.testing.assert_array_equal(vectors(kept), whole[kept])


def test_where_places_in_a_batch_differ_images_are_run_one_at_a_time():
    """It is the trial that protects them: without it the uneven network's vectors depend on the
    place.
    """
    uneven, even = OfSums(Sums(uneven=True)), OfSums()
    vectors = uneven.embed(images(4))
    np.testing.assert_array_equal(uneven.embed(images(4).take([3, 0, 1, 2])), vectors[[3, 0, 1, 2]])
    assert uneven.batches == [[4, *[1] * 8]]
    even.embed(images(8))
    assert even.batches == [[4, 4, 4]]  # the trial, and two batches


@pytest.mark.parametrize("count", [0, 5, 25])
@pytest.mark.parametrize("uneven", [False, True])
def test_several_devices_share_the_batches_and_change_no_vector(count, uneven):
    alone, together = (OfSums(Sums(uneven), places) for places in (["cpu"], ["cpu"] * 3))
    assert (alone.batch_size, together.batch_size) == (4, 12)
    np.testing.assert_array_equal(together.embed(images(count)), alone.embed(images(count)))
    if count == 25 and not uneven:
        assert together.batches == [[4, 4, 4, 1], [4, 4, 4], [4, 4, 4]]


class Drifting(Sums):
    """On another device it computes something else."""

    def __deepcopy__(self, memo):
        other = Sums()
        other.weight.data *= 1 + 1e-6
        return other


def test_a_device_that_gives_other_vectors_is_left_out(caplog):
    embedding = OfSums(Drifting(), ["cpu", "cpu"])
    np.testing.assert_array_equal(embedding.embed(images(8)), OfSums().embed(images(8)))
    assert embedding.batches == [[4, 4, 4]]
    assert (
        "Two GPUs give a sample two vectors: the embedding 'sums' uses the first alone."
        in caplog.messages
    )


@pytest.mark.parametrize(
    ("kinds", "wanted", "places"),
    [
        (["H100", "H100"], "auto", ["cuda:0", "cuda:1"]),
        (["H100", "A100"], "auto", ["cuda:0"]),
        ([], "auto", ["auto"]),
        (["H100", "H100"], "cuda:1", ["cuda:1"]),
    ],
)
def test_auto_takes_all_gpus_of_one_kind(kinds, wanted, places, monkeypatch, caplog):
    monkeypatch.setattr(torch_model, "has_driver", lambda: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "" if not kinds else "0,1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(kinds))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(kinds))
    monkeypatch.setattr(torch.cuda, "get_device_name", kinds.__getitem__)
    embedding = OfSums(device=wanted)
    assert embedding.batch_size == 4 * len(places)
    assert embedding._places == places
    told = ["H100, A100: the embedding 'sums' uses the first of these GPUs alone."]
    assert caplog.messages == (told if len(set(kinds)) > 1 else [])


@pytest.mark.parametrize("setting", ["tf32", "ieee"])
def test_on_a_card_arithmetic_is_exact_whatever_torch_was_told_and_so_it_is_left(
    setting, monkeypatch
):
    places = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)
    for place in places:
        monkeypatch.setattr(place, "fp32_precision", setting)
    with _arithmetic(torch.device("cuda")):
        assert [place.fp32_precision for place in places] == ["ieee"] * 2
        assert torch.backends.cudnn.deterministic
    assert [place.fp32_precision for place in places] == [setting] * 2
    assert not torch.backends.cudnn.deterministic


def test_constructing_loads_neither_torch_nor_weights():
    code = (
        "import sys\n"
        "from pe.plugins.specs import construct\n"
        "for kind in ('open_clip', 'inception', 'dinov2', 'efficientnet_lite'):\n"
        "    assert construct('pe.embeddings', kind, {'device': 'cpu'}).batch_size in (32, 64)\n"
        "sentences = construct('pe.embeddings', 'sentence_transformers', {'device': 'cpu', "
        "'model': 'some/model'})\n"
        "assert sentences.batch_size == 64\n"
        "heavy = {'torch', 'transformers', 'open_clip', 'torchvision', 'timm'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)"
    )
    assert subprocess.run([sys.executable, "-W", "error", "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("batch_size", "says"),
    [
        (
            4,
            r"refused 3 images at once .*: take a smaller embedding\.batch_size than 4, or "
            r"embedding\.device: cpu",
        ),
        (1, r"refused 1 images at once .*: take embedding\.device: cpu"),
    ],
)
def test_want_of_memory_is_told_with_a_remedy(batch_size, says):
    with pytest.raises(RecipeError, match=says):
        OfSums(Sums(error=REFUSALS["cudnn get"]()), batch_size=batch_size).embed(images(3))
