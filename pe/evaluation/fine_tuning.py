"""Transformers that are fine-tuned as classifiers of texts. Imported on use only."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from pe.data.quiet import quiet_transformers
from pe.errors import RecipeError
from pe.evaluation.labelled import Labelled
from pe.evaluation.shallow import Logits, Predict
from pe.evaluation.words import strings_of
from pe.plugins.devices import find_cards, find_device, words_of


@dataclass(frozen=True)
class FineTuning:
    """How a transformer is fine-tuned: as BERT was (Devlin et al. 2019), never tuned on private data.

    Attributes:
        epochs: passes over the training part; the best by validation is kept.
        batch: texts per step.
        rate: highest learning rate of AdamW; it rises over the first tenth and then falls to 0, on straight lines.
        decay: of the weights.
        longest: tokens of a text that count, at the most.
        device: of torch; None: the GPU if there is one.
    """

    epochs: int = 20
    batch: int = 32
    rate: float = 5e-5
    decay: float = 0.01
    longest: int = 256
    device: str | None = None


def fit_transformer(
    place: str, train: Labelled, validation: Labelled, classes: int, seed: int, settings: FineTuning
) -> Predict:
    """Fine-tune the encoder in the folder `place` and keep the epoch that labels the validation part best.

    All randomness comes from `seed`, and torch's own generators are left as they were.

    Raises:
        RecipeError: the folder holds no encoder of transformers with its weights, or the device cannot be used.
    """
    device = find_device(settings.device or ("cuda" if find_cards("--device cpu") else "cpu"))
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        model = _Classifier(place, classes, settings, device)
        texts, labels = strings_of(train), torch.from_numpy(train.labels.astype(np.int64)).to(device)
        rng, batches = np.random.default_rng(seed), ceil(len(texts) / settings.batch)
        optimizer = torch.optim.AdamW(model.network.parameters(), settings.rate, weight_decay=settings.decay)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _schedule(settings.epochs * batches))
        best, chosen = -1.0, model.network.state_dict()
        for _ in range(settings.epochs):
            model.network.train()
            for rows in np.array_split(rng.permutation(len(texts)), batches):
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model.logits([texts[i] for i in rows]), labels[rows])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
            score = float(np.mean(model.predict(validation).argmax(axis=1) == validation.labels))
            if score > best:
                best, chosen = score, copy.deepcopy(model.network.state_dict())
        model.network.load_state_dict(chosen)
    return model.predict


class _Classifier:
    """An encoder with a head for so many classes, on a device."""

    def __init__(self, place: str, classes: int, settings: FineTuning, device: torch.device) -> None:
        model, self._tokenizer = _load(place, classes)
        self.network, self._batch, self._device = model.to(device), settings.batch, device
        self._longest = min(settings.longest, self._tokenizer.model_max_length)

    def logits(self, texts: list[str]) -> torch.Tensor:
        """float32 (n, classes)."""
        settings = {"padding": True, "truncation": True, "max_length": self._longest, "return_tensors": "pt"}
        found: torch.Tensor = self.network(**self._tokenizer(texts, **settings).to(self._device)).logits
        return found

    def predict(self, given: Labelled) -> Logits:
        """Without dropout, batch by batch."""
        self.network.eval()
        texts = strings_of(given)
        with torch.inference_mode():
            parts = [self.logits(texts[i : i + self._batch]) for i in range(0, len(texts), self._batch)]
        return torch.cat(parts).cpu().double().numpy()


def _schedule(steps: int) -> Callable[[int], float]:
    """Step → share of the highest rate."""
    warm = max(1, steps // 10)
    return lambda step: min((step + 1) / warm, (steps - step) / max(1, steps - warm))


def _load(place: str, classes: int) -> tuple[Any, Any]:
    """The encoder with a new head for so many classes, and its tokenizer; nothing is fetched, no code there is run."""
    folder = Path(place).expanduser()
    if not folder.is_dir():
        raise RecipeError(f"The classifier 'transformer:{place}': there is no such folder; name one on this machine.")
    given = {"local_files_only": True}
    try:
        with quiet_transformers():
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **given)
            model, found = transformers.AutoModelForSequenceClassification.from_pretrained(
                folder,
                num_labels=classes,
                use_safetensors=True,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                dtype=torch.float32,
                **given,
            )
    except Exception as error:  # whatever a library makes of a broken or foreign file
        raise RecipeError(
            f"The classifier 'transformer:{place}' cannot be loaded ({words_of(error)}): name a folder with "
            "config.json, .safetensors weights and a tokenizer."
        ) from error
    missing = [name for name in found["missing_keys"] if name.startswith(f"{model.base_model_prefix}.")]
    lacks = [name for name in missing if "pooler" not in name]  # which is trained with the head
    if lacks:
        raise RecipeError(f"The classifier 'transformer:{place}' lacks the weights {min(lacks)}: name a whole encoder.")
    return model, tokenizer
