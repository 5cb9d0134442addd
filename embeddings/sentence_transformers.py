"""Sentence embeddings (Reimers & Gurevych 2019): vectors of what a text means.

A batch holds a fixed number of texts of like length, padded to one length: the next power of two,
in tokens. So what a text's vector is made of, padding included, follows from that text alone,
whatever texts are embedded with it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embeddings.torch_model import Batch, Network, TorchEmbedding, local_place
from pe.data.arrays import Int64Array
from pe.data.quiet import quiet, quiet_transformers
from pe.data.samples import Samples, slices
from pe.data.texts import Texts
from pe.errors import MissingDependency, RecipeError
from pe.plugins.devices import import_library, memory_refused, words_of_error
from pe.plugins.embed import expect
from pe.plugins.protocols import PluginInfo, Vectors
from pe.plugins.settings import Count
from pe.plugins.specs import plugin
from pe.plugins.weights import check_whole

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

BATCHES = 4
"""Batches per device and call: only texts of like length share a batch, so some batches are not
full."""

# tokens that a text is padded to
_SHORTEST = 16
_LONGEST = 2**20
_MADE_UP = "made-up: why?"


@plugin
class SentenceTransformers(TorchEmbedding):
    """For texts by their meaning, on this machine.

    Texts → vectors by a model of the sentence-transformers library, such as all-MiniLM-L6-v2, or a
    static one.

    Attributes:
        model: a folder (from the current one, if relative) or a repository of the Hugging Face hub
            (OWNER/NAME): a model of sentence-transformers, a static one of model2vec, or a plain
            encoder of transformers, whose tokens' mean is taken. Code in it is not run.
        revision: commit, tag or branch of a repository; None: the newest.
        prompt: a text that is put before each text, such as "query: "; None: the model's own, if it
            names one.
        max_tokens: most tokens of a text, prompt included, that are read; None: as many as the
            model takes.
    """

    kind = "sentence_transformers"
    noun = Texts.noun
    info = PluginInfo(
        modality="texts", hosts=(), machine_settings=TorchEmbedding.info.machine_settings
    )

    model: str
    revision: str | None = None
    prompt: str | None = None
    max_tokens: Count | None = None
    batch_size: Count = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        self.batch_size *= BATCHES

    def embed(self, samples: Samples) -> Vectors:
        """Return float32, n×d: each row depends on its own text alone, in a call of any size.

        Raises:
            ContractError: the samples are not texts.
            RecipeError: the model or the device is not there, or the device lacks memory for the
                network or a batch.
            MissingDependency: torch or sentence-transformers is not installed.
        """
        strings = expect(samples, Texts, self.kind).strings
        _ = self._copies  # with the network comes its tokenizer
        texts = strings or [""]
        room = max(self._each - 1, 1)
        lengths = self._tokenizer.lengths(texts)
        places = []
        batches = []
        for length in np.unique(lengths):
            alike = np.flatnonzero(lengths == length)
            for some in (alike[part] for part in slices(len(alike), room)):
                batches.append(
                    self._tokenizer.pad([texts[i] for i in some], int(length), rows=self._each)
                )
                places.append(some)
        rows = self._share(batches).reshape(len(batches), self._each, -1)
        vectors = np.zeros((len(texts), rows.shape[2]), np.float32)
        for some, batch in zip(places, rows, strict=True):
            vectors[some] = batch[: len(some)]
        return vectors[: len(samples)]

    def _example(self, shape: tuple[int, ...]) -> Batch:
        return self._tokenizer.pad([_MADE_UP], shape[2], rows=1)

    def _tensor(self, batch: Batch, device: torch.device) -> Tensor:
        import torch

        return torch.from_numpy(batch).to(device)

    def _load(self) -> Network:
        """Return the network.

        It is read twice and compared, because the library silently draws missing weights at random.
        """
        import torch

        vectors = []
        try:
            for seed in (1, 0):
                with (
                    quiet(),
                    quiet_transformers(),
                    torch.random.fork_rng(devices=[]),
                    torch.inference_mode(),
                ):
                    torch.manual_seed(seed)
                    module = self._read()
                    self._tokenizer = tokenizer = _Tokenizer(module, self)
                    length = int(tokenizer.lengths([_MADE_UP])[0])
                    example = torch.from_numpy(tokenizer.pad([_MADE_UP], length, rows=1))
                    vectors.append(tokenizer.features(module, example))
        except (MissingDependency, RecipeError):
            raise
        except Exception as error:  # whatever a library makes of a broken or foreign file
            if memory_refused(error):
                raise
            check_whole(self.model)
            raise RecipeError(
                f"embedding.model: '{self.model}' cannot be loaded "
                f"({words_of_error(error)}): name a folder, or OWNER/NAME of the hub, with a model "
                "of sentence-transformers whose weights are .safetensors."
            ) from error
        if not torch.equal(*vectors):
            raise RecipeError(
                f"embedding.model: '{self.model}' lacks some of its weights: name one that "
                "has them all."
            )
        return Network(module, lambda tokens: tokens, tokenizer.features)

    def _read(self) -> Any:
        """Return the model on the CPU, in float32."""
        import torch

        library = import_library("sentence_transformers", "text", f"The embedding '{self.kind}'")
        place = local_place(self.model, self.revision, self.offline, "modules.json", "config.json")
        model = library.SentenceTransformer(
            place,
            device="cpu",
            revision=self.revision,
            local_files_only=Path(place).is_dir(),
            model_kwargs={"use_safetensors": True, "dtype": torch.float32},
        )
        return model.float().eval()


class _Tokenizer:
    """Turns texts into the k inputs of a model, padded to one length: int64 (n, k, length).

    For a static model the inputs are the tokens, and a mask of the places that they fill.
    """

    def __init__(self, module: Any, config: SentenceTransformers) -> None:
        limit = int(min(module.get_max_seq_length() or _LONGEST, _LONGEST))
        if (config.max_tokens or 0) > limit:
            raise RecipeError(
                f"max_tokens is {config.max_tokens:,}, and the model takes {limit:,}: give that, "
                "or fewer."
            )
        own = module.prompts.get(module.default_prompt_name)
        self._module = module
        self._prompt = own if config.prompt is None else config.prompt
        self._most = config.max_tokens or limit
        self._width = module.truncate_dim
        inputs = self._ask([""])
        self._static = "offsets" in inputs
        self._rest = {
            name: value for name, value in inputs.items() if name in ("modality", "prompt_length")
        }
        self._names = ["input_ids", "attention_mask"]
        self._names += [] if self._static else [name for name in inputs if name == "token_type_ids"]

    def lengths(self, texts: list[str]) -> Int64Array:
        """Return the length to pad each text to.

        That is a power of two, at most the number of tokens that are read.
        """
        inputs = self._ask(texts)
        if self._static:
            own = np.diff([*inputs["offsets"].tolist(), len(inputs["input_ids"])])
        else:
            own = inputs["attention_mask"].sum(1).numpy()
        return np.minimum(
            2 ** np.ceil(np.log2(np.maximum(own, _SHORTEST))).astype(np.int64), self._most
        )

    def pad(self, texts: list[str], length: int, rows: int) -> Batch:
        """Return a batch of `rows` texts, padded to `length`.

        Empty texts fill it up: at least one if `rows` > 1.

        Empty texts bring padding into every batch; without padding a library may skip the mask and
        compute otherwise.
        """
        inputs = self._ask([*texts, *[""] * (rows - len(texts))], length)
        if not self._static:
            return np.stack([inputs[name].numpy() for name in self._names], axis=1)
        tokens = inputs["input_ids"].numpy()
        starts = [*inputs["offsets"].tolist(), len(inputs["input_ids"])]
        ids = np.zeros((rows, 2, length), np.int64)
        for row, start, end in zip(ids, starts[:-1], starts[1:], strict=True):
            count = min(end - start, length)
            row[0, :count], row[1, :count] = tokens[start : start + count], 1
        return ids

    def features(self, module: nn.Module, batch: Tensor) -> Tensor:
        """Return the model's vectors, float32 (n, d), for a batch made by `pad`."""
        inputs = dict(zip(self._names, batch.unbind(1), strict=True))
        if self._static:
            mask = inputs["attention_mask"].bool()
            ends = mask.sum(1).cumsum(0)
            inputs = {"input_ids": inputs["input_ids"][mask], "offsets": ends - mask.sum(1)}
        vectors: Tensor = module(inputs | self._rest)["sentence_embedding"]
        return vectors[:, : self._width]

    def _ask(self, texts: list[str], length: int | None = None) -> dict[str, Any]:
        """Run the model's tokenizer, padding to `length` or to the longest text."""
        options = {"padding": "max_length" if length else True, "max_length": length or self._most}
        options |= {"truncation": True, "return_attention_mask": True}
        inputs: dict[str, Any] = self._module.preprocess(
            texts, prompt=self._prompt, processing_kwargs={"text": options}
        )
        return inputs
