"""What a server takes and says: its own description, OpenAI's client, keys, limits, logs, and its
page.
"""

import base64
import gc
import http.client
import logging
import re
import shlex
import socket
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import jsonschema
import numpy as np
import openai
import pytest
import torch

from adapters.diffusion.text_to_image import TextToImage
from adapters.server.checks import RequestLimits
from adapters.server.formats import BatchRequest
from adapters.server_client import ServerClient
from pe.errors import RecipeError
from pe.plugins.protocols import GenerationAPI, RandomRequest, VariationRequest
from tests.adapters.diffusion import tiny
from tests.adapters.server import asking
from tests.adapters.server.asking import (
    Pixels,
    apart,
    ask,
    batch,
    bearer,
    generate,
    get,
    near,
    pixels,
    png,
)
from tests.adapters.server.test_malformed import FORM, GOOD, form

PAGE = (Path(__file__).parents[3] / "docs" / "server.md").read_text(encoding="utf-8")
ROUTES = {
    ("post", "/v1/images/generations"): "application/json",
    ("post", "/v1/images/edits"): "multipart/form-data",
    ("post", "/v1/images/variations"): "multipart/form-data",
    ("post", "/v1/batch/images"): "application/x-safetensors",
    **dict.fromkeys([("get", "/v1/models"), ("get", "/v1/models/{model}"), ("get", "/metrics")]),
    **dict.fromkeys([("get", "/healthz"), ("get", "/readyz")]),
}
"""Method and path of each route, and the content type of its body."""


def connections() -> dict[int, object]:
    """Every socket and client of httpx2 that is open, by its id."""
    found = [
        one for one in gc.get_objects() if issubclass(type(one), (socket.socket, httpx2.Client))
    ]
    return {
        id(one): one
        for one in found
        if not (one.is_closed if hasattr(one, "is_closed") else one.fileno() == -1)
    }


