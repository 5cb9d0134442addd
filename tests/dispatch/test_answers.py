"""What an object of the user's own may answer: anything else ends in one sentence that says what to return."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from pe.data.images import Images
from pe.dispatch.work import check_answer
from pe.errors import ContractError
from pe.plugins.protocols import Answer

PICTURES, PIXELS = [Image.new("RGB", (4, 4))] * 2, np.zeros((2, 4, 4, 3), np.uint8)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda: Answer(PICTURES), r"a list of samples: return pe.Answer\(pe.Images\(pixels\)\)"),
        (lambda: Answer(tuple(PICTURES)), "a tuple of samples"),
        (lambda: Answer(PIXELS), "an? ndarray of samples"),
        (lambda: Answer(iter(PICTURES)), "a list_iterator of samples"),
        (lambda: PICTURES, "returned list: return pe.Answer"),
        (lambda: Answer(Images(PICTURES)), r"not a list: .* np.stack\(\[np.asarray\(picture.convert\('RGB'\)\)"),
        (lambda: Answer(Images([*PIXELS])), "not a list"),
        (lambda: Answer(Images(PIXELS.astype(object))), "not an array of objects"),
        (lambda: Answer(Images(PIXELS.astype(np.float32))), "not float32: scale to 0…255"),
    ],
)
def test_what_is_no_batch_of_samples_is_refused_with_what_to_return(answer: Callable[[], object], said: str) -> None:
    with pytest.raises(ContractError, match=said):
        check_answer("Mine.random_api", answer(), 2)
