"""Language models on this machine: loaded without running code of theirs, one copy on each device, batch by batch."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from traceback import clear_frames
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar
from weakref import finalize

import numpy as np
import numpy.typing as npt
from pydantic import Field

from adapters.prompts import prompts_of
from adapters.text_prompts import Asking, Outcome, TextAnswers, TextPrompts, answer_of, share_of, strings_of
from adapters.text_settings import LONGEST_LINE, WRITTEN, Drawn, Written
from pe.data.quiet import quiet_transformers
from pe.data.samples import Conditions, generator, uniforms
from pe.data.texts import plain
from pe.errors import APIError, MissingDependency, RecipeError
from pe.plugins.devices import count_cards, find_device, memory_refused, require_torch, words_of
from pe.plugins.protocols import Answer, Capabilities, Failed, PluginInfo, RandomRequest, Seeds, Usage, VariationRequest
from pe.plugins.settings import Count, Settings, read_settings

if TYPE_CHECKING:
    import torch


Device = Annotated[str, Field(pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")]
Model = TypeVar("Model")

INFO = PluginInfo(modality="texts", hosts=(), machine_settings=("device", "batch_size", "offline"))
REQUESTS = 2
"""At once: a second one waits while one is made, so that no device does."""

_loading = threading.Lock()


class LocalModel(Settings):
    """A language model on this machine.

    Attributes:
        model: a folder (from the current one, if relative) or a repository of the Hugging Face hub (OWNER/NAME), with
            weights as .safetensors. Code that lies there is not run.
        revision: of a repository; None: its newest.
        device: auto (all GPUs, else mps, else cpu), cpu, mps, cuda, cuda:1, or a list of GPUs, each with a copy.
        precision: fp32, bf16 or fp16; auto: bf16 on a GPU that computes in it, else fp32.
        batch_size: texts at once on each device; halved where memory does not take so many.
        chunk: most texts of one request; what a run loses at most when it is killed.
        offline: fetch nothing.
    """

    model: str
    revision: str | None = None
    device: Device | Annotated[list[Device], Field(min_length=1)] = "auto"
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    batch_size: Count = 16
    chunk: Count = 64
    offline: bool = False

    def load(self, kind: str, device: torch.device) -> tuple[Any, Any]:
        """The model on a device, and its tokenizer.

        Args:
            kind: the class of transformers that finds the model's own: AutoModelForCausalLM, AutoModelForMaskedLM.
            device: where it computes.

        Raises:
            MissingDependency: transformers is not installed.
            RecipeError: the model cannot be loaded, or has not all weights of such a model.
        """
        try:
            import transformers
        except ImportError as error:
            raise MissingDependency.of("transformers", "text", "A local language model") from error
        place = str(Path(self.model).expanduser()) if self.model.startswith("~") else self.model
        given = {"revision": self.revision or "main", "local_files_only": self.offline or Path(place).is_dir()}
        wanted = "a folder, or OWNER/NAME of the hub, with config.json, .safetensors weights and a tokenizer"
        try:
            with quiet_transformers():
                tokenizer = transformers.AutoTokenizer.from_pretrained(place, **given)
                model, found = getattr(transformers, kind).from_pretrained(
                    place, **given, dtype=self._dtype(device), use_safetensors=True, output_loading_info=True
                )
        except Exception as error:  # whatever a library makes of a broken or foreign file
            if memory_refused(error):
                raise
            raise RecipeError(f"model: '{self.model}' cannot be loaded ({words_of(error)}): name {wanted}.") from error
        if found["missing_keys"]:  # the library would draw them at random
            lacks = min(found["missing_keys"])
            raise RecipeError(f"model: '{self.model}' lacks the weights {lacks} of an {kind}: name one that has them.")
        return model.to(device).eval(), tokenizer

    def _dtype(self, device: torch.device) -> torch.dtype:
        import torch

        if self.precision != "auto":
            return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[self.precision]
        if device.type != "cuda":
            return torch.float32
        with torch.cuda.device(device):
            return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32


class Workers(Generic[Model]):
    """A model on one or several devices, each with a thread of its own; loaded at the first item.

    Args:
        load: the model on a device.
        given: names the devices, and the batch size.
    """

    def __init__(self, load: Callable[[torch.device], Model], given: LocalModel) -> None:
        self._load, self._given = load, given
        self._workers: list[_Worker[Model]] = []
        self._opening = threading.Lock()

    def run(self, sizes: Sequence[int], make: Callable[[Model, Sequence[int]], Sequence[Outcome]]) -> list[Outcome]:
        """The outcome of each item, in order; those of near sizes share a batch.

        Args:
            sizes: of the items, such as letters.
            make: the outcomes of the items at some places, by the model.

        Raises:
            RecipeError: the device or the weights are not there.
            APIError: a device has not enough memory for the model or for one text.
        """
        order, size = sorted(range(len(sizes)), key=sizes.__getitem__), self._given.batch_size
        batches = deque(order[start : start + size] for start in range(0, len(order), size))
        outcomes: dict[int, Outcome] = {}
        workers = self._open()[: len(batches)]
        futures = [worker.thread.submit(worker.drain, batches, make, outcomes) for worker in workers]
        wait(futures)
        for future in futures:
            future.result()
        return [outcomes[place] for place in range(len(sizes))]

    def _open(self) -> list[_Worker[Model]]:
        with self._opening:
            if not self._workers:
                self._workers = [_Worker(device, self._load) for device in _devices(self._given.device)]
                for worker in self._workers:
                    finalize(self, worker.thread.shutdown, wait=False)
            return self._workers


class LocalTexts(ABC, Generic[Model]):
    """What generators over such a model share: prompts, the parents at degree 0, batches on all devices.

    Args:
        given: names the model, the devices and the chunk.
        longest: bytes of the longest text.
        prompts: of new samples.
        load: the model on a device.
    """

    info = INFO

    def __init__(
        self, given: LocalModel, longest: int, prompts: TextPrompts, load: Callable[[torch.device], Model]
    ) -> None:
        self.info = replace(INFO, by_label=prompts.by_label)
        self._prompts, self._longest = prompts, longest
        self._workers = Workers(load, given)

    def check_labels(self, labels: Sequence[str]) -> None:
        """Raise RecipeError if a label has no prompt, or no value of an attribute."""
        self._prompts.check(labels)

    def draw_conditions(self, labels: tuple[str, ...], seeds: Seeds) -> Conditions:
        """The prompt of each new sample, and the attributes in it."""
        return self._prompts.draw(labels, seeds)

    def variation_api(self, request: VariationRequest) -> Answer:
        """A variation of each parent; at degree 0 the parents.

        Raises:
            RecipeError: the weights or the device are not there.
            APIError: the parents are no texts, or the device has not enough memory for one.
        """
        return Answer(request.samples, usage=Usage(0)) if request.degree == 0 else self._vary(request)

    @abstractmethod
    def _vary(self, request: VariationRequest) -> Answer:
        """Variations of a degree above 0."""

    def _made(
        self,
        request: RandomRequest | VariationRequest,
        texts: Sequence[str],
        make: Callable[[Model, list[str], Seeds], Sequence[Outcome]],
    ) -> Answer:
        """The answer that `make` gives for the items' texts, batch by batch, each item with its seed."""

        def of(model: Model, places: Sequence[int]) -> Sequence[Outcome]:
            return make(model, [texts[place] for place in places], request.seeds[list(places)])

        outcomes = self._workers.run([len(text) for text in texts], of)
        return answer_of(outcomes, self._longest, request.conditions)


