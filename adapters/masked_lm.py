"""A local masked language model: a share of a text's tokens is masked and filled in anew.

RANDOM_API begins with a public text. All randomness of a text is from its item's seed, as in `causal_lm`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from adapters.local_text import REQUESTS, LocalModel, LocalTexts, pick
from adapters.prompts import prompts_of
from adapters.text_prompts import Outcome, TextPrompts, share_of, strings_of
from adapters.text_settings import LONGEST_LINE, Drawn
from pe.data.seeds import generator
from pe.data.texts import plain
from pe.errors import RecipeError
from pe.plugins.protocols import Answer, Capabilities, Failed, RandomRequest, Seeds, VariationRequest
from pe.plugins.validation import Count, read_settings

if TYPE_CHECKING:
    import torch

Tokens = npt.NDArray[np.int64]


class MaskedSettings(LocalModel, Drawn):
    """What a recipe says of such a model.

    Attributes:
        prompts: public texts to begin with: one, a list to draw from, or either for each label; in them `{label}` and
            the names of `attributes` are replaced.
        random_degree: the share of tokens of such a text that a new sample has filled in anew.
        passes: in how many passes the masked tokens are filled in, each seeing what those before it wrote.
        temperature: of sampling.
        top_k: sample among so many of the most likely tokens; 0: among all.
    """

    random_degree: Annotated[float, Field(gt=0, le=1)] = 0.5
    passes: Count = 4
    temperature: Annotated[float, Field(gt=0)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0


class MaskedLM(LocalTexts["_Filler"]):
    """RANDOM_API and VARIATION_API by a local masked language model of transformers.

    The degree is exactly the share of a parent's tokens that are masked, rounded to a whole number, at least one. The
    other tokens stay; between them the text is as the tokenizer writes it. Samples carry as the condition `prompt` the
    public text that they began with, and the attributes that were drawn for it.

    Args:
        settings: see `MaskedSettings`.

    Raises:
        RecipeError: a setting is wrong.
    """

    Settings = MaskedSettings
    starter = f"""\
  model: my-model\t# a folder, or a repository of the Hugging Face hub
  prompts: {{prompts}}\t# replace it by public texts to begin with: a list of them, or a list for each label
{LONGEST_LINE}  batch_size: 32
"""

    def __init__(self, **settings: Any) -> None:
        self._given = given = read_settings(MaskedSettings, settings, "MaskedLM")
        super().__init__(given, given.longest, TextPrompts.of(given), lambda device: _Filler(given, device))

    @property
    def capabilities(self) -> Capabilities:
        """Any items in a request."""
        return Capabilities(self._given.chunk, REQUESTS, "nothing", "exact")

    def describe_degree(self, degree: float, iteration: int = 1) -> str:
        """Describe what this degree means for this generator."""
        return f"{degree:.3g} of the tokens masked and filled in anew" if degree else "the parent itself"

    def random_api(self, request: RandomRequest) -> Answer:
        """Public texts, with a share of their tokens filled in anew.

        Raises:
            RecipeError: the weights or the device are not there.
            APIError: the device has not enough memory for one text.
        """
        texts = [plain(str(text)) for text in prompts_of(self._prompts.of_request(request), len(request))]
        return self._fill(request, texts, self._given.random_degree)

    def _vary(self, request: VariationRequest) -> Answer:
        return self._fill(request, strings_of(request.samples), request.degree)

    def _fill(self, request: RandomRequest | VariationRequest, texts: list[str], degree: float) -> Answer:
        return self._made(request, texts, lambda filler, those, seeds: filler.fill(those, seeds, degree))


class _Filler:
    """The model on one device."""

    def __init__(self, given: MaskedSettings, device: torch.device) -> None:
        self._given, self._device = given, device
        self._model, self._tokenizer = model, tokenizer = given.load("AutoModelForMaskedLM", device)
        if tokenizer.mask_token_id is None:
            raise RecipeError(f"model: '{given.model}' has a tokenizer without a mask: name a masked language model.")
        self._mask, self._special = tokenizer.mask_token_id, sorted(tokenizer.all_special_ids)
        self._pad = self._mask if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        limit = getattr(model.config, "max_position_embeddings", None) or tokenizer.model_max_length
        self._longest = min(limit, tokenizer.model_max_length)

    def fill(self, texts: Sequence[str], seeds: Seeds, degree: float) -> list[Outcome]:
        """Each text with the share `degree` of its tokens filled in anew, in an order drawn by its seed."""
        drawn = seeds.tolist()
        rows = [np.array(self._tokenizer(text, verbose=False)["input_ids"], np.int64) for text in texts]
        free = [np.flatnonzero(~np.isin(row, self._special)) for row in rows]
        outcomes: dict[int, Outcome] = {i: self._fault(rows[i], free[i]) for i in range(len(rows))}
        fits = [i for i, (row, places) in enumerate(zip(rows, free, strict=True)) if self._takes(row, places)]
        chosen = {i: generator(drawn[i], "masks").permutation(free[i])[: share_of(len(free[i]), degree)] for i in fits}
        for i in fits:
            rows[i][chosen[i]] = self._mask
        for step in range(self._given.passes if fits else 0):
            groups = [np.array_split(chosen[i], self._given.passes)[step] for i in fits]
            numbers = [generator(drawn[i], f"fill/{step}").random(len(g)) for i, g in zip(fits, groups, strict=True)]
            if any(map(len, groups)):
                self._pass([rows[i] for i in fits], groups, np.concatenate(numbers))
        for i in fits:
            text = plain(self._tokenizer.decode(rows[i].tolist(), skip_special_tokens=True)).strip()
            outcomes[i] = text or Failed("the model filled in nothing that can be read")
        return [outcomes[i] for i in range(len(rows))]

    def _takes(self, row: Tokens, free: Tokens) -> bool:
        return len(free) > 0 and len(row) <= self._longest

    def _fault(self, row: Tokens, free: Tokens) -> Failed:
        """Why a text cannot be filled in, where it cannot."""
        if not len(free):
            return Failed("the text has no token that could be masked", retryable=False)
        return Failed(
            f"the text has {len(row)} tokens, and the model takes {self._longest}: take shorter texts (longest), or "
            "another model",
            retryable=False,
        )

    def _pass(self, rows: list[Tokens], groups: list[Tokens], numbers: npt.NDArray[np.float64]) -> None:
        """Fill in the tokens at the places of `groups`, each drawn by its number."""
        import torch

        width = max(map(len, rows))
        ids = np.full((len(rows), width), self._pad)
        mask = np.zeros_like(ids)
        for i, row in enumerate(rows):
            ids[i, : len(row)], mask[i, : len(row)] = row, 1
        which = np.repeat(np.arange(len(rows)), [len(group) for group in groups])
        tensors = [torch.from_numpy(each).to(self._device) for each in (ids, mask, which, np.concatenate(groups))]
        logits = self._model(input_ids=tensors[0], attention_mask=tensors[1]).logits
        scores = logits[tensors[2], tensors[3]].float() / self._given.temperature
        scores[:, self._special] = -torch.inf
        if 0 < self._given.top_k < scores.shape[1]:
            least = scores.topk(self._given.top_k).values[:, -1:]
            scores = scores.masked_fill(scores < least, -torch.inf)
        drawn, start = pick(scores, numbers)[:, 0].cpu().numpy(), 0
        for row, group in zip(rows, groups, strict=True):
            row[group] = drawn[start : start + len(group)]
            start += len(group)
