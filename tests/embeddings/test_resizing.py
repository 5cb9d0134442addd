"""Images are brought to a network's size as its own pipeline did it."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch_fidelity.interpolate_compat_tensorflow import interpolate_bilinear_2d_like_tensorflow1x

from embeddings.torch_model import antialias, tensorflow_bilinear
from tests.embeddings.networks import images

SIZES = [(33, 50, 17, 20), (12, 12, 31, 40), (64, 64, 64, 64), (200, 300, 7, 224)]


def tensor(pixels):
    return torch.from_numpy(np.moveaxis(pixels, 3, 1).astype(np.float32))


@pytest.mark.parametrize(
    ("kind", "filter_"), [("bicubic", Image.BICUBIC), ("bilinear", Image.BILINEAR)]
)
@pytest.mark.parametrize(("height", "width", "new_height", "new_width"), SIZES)
def test_antialiased_is_what_pillow_does_to_the_grey_level(
    kind, filter_, height, width, new_height, new_width
):
    pixels = (
        images(2, height=height, width=width).pixels // 4 + 96
    )  # so that nothing overshoots and is cut
    ours = antialias(tensor(pixels), new_height, new_width, kind).numpy()
    theirs = [
        np.asarray(Image.fromarray(image).resize((new_width, new_height), filter_))
        for image in pixels
    ]
    np.testing.assert_allclose(
        ours, np.moveaxis(np.stack(theirs), 3, 1), atol=1.3
    )  # Pillow rounds twice


@pytest.mark.parametrize(("height", "width", "new_height", "new_width"), SIZES)
def test_tensorflow_bilinear_is_that_of_torch_fidelity(height, width, new_height, new_width):
    given = tensor(images(2, height=height, width=width).pixels)
    theirs = interpolate_bilinear_2d_like_tensorflow1x(
        given, size=(new_height, new_width), align_corners=False
    )
    np.testing.assert_allclose(
        tensorflow_bilinear(given, new_height, new_width).numpy(), theirs.numpy(), atol=1e-3
    )
