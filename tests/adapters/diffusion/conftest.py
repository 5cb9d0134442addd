"""For all tests of local diffusion models."""

import pytest
import torch

from adapters.diffusion.text_to_image import TextToImage
from tests.adapters.diffusion.kinds import COMMON, KINDS, saved
from tests.fake_cards import fake_cards


@pytest.fixture(scope="session")
def api_of(tmp_path_factory):
    """Make the adapter over a kind of pipeline, which is saved once, with changed settings."""
    made = {}

    def api(name, **changes):
        kind = KINDS[name]
        if name not in made:
            torch.manual_seed(0)
            folder, pipeline = tmp_path_factory.mktemp("kind"), kind.build()
            made[name] = {"model": saved(pipeline, folder / "model")} | kind.beside(
                folder, pipeline
            )
        return TextToImage(**(COMMON | kind.settings | made[name] | changes))

    return api


@pytest.fixture
def cards():
    with fake_cards() as found:
        yield found
