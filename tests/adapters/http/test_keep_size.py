"""Samples that are kept as they were drawn: parents go back out at that size, and samples have the other."""

import numpy as np
import pytest

from adapters.openai_images import OpenAIImages
from adapters.sdapi import SDAPI
from pe.data.decoding import convert_pixels
from pe.data.population import Members
from pe.data.samples import DRAWN
from pe.dispatch.dispatcher import Dispatcher
from pe.errors import RecipeError
from pe.store.writer import RunWriter
from tests.endpoints.asking import openai
from tests.endpoints.faults import Script
from tests.endpoints.hosted import pixels_of
from tests.endpoints.openai_server import OpenAIServer

SMALL, LARGE = 4, 72
NOWHERE = "http://127.0.0.1:1"


def settings(url, **others):
    kept = {"image_size": SMALL, "channels": 1, "size": f"{LARGE}x{LARGE}", "keep_size": True, "n": 2}
    return openai(url, **kept | others)


@pytest.mark.parametrize(("changed", "side"), [({}, LARGE), ({"size": None, "keep_size": 36}, 36)])
def test_a_parent_goes_out_at_the_size_at_which_it_is_kept_and_the_sample_has_the_other(changed, side, serve, tmp_path):
    server = OpenAIServer(Script(), side=LARGE)
    api, labels = OpenAIImages(**settings(serve(server), **changed)), np.zeros(6, np.int32)
    assert api.info.kept == (side, side)
    for t in range(2):  # the second time a run that goes on
        with (
            RunWriter.reopen(tmp_path / "run") if t else RunWriter.create(tmp_path / "run", {"recipe.yaml": b""}) as run
        ):
            dispatcher = Dispatcher(api, run, ("cat",), seed=3)
            made = dispatcher.random(labels)
            children = dispatcher.variations(1, made, Members.offspring(np.arange(6)), 0.5)
    sent = [pixels_of(asked["parents"][0]) for asked in server.script.requests if asked["parents"]]
    assert {one.tobytes() for one in sent} == {one.tobytes() for one in made.conditions[DRAWN]}
    assert {one.shape for one in sent} == {(side, side, 3)}
    form = {"size": (SMALL, SMALL), "resize": "crop", "channels": 1, "name": "it"}
    if side == LARGE:
        for sample, kept in zip(children.samples.array, children.conditions[DRAWN], strict=True):
            np.testing.assert_array_equal(sample, convert_pixels(kept, **form))
    assert children.samples.array.shape == (6, SMALL, SMALL, 1)


def test_it_wants_one_size_that_is_known():
    for size in (None, "auto"):
        with pytest.raises(RecipeError, match="keep_size: true needs one known size"):
            OpenAIImages(**settings(NOWHERE, size=size))
    sd = {"base_url": NOWHERE, "prompts": "a", "image_size": 8, "keep_size": True}
    assert SDAPI(**sd).info.kept is None  # it draws at image_size
    assert SDAPI(**sd, size=16).info.kept == (16, 16)
