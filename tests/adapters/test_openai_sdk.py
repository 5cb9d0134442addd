"""What OpenAI's SDK sends for us over the wire, read by a server on loopback, and what becomes of
its errors.
"""

import base64

import pytest

from adapters.chat import Chat, ChatSettings
from adapters.http import Fault
from adapters.http.faults import LOOKED_AT
from adapters.openai_images import OpenAIImages
from adapters.openai_sdk import OpenAIConnection, OpenAIEndpoint
from embeddings.http import OpenAIEmbeddings
from pe.data.texts import Texts
from tests.endpoints.asking import CANARY, impatient, random, serve, varied
from tests.endpoints.faults import respond
from tests.endpoints.guard import printing
from tests.endpoints.hosted import Answering, png

__all__ = ["impatient", "serve"]  # fixtures

ANSWER = (
    b'{"choices": [{"message": {"content": "a text"}, "finish_reason": "stop"}],'
    b'"data": [{"index": 0, "embedding": [1.0], "b64_json": "%b"}]}' % base64.b64encode(png(7, 16))
)


class Wire:
    """Keeps each request's line and headers, and answers all kinds of requests."""

    def __init__(self):
        self.came = []

    async def __call__(self, scope, receive, send):
        while (await receive()).get("more_body"):
            pass
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        query = f"?{scope['query_string'].decode()}" if scope["query_string"] else ""
        self.came.append((f"{scope['method']} {scope['path']}{query}", headers))
        await respond(send, 200, ANSWER)


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in (
        "OPENAI_API_KEY",
        "OPENAI_BASE_URL",
        "OPENAI_ORG_ID",
        "OPENAI_PROJECT_ID",
        "AZURE_OPENAI_AD_TOKEN",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(
        "OPENAI_CUSTOM_HEADERS",
        "X-Secret: canary-77\nAuthorization: canary-78\n X-Other : canary-79",
    )
    monkeypatch.setenv("OPENAI_ADMIN_KEY", "canary-80")
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "canary-81")


def chat(**settings):
    api = Chat(model="m", prompts="a", **settings)
    assert len(random(api).samples) == 1


def embed(**settings):
    embedding = OpenAIEmbeddings(model="m", trusted_with_private_data=True, **settings)
    assert embedding.embed(Texts.of(["a"])).tolist() == [[1.0]]


def draw(**settings):
    assert (
        len(
            random(
                OpenAIImages(model="m", prompts="a", image_size=16, server=None, **settings)
            ).samples
        )
        == 1
    )


def vary(**settings):
    assert (
        len(
            varied(
                OpenAIImages(model="m", prompts="a", image_size=16, server=None, **settings)
            ).samples
        )
        == 1
    )


TASKS = [
    (chat, "chat/completions"),
    (embed, "embeddings"),
    (draw, "images/generations"),
    (vary, "images/edits"),
]


@pytest.mark.parametrize(("ask", "task"), TASKS)
def test_a_request_holds_what_the_recipe_and_four_variables_say_and_nothing_of_this_machine(
    ask, task, serve, monkeypatch
):
    wire = Wire()
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    monkeypatch.setenv("OPENAI_BASE_URL", f"{serve(wire)}/v7")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-1")
    ask()
    ((line, headers),) = wire.came
    assert line == f"POST /v7/{task}"
    sent = {
        name: headers.get(name)
        for name in ("authorization", "openai-organization", "openai-project", "api-key")
    }
    assert sent == {
        "authorization": "Bearer sk-1",
        "openai-organization": "org-1",
        "openai-project": "proj-1",
        "api-key": None,
    }
    assert not [name for name in headers if "stainless" in name]
    assert "canary" not in str(headers)


@pytest.mark.parametrize(("ask", "task"), TASKS)
def test_azure_has_a_path_for_each_deployment_and_a_header_for_its_key_but_not_for_tokens(
    ask, task, serve, tmp_path
):
    wire = Wire()
    azure = {"base_url": serve(wire), "azure_api_version": "2025-04-01"}
    for held in ({"key_env": "THE_KEY"}, {"key_command": printing(tmp_path / "runs")}):
        ask(**azure | held)
    assert {line for line, _ in wire.came} == {
        f"POST /openai/deployments/m/{task}?api-version=2025-04-01"
    }
    sent = [(headers.get("api-key"), headers.get("authorization")) for _, headers in wire.came]
    assert sent == [(CANARY, None), (None, "Bearer key-1")]
    assert "canary-" not in str([headers | {"api-key": ""} for _, headers in wire.came])


