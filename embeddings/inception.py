"""The network of FID: Inception-v3 with the weights of 2015-12-05, ported from TensorFlow."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, get_args

from embeddings.resizing import antialiased, tensorflow_bilinear
from embeddings.torch_model import Network, Precision, TorchEmbedding
from pe.errors import RecipeError
from pe.plugins.weights import Published, fill, find_published, given_file, read_weights

if TYPE_CHECKING:
    from torch import Tensor

Resize = Literal["tensorflow", "antialiased"]

SIDE = 299
SHA256 = "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2"
WEIGHTS = Published(
    "pt_inception-2015-12-05-6726825d.pth",
    "https://github.com/mseitzer/pytorch-fid/releases/download/fid_weights/pt_inception-2015-12-05-6726825d.pth",
    SHA256,
    aliases=("weights-inception-2015-12-05-6726825d.pth",),
)


class Inception(TorchEmbedding):
    """Images → the 2,048 features that FID compares.

    Args:
        weights: the file, .pth or .safetensors, or its URL; None: the published one. A relative path is
            taken from the current folder. What is fetched is kept in torch.hub's folder of checkpoints. A file with
            the published name must have its hash.
        sha256: what the hash of `weights` must be; None: as published, for a file of that name.
        resize: `tensorflow`, as the FID of Heusel et al. has it; `antialiased`, as clean-FID and the PE paper have it.
        device: auto (all GPUs of one kind, else mps, else cpu), cpu, mps, cuda or one GPU, such as cuda:1.
        precision: fp32, bf16 or fp16.
        batch_size: images per batch on each device, ≥ 1.
        offline: fetch nothing.

    Raises:
        RecipeError: an argument is out of range.
    """

    kind = "inception"

    def __init__(
        self,
        *,
        weights: str | None = None,
        sha256: str | None = None,
        resize: Resize = "tensorflow",
        device: str = "auto",
        precision: Precision = "fp32",
        batch_size: int = 64,
        offline: bool = False,
    ) -> None:
        if resize not in get_args(Resize):
            raise RecipeError(f"resize is '{resize}': it must be one of {', '.join(get_args(Resize))}.")
        if sha256 is not None and weights is None:
            raise RecipeError("sha256 is the hash of a file: name the file too, under weights.")
        self._weights, self._sha256, self._resize = weights, sha256, resize
        self._exact = resize == "tensorflow" and precision == "fp32"
        self.info = replace(self.info, standard_inception=weights is None and self._exact)
        super().__init__(device, precision, batch_size, offline)

    def _load(self) -> Network:
        from embeddings.inception_network import InceptionNetwork

        if self._weights is None:
            file = find_published(WEIGHTS, self._offline)
        else:
            known = dict.fromkeys((WEIGHTS.name, *WEIGHTS.aliases), SHA256)
            file = given_file(self._weights, self._sha256, known, self._offline)
            published = (self._sha256 or known.get(file.name, "")).lower() == SHA256
            self.info = replace(self.info, standard_inception=published and self._exact)
        module = InceptionNetwork()
        fill(module, read_weights(file), file)
        return Network(module, self._prepare, lambda module, images: module(images))

    def _prepare(self, images: Tensor) -> Tensor:
        if self._resize == "tensorflow":
            resized = tensorflow_bilinear(images, SIDE, SIDE)
        else:
            resized = antialiased(images, SIDE, SIDE, between=False)
        return (resized - 128) / 128