class _Worker(Generic[Model]):
    """One device, its model and its thread."""

    def __init__(self, device: torch.device, load: Callable[[torch.device], Model]) -> None:
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"pe-{device}")
        self._device, self._load = device, load
        self._model: Model | None = None
        self._most: int | None = None

    def drain(
        self,
        batches: deque[list[int]],
        make: Callable[[Model, Sequence[int]], Sequence[Outcome]],
        outcomes: dict[int, Outcome],
    ) -> None:
        """Make batches until there are none; an error ends the others' work, too."""
        try:
            while batches:
                try:
                    places = batches.popleft()
                except IndexError:  # another was quicker
                    return
                if self._most is not None and len(places) > self._most:
                    batches.appendleft(places[self._most :])
                    places = places[: self._most]
                self._make(places, batches, make, outcomes)
        except BaseException:
            batches.clear()
            raise

    def _make(
        self,
        places: list[int],
        batches: deque[list[int]],
        make: Callable[[Model, Sequence[int]], Sequence[Outcome]],
        outcomes: dict[int, Outcome],
    ) -> None:
        import torch

        try:
            if self._model is None:
                with _loading:
                    self._model = self._load(self._device)
            with torch.inference_mode():
                outcomes |= dict(zip(places, make(self._model, places), strict=True))
        except Exception as error:
            if not memory_refused(error):
                raise
            if self._model is None or len(places) == 1:
                what = "the model" if self._model is None else "a single text"
                raise APIError(
                    f"{self._device} refused {what}, most likely for want of memory ({words_of(error)}): take a "
                    "smaller model or precision: bf16, shorter texts, or another device."
                ) from error
            clear_frames(error.__traceback__)  # which hold on to the tensors
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
            self._most = len(places) // 2
            batches.appendleft(places)


