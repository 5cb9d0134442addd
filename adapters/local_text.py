"""Language models on this machine, with a copy of the model on each device.

Code that comes with a model is not run. All randomness of a text comes from its item's seed, which
gives a number for each token. Neither the order of the items nor the rest of a batch changes a
text, except through rounding in a batch (not with `batch_size: 1`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from adapters.device_engine import DeviceEngine, Group, Load
from adapters.prompts import prompts_of
from adapters.text_prompts import (
    Asking,
    Outcome,
    TextAnswers,
    TextPrompts,
    answer_of,
    parents_of,
    share_of,
)
from adapters.text_settings import LONGEST_LINE, WRITTEN, Drawn, Written
from pe.data.arrays import Float64Array, Int64Array
from pe.data.quiet import quiet_transformers
from pe.data.samples import Conditions, generator, uniforms
from pe.data.texts import plain
from pe.errors import RecipeError
from pe.plugins.devices import Precision, dtype_on, import_library, memory_refused, words_of_error
from pe.plugins.protocols import (
    Answer,
    Capabilities,
    Failed,
    Generator,
    PluginInfo,
    RandomRequest,
    Seeds,
    Usage,
    VariationRequest,
)
from pe.plugins.settings import Count, Devices, Settings, read_settings
from pe.plugins.weights import check_whole

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Tokens = Int64Array

INFO = PluginInfo(
    modality="texts", hosts=(), machine_settings=("device", "batch_size", "chunk", "offline")
)
REQUESTS = 2
"""Requests at once: a second one waits, so that no device is idle between two."""


class LocalModel(Settings):
    """A language model on this machine.

    Attributes:
        model: a folder (relative to the current one), or a repository of the Hugging Face hub
            (OWNER/NAME), with weights as .safetensors. Code that lies there is not run.
        revision: the revision of a repository. None: the newest.
        device: auto (all GPUs, else mps, else cpu), cpu, mps, cuda, cuda:1, or a list of GPUs. Each
            has a copy of the model.
        precision: fp32, bf16 or fp16. auto: bf16 on a GPU that computes in it, else fp32.
        batch_size: texts at once on each device, halved if they do not fit into memory.
        chunk: most texts of one request. A run that is killed makes the texts of unfinished
            requests again.
        offline: fetch nothing from the hub.
    """

    model: str
    revision: str | None = None
    device: Devices = "auto"
    precision: Precision = "auto"
    batch_size: Count = 16
    chunk: Count = 64
    offline: bool = False

    def load(self, kind: str, device: torch.device) -> tuple[Any, Any]:
        """Return the model on a device, and its tokenizer.

        `kind` is AutoModelForCausalLM or AutoModelForMaskedLM.

        Raises:
            MissingDependency: transformers is not installed.
            RecipeError: the model cannot be loaded, or lacks weights that such a model has.
        """
        transformers = import_library("transformers", "text", "A local language model")
        place = str(Path(self.model).expanduser()) if self.model.startswith("~") else self.model
        source = {
            "revision": self.revision or "main",
            "local_files_only": self.offline or Path(place).is_dir(),
        }
        remedy = (
            "a folder, or OWNER/NAME of the hub, with config.json, .safetensors weights and a "
            "tokenizer"
        )
        try:
            with quiet_transformers():
                tokenizer = transformers.AutoTokenizer.from_pretrained(place, **source)
                model, report = getattr(transformers, kind).from_pretrained(
                    place,
                    **source,
                    dtype=dtype_on(device, self.precision),
                    use_safetensors=True,
                    output_loading_info=True,
                )
        except Exception as error:  # whatever a library makes of a broken or foreign file
            if memory_refused(error):
                raise
            check_whole(place)
            raise RecipeError(
                f"model: '{self.model}' cannot be loaded ({words_of_error(error)}): name {remedy}."
            ) from error
        if report["missing_keys"]:  # the library would draw them at random
            lacks = min(report["missing_keys"])
            raise RecipeError(
                f"model: '{self.model}' lacks the weights {lacks} of an {kind}: name one that has "
                "them."
            )
        return model.to(device).eval(), tokenizer


class LocalTexts(Generator, ABC):
    """A generator of texts by a local model on all devices.

    It draws prompts, and returns the parents at degree 0.
    """

    info = INFO

    def __init__(
        self, config: CausalSettings | MaskedSettings, prompts: TextPrompts, load: Load
    ) -> None:
        self.info = replace(self.info, by_label=prompts.by_label)
        self._prompts = prompts
        self._longest = config.longest
        self._engine = DeviceEngine(
            load,
            "a smaller model or `precision: bf16`, shorter texts, or another device",
            device=config.device,
            batch_size=config.batch_size,
            extra="text",
            purpose="A local language model",
        )

    def check_labels(self, labels: Sequence[str]) -> None:
        """Raise RecipeError if a label has no prompt, or no value of an attribute."""
        self._prompts.check(labels)

    def draw_conditions(self, labels: tuple[str, ...], seeds: Seeds) -> Conditions:
        """Draw the prompt of each new sample, and the attributes in it."""
        return self._prompts.draw(labels, seeds)

    def variation_api(self, request: VariationRequest) -> Answer:
        """Vary each parent, or return the parents if the degree is 0.

        Raises:
            RecipeError: the weights or the device are not there.
            APIError: the parents are not texts, or the device has too little memory for one text.
        """
        return (
            Answer(request.samples, usage=Usage(0)) if request.degree == 0 else self._vary(request)
        )

    @abstractmethod
    def _vary(self, request: VariationRequest) -> Answer:
        """Vary each parent to a degree above 0."""

    def _answer(
        self,
        request: RandomRequest | VariationRequest,
        texts: Sequence[str],
        make: Callable[[Any, list[str], Seeds], Sequence[Outcome]],
    ) -> Answer:
        """Return the answer that `make` gives to the items' texts and seeds.

        Texts of similar length share a batch.
        """
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        group = Group(
            deque(order),
            lambda model, places: make(
                model, [texts[place] for place in places], request.seeds[list(places)]
            ),
            "text",
        )
        outcomes = self._engine.make(group) if order else {}
        return answer_of(
            [outcomes[place] for place in range(len(texts))], self._longest, request.conditions
        )


def pick(scores: torch.Tensor, numbers: Float64Array) -> torch.Tensor:
    """Draw a token for each row of scores by the row's number in [0, 1): int64 (n, 1)."""
    import torch

    wide = torch.float32 if scores.device.type == "mps" else torch.float64  # mps has no float64
    shares = scores.to(wide).softmax(-1).cumsum(-1)
    points = torch.as_tensor(numbers, dtype=wide, device=scores.device)[:, None] * shares[:, -1:]
    return torch.searchsorted(shares, points, right=True).clamp(max=scores.shape[-1] - 1)


