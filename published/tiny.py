"""Models of random weights for `--tiny`, as the tests build them: `python -m published.tiny KIND
PLACE`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch


def _improved(place: Path) -> str:
    from tests.adapters.diffusion.test_improved import SMALL, weights

    torch.save(weights(SMALL), place.with_suffix(".pt"))
    return str(place.with_suffix(".pt"))


def _stable_diffusion(place: Path) -> str:
    from tests.adapters.diffusion import tiny

    tiny.stable_diffusion().save_pretrained(place)
    return str(place)


def _causal(place: Path) -> str:
    from tests.adapters.language import tiny

    return tiny.causal(place)


def _encoder(place: Path) -> str:
    from tests.embeddings.sentences import encoder

    return str(encoder(place))


KINDS = {
    "improved": _improved,
    "stable_diffusion": _stable_diffusion,
    "causal": _causal,
    "encoder": _encoder,
}


if __name__ == "__main__":
    print(KINDS[sys.argv[1]](Path(sys.argv[2])))