def test_the_recipe_s_address_and_key_go_before_those_of_the_environment(serve, monkeypatch):
    wire, other = Wire(), Wire()
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    monkeypatch.setenv("OPENAI_BASE_URL", f"{serve(other)}/v1")
    url = f"{serve(wire)}/v1"
    chat(base_url=url, key_env="THE_KEY")
    chat(base_url=url, key_env=None)
    assert [headers.get("authorization") for _, headers in wire.came] == [f"Bearer {CANARY}", None]
    assert not other.came


@pytest.mark.parametrize("kind", [Chat, OpenAIImages])
def test_a_look_asks_the_address_of_the_environment_too(kind, serve, monkeypatch):
    wire = Wire()
    monkeypatch.setenv("OPENAI_BASE_URL", f"{serve(wire)}/v1")
    list(kind.look({"model": "m", "key_env": None}))
    assert wire.came[0][0] == "GET /v1/models"


def fault(url):
    endpoint = OpenAIEndpoint(OpenAIConnection(base_url=url, key_env="THE_KEY", timeout=5), 1)
    with pytest.raises(Fault) as error:
        endpoint.ask("POST", "/embeddings", body={"model": "m"})
    return error.value


def test_errors_are_faults_in_the_server_s_words_and_connections_tell_why_they_failed(serve):
    refused = fault(
        serve(Answering({"error": {"message": "slow down", "code": "rate"}}, 429, retry_after="7"))
    )
    assert (str(refused), refused.code, refused.wait) == ("HTTP 429: slow down", "rate", 7)
    assert "ConnectError" in fault("http://127.0.0.1:9").words
    elsewhere = Answering({})
    assert "redirects to" in fault(serve(Answering(b"", 307, location=serve(elsewhere)))).words
    assert not elsewhere.came


def test_of_an_error_s_body_no_more_is_read_than_is_looked_at(serve):
    async def endless(scope, receive, send):
        await send({"type": "http.response.start", "status": 500, "headers": []})
        for _ in range(10_000):
            await send({"type": "http.response.body", "body": b"x" * 2**16, "more_body": True})

    url = serve(endless)
    assert fault(url).status == 500
    endpoint = OpenAIEndpoint(OpenAIConnection(base_url=url, key_env=None), 1)
    for _ in range(3):  # over one connection at a time, which is given back
        assert len(endpoint.pool.get(url).content) < 4 * LOOKED_AT


def test_a_page_in_place_of_an_answer_fails_the_item_and_is_asked_for_once(serve):
    app = Answering(b"<html>Log in</html>", content_type="text/html")
    answer = random(Chat(model="m", prompts="a", base_url=serve(app), key_env=None))
    assert "Log in" in answer.missing[0].reason
    assert app.came == ["POST"]


def test_seeds_and_numbers_of_a_form_are_written_as_before(serve):
    forms = []

    async def reading(scope, receive, send):
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        forms.append(body)
        await respond(send, 200, ANSWER)

    more = {"seed_field": "seed", "extra": {"steps": 3, "share": 0.25, "safe": True}}
    vary(base_url=serve(reading), key_env=None, **more)
    parts = [
        part.split(b"\r\n\r\n", 1) for part in forms[0].split(b"\r\n--") if b"\r\n\r\n" in part
    ]
    values = {head.split(b'name="')[1].split(b'"')[0]: value for head, value in parts}
    assert (values[b"steps"], values[b"share"], values[b"safe"], values[b"seed"]) == (
        b"3",
        b"0.25",
        b"true",
        b"0",
    )


def test_a_host_that_the_recipe_names_gets_no_key_of_openai_s_unless_the_recipe_says_so(
    monkeypatch,
):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    for url, key in (
        ("http://127.0.0.1:9/v1", None),
        ("https://api.openai.com/v1", "OPENAI_API_KEY"),
    ):
        assert ChatSettings(model="m", prompts="a", base_url=url).key_env == key
    named = ChatSettings(
        model="m", prompts="a", base_url="http://127.0.0.1:9/v1", key_env="OPENAI_API_KEY"
    )
    assert named.key_env == "OPENAI_API_KEY"