@pytest.fixture(autouse=True)
def _connections_are_closed() -> Iterator[None]:
    """Find connections that a test leaves to the collector, which may warn of them in whichever
    test it runs.
    """
    yield
    opened = set(connections())
    gc.set_debug(gc.DEBUG_SAVEALL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    gc.set_debug(0)
    left = [one for one in gc.garbage if id(one) in opened]
    gc.garbage.clear()
    assert left == [], "only garbage holds them: close what has made them"


def test_the_description_is_of_the_routes_there_are(small: str) -> None:
    _, page = get(small, "/openapi.json")
    assert {
        (method, path) for path, each in page["paths"].items() for method in each
    } == ROUTES.keys()
    for (method, path), kind in ROUTES.items():
        operation = page["paths"][path][method]
        assert [*operation.get("requestBody", {}).get("content", {})] == ([kind] if kind else [])
        assert ("security" in operation) == (path not in ("/healthz", "/readyz"))
        assert set(operation["responses"]) == {"200", "default"}
    assert page["info"]["x-limits"] == RequestLimits(steps=50).model_dump()
    components = {"components": page["components"]}  # to which the schemas refer
    answered = page["paths"][asking.GENERATIONS]["post"]["responses"]["200"]["content"][
        asking.JSON
    ]["schema"]
    jsonschema.validate(generate(small, {"prompt": "7"})[1], components | answered)


def test_without_a_key_no_page_of_another_site_is_answered(small: str) -> None:
    own = {}, {"Host": "localhost:8000", "Origin": "http://localhost:3000"}, {"Host": "[::1]:8000"}
    hosts = (
        "rebound.example:8000",
        "127.0.0.1.example",
        "127.0.0.1@rebound.example",
        "",
        "[broken",
    )
    origins = ("https://other.example", "null", "http://[broken")
    others = *({"Host": host} for host in hosts), *({"Origin": origin} for origin in origins)
    body = form(GOOD, ("image", png(np.zeros((28, 28), np.uint8))))
    for headers in (*own, *others):
        for method, path, sent in (("GET", "/v1/models", None), ("POST", asking.EDITS, body)):
            connection = http.client.HTTPConnection(urlsplit(small).netloc, timeout=60)
            connection.request(
                method, path, sent, ({"Content-Type": FORM} if sent else {}) | headers
            )
            assert connection.getresponse().status == (200 if headers in own else 401), (
                path,
                headers,
            )
            connection.close()


def test_the_python_and_the_curl_of_the_page_run(small: str, tmp_path: Path) -> None:
    page = PAGE.replace("http://127.0.0.1:8000", small).replace("100", "10")  # images
    names: dict[str, Any] = {}
    images, batches = re.findall(r"```python\n(.*?)```", page, re.S)
    exec(compile(images, "server.md", "exec"), names)
    names["client"].close()
    first, _ = names["answer"].data
    (tmp_path / "seven.png").write_bytes(base64.b64decode(first.b64_json))
    (curl,) = re.findall(r"^ {4}(curl .*)$", page, re.M)
    told = subprocess.run(
        shlex.split(curl), cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert '"b64_json"' in told
    exec(compile(batches, "server.md", "exec"), names)
    assert names["images"].shape == (10, 28, 28, 1)


def sdk(url: str, key: str = "none") -> openai.OpenAI:
    """OpenAI's client, to be closed: if only garbage holds it, its connection may be found open
    first, and warn.
    """
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=60)


def drawn(url: str, n: int = 1, prompt: str = "7", **extra: Any) -> Pixels:
    with sdk(url) as client:
        return pixels(client.images.generate(prompt=prompt, n=n, extra_body={"seed": 5} | extra))


def edited(url: str, image: Pixels, strength: float) -> Pixels:
    extra = {"seed": 9, "strength": strength}
    with sdk(url) as client:
        return pixels(
            client.images.edit(
                image=("a.png", png(image), "image/png"), prompt="7", extra_body=extra
            )
        )


def test_new_images_are_those_of_their_seeds_or_each_another(small: str) -> None:
    two = drawn(small, 2)
    same = batch(
        small, BatchRequest(np.array([5, 6], dtype=np.uint64), classes=np.full(2, 7))
    ).images
    assert apart(two, same[..., 0]) <= 1
    assert apart(*(drawn(small, seed=None) for _ in range(2))) > 1
    assert apart(drawn(small, num_inference_steps=8), two[:1]) > 1
    for label in (7, "7"):
        assert apart(drawn(small, prompt="", class_label=label), two[:1]) <= 1
    assert apart(drawn(small, class_label="A"), two[:1]) > 1


def test_an_edit_is_a_variation_of_its_strength(small: str) -> None:
    parent = drawn(small)
    assert apart(edited(small, parent[0], 0), parent) == 0
    moved = [
        np.abs(edited(small, parent[0], strength).astype(int) - parent).mean()
        for strength in (0.25, 1)
    ]
    assert 0 < moved[0] < moved[1]
    with pytest.raises(openai.BadRequestError, match="leaves no denoising step"):
        edited(small, parent[0], 0.01)
    assert edited(small, np.zeros((61, 90, 3), dtype=np.uint8), 0).shape == (
        1,
        28,
        28,
    )  # of another size and colour
    assert (
        ask(
            small + asking.VARIATIONS, form({"n": 3}, ("image", png(parent[0]))), content_type=FORM
        )[0]
        == 200
    )


def test_models_and_errors_are_those_of_openai_s_client(small: str) -> None:
    with sdk(small) as client:
        (model,) = client.models.list().data
        assert model.id == client.models.retrieve("small").id == "small"
    own = model.model_extra["pe"]
    assert (own["class_count"], own["classes"][:2], own["shape"]) == (62, ["0", "1"], [28, 28, 1])
    assert own["limits"] == RequestLimits(steps=50).model_dump()
    with pytest.raises(openai.NotFoundError, match="'small'") as told:
        drawn(small, model="dall-e-3")
    assert told.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        drawn(small, 17)
    assert (bad.value.param, bad.value.type) == ("n", "invalid_request_error")


FIRST, SECOND = KEYS = ("first-key-of-the-tests", "second-key-of-the-tests")
SECRET = "marmalade"
LIMITS = {"requests": 1, "n": 4, "steps": 8, "pixels": 4096}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("text") / "model"
    torch.manual_seed(0)
    tiny.stable_diffusion(faithful=True).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def text(model: str) -> Iterator[str]:
    """A server of a model that takes prompts, behind keys, with narrow limits."""
    limits = [part for name, value in LIMITS.items() for part in ("--limit", f"{name}={value}")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST_KEYS", ",".join(KEYS))
        options = (
            "--api-key-env",
            "TEST_KEYS",
            "--steps",
            "2",
            "--guidance",
            "2",
            "--set",
            "sampler=euler",
        )
        with near(model, *options, *limits) as url:
            yield url


@pytest.mark.parametrize(
    "key", [None, "", "wrong-key-of-the-tests", FIRST[:-1], FIRST + "x", "Ünïcödé-key-of-tests"]
)
def test_nothing_is_done_without_a_key_of_the_server(text: str, key: str | None) -> None:
    header = None if key is None else key.encode("utf-8").decode("latin-1")
    for path in ("/v1/models", "/v1/models/x", "/metrics"):
        status, answer = get(text, path, header)
        assert (status, answer["error"]["type"]) == (401, "authentication_error")
    for path in (asking.GENERATIONS, asking.EDITS, asking.BATCH):
        assert ask(text + path, b"", **bearer(header))[0] == 401
    assert (
        get(text, "/readyz")[0] == get(text, "/openapi.json")[0] == 200
    )  # of no use to a stranger
    for known in KEYS:
        with sdk(text, known) as client:
            assert len(client.models.list().data) == 1


def test_prompts_sizes_guidance_and_negative_prompts_are_heeded(text: str) -> None:
    def of(prompt: str = "a cat", size: str = "32x32", **extra: Any) -> Pixels:
        with sdk(text, FIRST) as client:
            return pixels(
                client.images.generate(prompt=prompt, size=size, extra_body={"seed": 3} | extra)
            )

    plain = of()
    assert plain.shape == (1, 32, 32, 3)
    assert apart(of(), plain) <= 1
    assert of(size="48x32").shape == (1, 32, 48, 3)
    others = (
        {"guidance_scale": 6},
        {"negative_prompt": "b"},
        {"num_inference_steps": 4},
        {"seed": 4},
    )
    for other in (of("a dog"), *(of(**extra) for extra in others)):
        assert apart(other, plain) > 1
    file = ("a.png", png(np.zeros((33, 47, 3), np.uint8)), "image/png")
    with sdk(text, FIRST) as client:
        answer = client.images.edit(image=file, prompt="a", extra_body={"strength": 0.5})
    assert pixels(answer).shape[1:3] == (32, 40)  # without a size it keeps its own


@pytest.mark.parametrize(
    ("content", "param"),
    [
        ({"prompt": "a" * 4001}, "prompt"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"negative_prompt": "b", "guidance_scale": 1}, "negative_prompt"),
        ({"size": "128x128"}, "size"),
        ({"class_label": 1}, "class_label"),
        ({"num_inference_steps": 9}, "num_inference_steps"),
    ],
)
def test_what_lies_beyond_the_limits_names_its_field(
    text: str, content: dict[str, Any], param: str
) -> None:
    status, answer = generate(text, {"prompt": "a"} | content, FIRST)
    assert (status, answer["error"]["param"]) == (400, param)


def test_what_the_server_does_not_do_is_refused_in_words(small: str) -> None:
    grey = ("a.png", png(np.zeros((28, 28), np.uint8)), "image/png")
    with sdk(small) as client:
        for more in ({"mask": grey}, {"mask": grey, "extra_body": {"strength": 0.5}}):
            with pytest.raises(openai.BadRequestError, match="no mask"):
                client.images.edit(image=grey, prompt="7", **more)
        with pytest.raises(openai.BadRequestError, match="no mask"):
            client.images.edit(image=[grey, grey], prompt="7")
    for content, param in (
        ({"background": "transparent"}, "background"),
        ({"prompt": "a cat", "class_label": 7}, "prompt"),
    ):
        status, answer = generate(small, {"prompt": "7"} | content)
        assert (status, answer["error"]["param"]) == (400, param)
    assert generate(small, {"prompt": "7", "background": "opaque", "user": "me"})[0] == 200


def test_the_client_answers_as_the_local_adapter_does(
    text: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_KEY", SECOND)
    texts = {
        "prompts": {"a": "one {label}", "b": ["two", "three"]},
        "negative_prompt": {"a": "c", "b": ""},
    }
    common = texts | {"steps": [4, 3], "guidance": [3.0, 2.0], "size": 32, "image_size": 16}
    labels, seeds = tuple("abba"), np.random.default_rng(0).integers(0, 2**64, 4, dtype=np.uint64)

    def both(api: GenerationAPI) -> tuple[Pixels, Pixels, list[str]]:
        drawn = api.random_api(
            RandomRequest(labels, seeds, api.draw_conditions(labels, seeds ^ seeds[:1]))
        )
        varied = api.variation_api(
            VariationRequest(drawn.samples, labels, drawn.conditions, seeds + 1, 0.7, 2)
        )
        return drawn.samples.array, varied.samples.array, drawn.conditions["prompt"].tolist()

    one = both(ServerClient(base_url=text, key_env="TEST_KEY", concurrency=1, **common))
    other = both(TextToImage(model=model, device="cpu", batch_size=2, sampler="euler", **common))
    assert one[2] == other[2]
    assert max(apart(one[i], other[i]) for i in (0, 1)) <= 1
    with pytest.raises(RecipeError, match="takes prompts"):
        ServerClient(base_url=text, key_env="TEST_KEY").random_api(
            RandomRequest(("a",), np.zeros(1, np.uint64))
        )


def test_a_key_has_no_more_under_way_than_it_may_and_others_are_let_in(text: str) -> None:
    address = urlsplit(text)
    head = (
        f"POST {asking.GENERATIONS} HTTP/1.1\nHost: a\nAuthorization: Bearer "
        f"{FIRST}\nContent-Type: {asking.JSON}\n"
    )
    with socket.create_connection((address.hostname, address.port)) as half_sent:
        half_sent.sendall(f"{head}Content-Length: 100\n\n{{".replace("\n", "\r\n").encode())
        get(text, "/v1/models", FIRST)  # by then the server has seen the other
        status, _, headers = ask(
            text + asking.GENERATIONS, b"{}", content_type=asking.JSON, **bearer(FIRST)
        )
        assert (status, headers["Retry-After"]) == (429, "1")
        assert generate(text, {"prompt": "a", "size": "32x32"}, SECOND)[0] == 200


def test_neither_logs_nor_errors_hold_a_prompt_or_a_key(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    libraries = [logging.getLogger(name) for name in ("diffusers", "transformers")]
    for library in libraries:
        library.addHandler(caplog.handler)
    long = " ".join([SECRET] * 60)  # longer than the model takes, of which the libraries would warn
    with caplog.at_level(logging.DEBUG, "ray.serve"):
        assert generate(text, {"prompt": long, "size": "32x32"}, FIRST)[0] == 200
        assert generate(text, {"prompt": SECRET, "size": "1x1"}, FIRST)[0] == 400
        for wrong in (
            {"prompt": [SECRET]},
            {"prompt": "a", "n": SECRET},
            {"prompt": "a", "image_url": SECRET},
        ):
            status, answer = generate(text, wrong, FIRST)
            assert (status, SECRET in str(answer)) == (400, False)
    for library in libraries:
        library.removeHandler(caplog.handler)
    assert "answered" in caplog.text
    told = caplog.text + str([vars(record) for record in caplog.records])
    assert [secret for secret in (SECRET, *KEYS) if secret in told] == []