def pick(scores: torch.Tensor, numbers: npt.NDArray[np.float64]) -> torch.Tensor:
    """A token for each row of scores, drawn by the row's number in [0, 1): int64 (n, 1)."""
    import torch

    wide = torch.float32 if scores.device.type == "mps" else torch.float64  # mps has no larger one
    shares = scores.to(wide).softmax(-1).cumsum(-1)
    drawn = torch.as_tensor(numbers, dtype=wide, device=scores.device)[:, None] * shares[:, -1:]
    return torch.searchsorted(shares, drawn, right=True).clamp(max=scores.shape[-1] - 1)


def _devices(named: str | list[str]) -> list[torch.device]:
    """The devices of these names; auto: all GPUs, else mps, else the CPU."""
    require_torch("text", "A local language model")
    if named == "auto":
        return [find_device(f"cuda:{i}") for i in range(count_cards())] or [find_device("auto")]
    return [find_device(name) for name in ([named] if isinstance(named, str) else named)]


# A local language model that writes: RANDOM_API continues a public prompt, VARIATION_API one with a synthetic text.
#
# All randomness of a text is from its item's seed, which has a number for each token. The order of the items and what
# else is in a batch decide nothing, but for the last bits of a batch's arithmetic (`batch_size: 1` is free of them).


class CausalSettings(LocalModel, Written):
    """What a recipe says of such a model.

    Attributes:
        temperature: of sampling; None: as the model's generation_config.json has it, else 1.
        top_p: sample among the most likely tokens that have this share together; None: likewise.
        top_k: sample among so many of the most likely tokens, 0: among all; None: likewise.
        template: arguments of the model's chat template, such as enable_thinking. A model without one continues the
            system prompt and the prompt as plain text.
    """

    top_k: Annotated[int, Field(ge=0)] | None = None
    template: dict[str, Any] | None = None


class CausalLM(LocalTexts["_Writer"]):
    """RANDOM_API and VARIATION_API by a local causal language model of transformers.

    Samples carry their prompt as the condition `prompt`, and the attributes that were drawn for it. Degree 0 is the
    parent itself.

    Args:
        settings: see `CausalSettings`.

    Raises:
        RecipeError: a setting is wrong.
    """

    Settings = CausalSettings
    starter = f"""\
  model: my-model\t# a folder, or a repository of the Hugging Face hub
{WRITTEN}  batch_size: 32
"""

    def __init__(self, **settings: Any) -> None:
        self._given = given = read_settings(CausalSettings, settings, "CausalLM")
        self._asking, self._answers = Asking.of(given), TextAnswers(given)
        answers = self._answers
        super().__init__(given, given.longest, self._asking.prompts, lambda device: _Writer(given, device, answers))

    @property
    def capabilities(self) -> Capabilities:
        """Any items in a request; what a model makes of the words between blanks is its own."""
        return Capabilities(self._given.chunk, REQUESTS, "nothing", "wording")

    def describe_degree(self, degree: float, iteration: int = 1) -> str:
        """Describe what this degree means for this generator."""
        return self._asking.describe(degree)

    def describe_answers(self) -> str:
        """See `TellsOfAnswers`."""
        return self._answers.describe()

    def random_api(self, request: RandomRequest) -> Answer:
        """New texts of the items' prompts.

        Raises:
            RecipeError: the weights or the device are not there.
            APIError: the device has not enough memory for one text.
        """
        return self._made(request, self._asking.for_new(request), _Writer.write)

    def _vary(self, request: VariationRequest) -> Answer:
        return self._made(request, self._asking.for_variations(request), _Writer.write)