class CausalSettings(LocalModel, Written):
    """Settings of `CausalLM`.

    Attributes:
        temperature: temperature of sampling. None: that in the model's generation_config.json, else
            1.
        top_p: sample among the likeliest tokens up to this joint share. None: that in
            generation_config.json, else 1.
        top_k: sample among this many likeliest tokens; 0: among all. None: that in
            generation_config.json, else 0.
        template: arguments of the model's chat template, such as enable_thinking. A model without a
            template continues the system prompt and the prompt as plain text.
    """

    top_k: Annotated[int, Field(ge=0)] | None = None
    template: dict[str, Any] | None = None


class CausalLM(LocalTexts):
    """Texts by a language model on this machine, where no prompt may leave it.

    Samples carry their prompt as the condition `prompt`, and the attributes that were drawn for it.
    Degree 0 is the parent itself.

    Args:
        settings: see `CausalSettings`.

    Raises:
        RecipeError: a setting is wrong.
    """

    Settings = CausalSettings
    info = replace(INFO, machine_settings=(*INFO.machine_settings, "max_tokens"))
    shows_examples: ClassVar[bool] = True
    starter = f"""\
  model: my-model\t# a folder, or a repository of the Hugging Face hub
{WRITTEN}  batch_size: 32
"""

    def __init__(self, **settings: Any) -> None:
        self._config = config = read_settings(self.Settings, settings, "CausalLM")
        self._asking = Asking.of(config)
        self._answers = answers = TextAnswers(config)
        super().__init__(
            config, self._asking.prompts, lambda device: _Writer(config, device, answers)
        )

    @property
    def capabilities(self) -> Capabilities:
        """A request holds any items, and the degree is put in words, which a model may ignore."""
        return Capabilities(self._config.chunk, REQUESTS, "nothing", "wording")

    def describe_degree(self, degree: float, iteration: int = 1) -> str:
        """Describe what this degree means for this generator."""
        return self._asking.describe(degree)

    def describe_answers(self) -> str:
        """Describe the answers so far, as `Generator.describe_answers` says."""
        return self._answers.describe()

    def random_api(self, request: RandomRequest) -> Answer:
        """Write new texts for the items' prompts.

        Raises:
            RecipeError: the weights or the device are not there.
            APIError: the device has not enough memory for one text.
        """
        return self._answer(request, self._asking.for_new(request), _Writer.write)

    def _vary(self, request: VariationRequest) -> Answer:
        return self._answer(
            request,
            self._asking.for_variations(request),
            _Writer.write,
        )


