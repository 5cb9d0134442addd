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

from adapters.text_prompts import Outcome, TextPrompts, answer_of
from pe.data.conditions import Conditions
from pe.data.quiet import quiet_transformers
from pe.errors import APIError, MissingDependency, RecipeError
from pe.plugins.devices import count_cards, find_device, memory_refused, require_torch, words_of
from pe.plugins.protocols import Answer, PluginInfo, RandomRequest, Seeds, Usage, VariationRequest
from pe.plugins.validation import Count, Settings

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
