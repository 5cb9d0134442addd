"""The methods of each modality: its own, or what any one is compared by."""

from __future__ import annotations

from pe.data.samples import Samples
from pe.evaluation.image_methods import IMAGES
from pe.evaluation.methods import Methods
from pe.evaluation.text_methods import TEXTS

_OWN = {"images": IMAGES, "texts": TEXTS}


def methods_of(samples: Samples | type[Samples]) -> Methods:
    """How samples of this modality are evaluated."""
    return _OWN.get(samples.kind, Methods())
