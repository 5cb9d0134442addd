"""OpenAI's own client speaks to the server."""

from __future__ import annotations

import base64
import re
import shlex
import subprocess
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from adapters.server.formats import BatchRequest
from tests.adapters.server.asking import apart, batch, pixels, png
from tests.adapters.server.serving import Server


@pytest.fixture
def sdk(small: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{small.url}/v1", api_key="none", max_retries=0, timeout=60)


def drawn(sdk: openai.OpenAI, n: int = 1, **extra: Any) -> list[np.ndarray]:
    answer = sdk.images.generate(prompt="7", n=n, response_format="b64_json", extra_body={"seed": 5} | extra)
    return [pixels(entry) for entry in answer.data or []]


def test_new_images_are_those_of_their_seeds(sdk: openai.OpenAI, small: Server) -> None:
    two = drawn(sdk, 2)
    assert [image.shape for image in two] == [(28, 28), (28, 28)]
    classes = np.full(2, 7)
    same = batch(small, BatchRequest(np.array([5, 6], dtype=np.uint64), classes=classes)).images
    assert apart(np.stack(two), same[..., 0]) <= 1


def test_the_python_and_the_curl_of_the_page_run(small: Server, tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "server.md").read_text(encoding="utf-8")
    page = page.replace("http://127.0.0.1:8000", small.url)
    names: dict[str, Any] = {}
    images, batches = re.findall(r"```python\n(.*?)```", page, re.S)
    exec(compile(images, "server.md", "exec"), names)
    first, _ = names["answer"].data
    (tmp_path / "seven.png").write_bytes(base64.b64decode(first.b64_json))
    (curl,) = re.findall(r"^ {4}(curl .*)$", page, re.M)
    told = subprocess.run(shlex.split(curl), cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert '"b64_json"' in told
    exec(compile(batches, "server.md", "exec"), names)
    assert names["images"].shape == (100, 28, 28, 1)


def test_without_a_seed_every_image_is_another(sdk: openai.OpenAI) -> None:
    one, other = (sdk.images.generate(prompt="7").data for _ in range(2))
    assert one is not None
    assert other is not None
    assert apart(pixels(one[0]), pixels(other[0])) > 1


def test_a_class_is_named_by_prompt_by_name_or_by_number(sdk: openai.OpenAI) -> None:
    by_prompt = drawn(sdk)[0]
    for label in (7, "7"):
        answer = sdk.images.generate(prompt="", extra_body={"seed": 5, "class_label": label})
        assert answer.data is not None
        assert apart(pixels(answer.data[0]), by_prompt) <= 1
    assert apart(drawn(sdk, class_label="A")[0], by_prompt) > 1


def test_steps_are_heeded(sdk: openai.OpenAI) -> None:
    assert apart(drawn(sdk, num_inference_steps=8)[0], drawn(sdk)[0]) > 1


def test_an_edit_is_a_variation_of_its_strength(sdk: openai.OpenAI) -> None:
    parent = drawn(sdk)[0]

    def edited(strength: float) -> np.ndarray:
        answer = sdk.images.edit(
            image=("a.png", png(parent), "image/png"), prompt="7", extra_body={"seed": 9, "strength": strength}
        )
        assert answer.data is not None
        return pixels(answer.data[0])

    assert apart(edited(0), parent) == 0
    moved = [np.abs(edited(strength).astype(int) - parent).mean() for strength in (0.25, 1)]
    assert 0 < moved[0] < moved[1]


def test_an_image_of_another_size_and_colour_becomes_the_model_s(sdk: openai.OpenAI) -> None:
    image = np.zeros((61, 90, 3), dtype=np.uint8)
    answer = sdk.images.edit(image=("a.png", png(image), "image/png"), prompt="7", extra_body={"strength": 0})
    assert answer.data is not None
    assert pixels(answer.data[0]).shape == (28, 28)


def test_variations_are_answered_though_the_sdk_has_deprecated_them(sdk: openai.OpenAI) -> None:
    parent = drawn(sdk)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        answer = sdk.images.create_variation(image=("a.png", png(parent), "image/png"), n=3)
    assert len(answer.data or []) == 3


def test_a_degree_that_leaves_no_step_is_the_request_s_fault(sdk: openai.OpenAI) -> None:
    image = ("a.png", png(drawn(sdk)[0]), "image/png")
    with pytest.raises(openai.BadRequestError, match="leaves no denoising step"):
        sdk.images.edit(image=image, prompt="7", extra_body={"strength": 0.01})


def test_the_models_are_listed(sdk: openai.OpenAI) -> None:
    (model,) = sdk.models.list().data
    assert model.id == sdk.models.retrieve("small").id == "small"
    assert model.model_extra is not None
    assert model.model_extra["pe"]["shape"] == [28, 28, 1]
    with pytest.raises(openai.NotFoundError, match="'small'"):
        sdk.models.retrieve("dall-e-3")


def test_errors_are_the_sdk_s_own(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as lost:
        sdk.images.generate(prompt="7", model="dall-e-3")
    assert lost.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        sdk.images.generate(prompt="7", n=17)
    assert (bad.value.param, bad.value.type) == ("n", "invalid_request_error")
