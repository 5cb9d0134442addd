"""What a run keeps of, and tells about, texts that come with a chat template's markup."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import pe
from pe.engine.execution import Surroundings, run_recipe
from pe.plugins.protocols import RandomRequest, VariationRequest
from pe.progress import Progress
from pe.recipe.schema import Recipe
from tests.adapters.test_chat_runs import api
from tests.endpoints.chat_server import ChatServer
from tests.endpoints.faults import Script
from tests.endpoints.serving import serving
from tests.lines import content, installed

__all__ = ["installed"]  # a fixture

pytestmark = pytest.mark.usefixtures("installed")


class Told(Progress):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, message: str) -> None:
        self.warnings.append(message)


class Own:
    """A generator of the user's own: each second text ends in a token of its template, unless it is taken off."""

    info = pe.PluginInfo(modality="texts", hosts=())
    capabilities = pe.Capabilities(100, 1, "nothing", "wording")

    def __init__(self, clean: Callable[[str], str]) -> None:
        self._clean = clean

    def random_api(self, request: RandomRequest) -> pe.Answer:
        texts = [f"film number {seed}" + "<|im_end|>" * (seed % 2) for seed in request.seeds.tolist()]
        return pe.Answer(pe.Texts.of(map(self._clean, texts), 200))

    def variation_api(self, request: VariationRequest) -> pe.Answer:
        return self.random_api(request)


def run(tmp_path: Path, given: dict[str, object], own: object = None) -> tuple[list[str], list[str]]:
    """The texts of a run, and its warnings of markup."""
    surroundings = Surroundings(progress=Told(), api=own)
    made = run_recipe(Recipe.parse(content(tmp_path, given, attempts=9), "the test"), tmp_path / "run", surroundings)
    told = [each for each in surroundings.progress.warnings if "|>" in each or "think" in each]
    return made.synthetic.samples.strings, told


def test_a_run_keeps_texts_without_markup_and_tells_how_many_came_with_it(tmp_path: Path) -> None:
    script = Script(share=0.5, faults=("thoughts", "only thoughts"))
    with serving(ChatServer(script)) as url:
        texts, told = run(tmp_path, api(url))
    assert not [text for text in texts if "think" in text or "<|" in text or "hm" in text.split()]
    (line,) = told
    assert f"{script.seen['thoughts']} × …</think> taken off" in line
    assert f"{script.seen['only thoughts']} × no text" in line


@pytest.mark.parametrize("clean", [str, lambda text: pe.unwrap(text).text])
def test_texts_of_an_object_of_one_s_own_are_kept_as_they_are_and_told_of(
    tmp_path: Path, clean: Callable[[str], str]
) -> None:
    texts, told = run(tmp_path, {"kind": "object:tests.engine.test_answers.Own"}, Own(clean))
    marked = sum("<|im_end|>" in text for text in texts)
    assert bool(marked) == (clean is str)
    assert [each.split(" hold")[0] for each in told] == ([f"{marked} of {len(texts)} texts"] if marked else [])