class _Writer:
    """The model on one device."""

    def __init__(self, given: CausalSettings, device: torch.device, answers: TextAnswers) -> None:
        self._given, self._device, self._answers = given, device, answers
        self._model, self._tokenizer = model, tokenizer = given.load("AutoModelForCausalLM", device)
        own = model.generation_config
        ends = own.eos_token_id if own.eos_token_id is not None else tokenizer.eos_token_id
        self._ends = ends if isinstance(ends, list) else [] if ends is None else [ends]
        if tokenizer.pad_token_id is None and not self._ends:
            raise RecipeError(
                f"model: '{given.model}' has neither a token that ends a text nor one that pads: state one of them in "
                "its tokenizer_config.json."
            )
        self._pad = self._ends[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        self._longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self._warpers = _warpers(given, own)
        from transformers import GenerationConfig

        model.generation_config = GenerationConfig()  # nothing but what is said below counts

    def write(self, prompts: Sequence[str], seeds: Seeds) -> list[Outcome]:
        """A text for each prompt, each token drawn by its seed."""
        given = self._given
        rows = [self._tokens(prompt) for prompt in prompts]
        most = None if self._longest is None else self._longest - given.max_tokens
        fits = [i for i, row in enumerate(rows) if most is None or len(row) <= most]
        outcomes: dict[int, Outcome] = {
            i: Failed(
                f"the prompt has {len(row)} tokens, and with max_tokens: {given.max_tokens} the model takes {most}: "
                "take fewer max_tokens, shorter texts (longest), or another model",
                retryable=False,
            )
            for i, row in enumerate(rows)
        }
        if fits:
            written = self._generate([rows[i] for i in fits], seeds[fits])
            outcomes |= dict(zip(fits, (self._text(row) for row in written), strict=True))
        return [outcomes[i] for i in range(len(rows))]

    def _tokens(self, prompt: str) -> list[int]:
        """The prompt as the model takes it: by its chat template, if it has one."""
        given, tokenizer = self._given, self._tokenizer
        system = [] if given.system is None else [given.system]
        templated = tokenizer.chat_template is not None
        text = "\n\n".join([*system, prompt]) + "\n\n"
        messages = [{"role": "system", "content": text} for text in system] + [{"role": "user", "content": prompt}]
        if templated:
            more = given.template or {}
            text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **more)
        found: list[int] = tokenizer(text, add_special_tokens=not templated, verbose=False)["input_ids"]
        return found

    def _generate(self, rows: list[list[int]], seeds: Seeds) -> list[list[int]]:
        """The tokens that follow each row."""
        import torch
        from transformers import GenerationConfig, LogitsProcessorList

        width = max(map(len, rows))
        ids = torch.full((len(rows), width), self._pad)
        mask = torch.zeros_like(ids)
        for i, row in enumerate(rows):
            ids[i, width - len(row) :] = torch.tensor(row)
            mask[i, width - len(row) :] = 1
        config = GenerationConfig(
            max_new_tokens=self._given.max_tokens,
            do_sample=False,  # the last processor draws
            eos_token_id=self._ends or None,
            pad_token_id=self._pad,
        )
        found = self._model.generate(
            ids.to(self._device),
            attention_mask=mask.to(self._device),
            generation_config=config,
            logits_processor=LogitsProcessorList([*self._warpers, _Seeded(seeds, width)]),
        )
        new: list[list[int]] = found[:, width:].tolist()
        return new

    def _text(self, tokens: list[int]) -> Outcome:
        places = [place for place, token in enumerate(tokens) if token in self._ends]
        text = self._tokenizer.decode(tokens[: places[0]] if places else tokens, skip_special_tokens=True)
        return self._answers.take(text, ended=bool(places))


class _Seeded:
    """Leaves of each row's scores one token, drawn from them by a number of the row's seed and the step."""

    def __init__(self, seeds: Seeds, start: int) -> None:
        self._seeds, self._start = seeds, start

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        import torch

        chosen = pick(scores, uniforms(self._seeds, f"token/{input_ids.shape[1] - self._start}"))
        return torch.full_like(scores, -torch.inf).scatter(1, chosen, 0.0)


def _warpers(given: CausalSettings, own: Any) -> list[Any]:
    """What shapes the distribution that tokens are drawn from."""
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    temperature = given.temperature or own.temperature or 1.0
    top_k = given.top_k if given.top_k is not None else own.top_k or 0
    top_p = given.top_p or own.top_p or 1.0
    found = [TemperatureLogitsWarper(float(temperature))] if temperature != 1 else []
    found += [TopKLogitsWarper(top_k)] if top_k else []
    return found + ([TopPLogitsWarper(float(top_p))] if top_p < 1 else [])


# A local masked language model: a share of a text's tokens is masked and filled in anew.
#
# RANDOM_API begins with a public text. All randomness of a text is from its item's seed, as in `causal_lm`.


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