class _Writer:
    """The causal model on one device."""

    def __init__(
        self,
        config: CausalSettings,
        device: torch.device,
        answers: TextAnswers,
    ) -> None:
        from transformers import GenerationConfig

        self._config = config
        self._device = device
        self._answers = answers
        model, tokenizer = config.load("AutoModelForCausalLM", device)
        self._model = model
        self._tokenizer = tokenizer
        own = model.generation_config
        ends = own.eos_token_id if own.eos_token_id is not None else tokenizer.eos_token_id
        self._ends = ends if isinstance(ends, list) else [] if ends is None else [ends]
        if tokenizer.pad_token_id is None and not self._ends:
            raise RecipeError(
                f"`model`: '{config.model}' has neither a token that ends a text nor one for "
                "padding. Add one of them to its tokenizer_config.json."
            )
        self._pad = self._ends[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        longest = (
            getattr(model.config.get_text_config(), "max_position_embeddings", None) or math.inf
        )
        self._room = longest - config.max_tokens
        self._warpers = _warpers(
            config.temperature or own.temperature or 1.0,
            own.top_k or 0 if config.top_k is None else config.top_k,
            config.top_p or own.top_p or 1.0,
        )
        model.generation_config = GenerationConfig()  # nothing but what is said below counts

    def write(self, prompts: Sequence[str], seeds: Seeds) -> list[Outcome]:
        """Write a text for each prompt, with tokens drawn by the prompt's seed.

        A prompt that is too long becomes Failed.
        """
        rows = [self._tokens(prompt) for prompt in prompts]
        fits = np.array([len(row) <= self._room for row in rows])
        short = [row for row in rows if len(row) <= self._room]
        texts = iter(self._generate(short, seeds[fits]) if short else [])
        return [
            next(texts) if fit else self._too_long(row) for row, fit in zip(rows, fits, strict=True)
        ]

    def _too_long(self, row: list[int]) -> Failed:
        return Failed(
            (
                f"the prompt has {len(row)} tokens, but with `max_tokens: "
                f"{self._config.max_tokens}` the model takes {self._room}: use a smaller "
                "`max_tokens`, shorter texts (`longest`), or another model"
            ),
            rejected=True,
        )

    def _tokens(self, prompt: str) -> list[int]:
        """Return the tokens of a prompt, put in the tokenizer's chat template if it has one."""
        config = self._config
        tokenizer = self._tokenizer
        has_template = tokenizer.chat_template is not None
        texts = {"system": config.system, "user": prompt}
        given = {role: text for role, text in texts.items() if text is not None}
        text = "\n\n".join([*given.values(), ""])
        if has_template:
            text = tokenizer.apply_chat_template(
                [{"role": role, "content": text} for role, text in given.items()],
                tokenize=False,
                add_generation_prompt=True,
                **(config.template or {}),
            )
        # the template has put in the special tokens itself
        answer = tokenizer(text, add_special_tokens=not has_template, verbose=False)
        tokens: list[int] = answer["input_ids"]
        return tokens

    def _generate(self, rows: list[list[int]], seeds: Seeds) -> list[Outcome]:
        """Write the text that follows each row of tokens, drawn by the row's seed."""
        import torch
        from transformers import GenerationConfig, LogitsProcessorList

        # at the left, because new tokens are written at the right
        ids, mask = _padded(rows, self._pad, "left", self._device)
        width = ids.shape[1]
        config = GenerationConfig(
            max_new_tokens=self._config.max_tokens,
            do_sample=False,  # the last processor draws
            eos_token_id=self._ends or None,
            pad_token_id=self._pad,
        )

        def draw(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            """Rule out all tokens of each row but one.

            That one is drawn by a number from the row's seed and the step.
            """
            token = pick(scores, uniforms(seeds, f"token/{input_ids.shape[1] - width}"))
            return torch.full_like(scores, -torch.inf).scatter(1, token, 0.0)

        rows_out = self._model.generate(
            ids,
            attention_mask=mask,
            generation_config=config,
            logits_processor=LogitsProcessorList([*self._warpers, draw]),
        )
        return [self._text(tokens) for tokens in rows_out[:, width:].tolist()]

    def _text(self, tokens: list[int]) -> Outcome:
        end = next((place for place, token in enumerate(tokens) if token in self._ends), None)
        text = self._tokenizer.decode(tokens[:end], skip_special_tokens=True)
        return self._answers.take(text, is_whole=end is not None)


def _warpers(temperature: float, top_k: int, top_p: float = 1.0) -> list[Any]:
    """Return the functions that change the tokens' scores as these settings say."""
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    warpers = [TemperatureLogitsWarper(float(temperature))]
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        warpers.append(TopPLogitsWarper(float(top_p)))
    return warpers


def _padded(
    rows: Sequence[Any],
    pad: int,
    side: str,
    device: torch.device,
) -> list[Tensor]:
    """Return the rows as one matrix, padded on a side, and a mask that is 0 where it is padded."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    tokens = [torch.as_tensor(row) for row in rows]
    ones = [torch.ones_like(row) for row in tokens]
    return [
        pad_sequence(tokens, True, pad, side).to(device),
        pad_sequence(ones, True, 0, side).to(device),
    ]


class MaskedSettings(LocalModel, Drawn):
    """Settings of `MaskedLM`.

    Attributes:
        prompts: public texts to begin with: one, a list to draw from, or either for each label.
            `{label}` and the names of `attributes` are replaced in them.
        random_degree: share of a public text's tokens that are filled in for a new sample.
        passes: number of passes that fill in the masked tokens. Each sees what earlier passes
            wrote.
        temperature: temperature of sampling.
        top_k: sample among this many of the most likely tokens; 0: among all.
    """

    random_degree: Annotated[float, Field(gt=0, le=1)] = 0.5
    passes: Count = 4
    temperature: Annotated[float, Field(gt=0)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0


class MaskedLM(LocalTexts):
    """Texts near public ones, in which a masked language model on this machine fills in words.

    The degree is exactly the share of a parent's tokens that are masked, rounded to a whole number,
    at least one. The other tokens stay; spaces and case come from the tokenizer. Samples carry as
    the condition `prompt` the public text that they began with, and the attributes that were drawn
    for it.

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
"""  # noqa: E501

    def __init__(self, **settings: Any) -> None:
        self._config = config = read_settings(MaskedSettings, settings, "MaskedLM")
        super().__init__(
            config,
            TextPrompts.of(config),
            lambda device: _Filler(config, device),
        )

    @property
    def capabilities(self) -> Capabilities:
        """A request holds any items, and degrees are obeyed exactly."""
        return Capabilities(self._config.chunk, REQUESTS, "nothing", "exact")

    def describe_degree(self, degree: float, iteration: int = 1) -> str:
        """Describe what this degree means for this generator."""
        return (
            f"{degree:.3g} of the tokens masked and filled in anew"
            if degree
            else "the parent itself"
        )

    def random_api(self, request: RandomRequest) -> Answer:
        """Fill in a share of the tokens of public texts anew.

        Raises:
            RecipeError: the weights or the device are not there.
            APIError: the device has not enough memory for one text.
        """
        texts = [
            plain(str(text)) for text in prompts_of(self._prompts.of_request(request), len(request))
        ]
        return self._fill(request, texts, self._config.random_degree)

    def _vary(self, request: VariationRequest) -> Answer:
        return self._fill(request, parents_of(request.samples), request.degree)

    def _fill(
        self, request: RandomRequest | VariationRequest, texts: list[str], degree: float
    ) -> Answer:
        return self._answer(
            request, texts, lambda filler, those, seeds: filler.fill(those, seeds, degree)
        )


class _Filler:
    """The masked model on one device."""

    def __init__(self, config: MaskedSettings, device: torch.device) -> None:
        self._config = config
        self._device = device
        model, tokenizer = config.load("AutoModelForMaskedLM", device)
        self._model = model
        self._tokenizer = tokenizer
        if tokenizer.mask_token_id is None:
            raise RecipeError(
                f"`model`: '{config.model}' has a tokenizer without a mask token. Use a masked "
                "language model."
            )
        self._mask = tokenizer.mask_token_id
        self._special = sorted(tokenizer.all_special_ids)
        self._pad = self._mask if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        limit = getattr(model.config, "max_position_embeddings", None) or tokenizer.model_max_length
        self._longest = min(limit, tokenizer.model_max_length)
        self._warpers = _warpers(config.temperature, config.top_k)

    def fill(self, texts: Sequence[str], seeds: Seeds, degree: float) -> list[Outcome]:
        """Fill in the share `degree` of each text's tokens anew, in an order drawn by its seed."""
        # All places are masked at first, and each pass fills in a share of them, so that later
        # passes see what earlier ones wrote.
        numbers = seeds.tolist()
        rows = [
            np.array(self._tokenizer(text, verbose=False)["input_ids"], np.int64) for text in texts
        ]
        free = [np.flatnonzero(~np.isin(row, self._special)) for row in rows]
        faults = [self._fault(row, places) for row, places in zip(rows, free, strict=True)]
        fits = [i for i, fault in enumerate(faults) if fault is None]
        groups = []
        for i in fits:
            order = generator(numbers[i], "masks").permutation(free[i])
            masked = order[: share_of(len(order), degree)]
            rows[i][masked] = self._mask
            groups.append(np.array_split(masked, self._config.passes))
        for step, places in enumerate(zip(*groups, strict=True)):
            draws = [
                generator(numbers[i], f"fill/{step}").random(len(those))
                for i, those in zip(fits, places, strict=True)
            ]
            if any(map(len, places)):
                self._pass([rows[i] for i in fits], places, np.concatenate(draws))
        return [fault or self._text(row) for row, fault in zip(rows, faults, strict=True)]

    def _text(self, row: Tokens) -> Outcome:
        text = plain(self._tokenizer.decode(row.tolist(), skip_special_tokens=True)).strip()
        return text or Failed("the model filled in nothing readable")

    def _fault(self, row: Tokens, free: Tokens) -> Failed | None:
        """Return why a text cannot be filled in, or None if it can."""
        if not len(free):
            return Failed("the text has no token to mask", rejected=True)
        if len(row) <= self._longest:
            return None
        return Failed(
            (
                f"the text has {len(row)} tokens, but the model takes {self._longest}: use shorter "
                "texts (`longest`), or another model"
            ),
            rejected=True,
        )

    def _pass(
        self,
        rows: list[Tokens],
        groups: Sequence[Tokens],
        numbers: Float64Array,
    ) -> None:
        """Fill in the tokens of each row at its places in `groups`, drawn by the `numbers`.

        Changes `rows`.
        """
        import torch

        # The scores of all places to fill, over all rows, lie below each other in one matrix.
        ids, mask = _padded(rows, self._pad, "right", self._device)
        logits = self._model(input_ids=ids, attention_mask=mask).logits
        places = [torch.as_tensor(group, device=self._device) for group in groups]
        scores = torch.cat([logits[i, those] for i, those in enumerate(places)]).float()
        scores[:, self._special] = -torch.inf
        for warper in self._warpers:
            scores = warper(ids, scores)
        picks = pick(scores, numbers)[:, 0].cpu().numpy()
        ends = np.cumsum([len(group) for group in groups])
        for row, group, tokens in zip(rows, groups, np.split(picks, ends[:-1]), strict=True):
            row[group] = tokens
