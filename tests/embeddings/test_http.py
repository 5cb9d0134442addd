"""Embeddings from endpoints, of images by POST and of texts by OpenAI's SDK, against real servers
on loopback.
"""

import json
from contextlib import ExitStack

import numpy as np
import pytest

from adapters.http import retries
from embeddings.http import HTTPEmbedding, OpenAIEmbeddings
from pe.data.images import Images
from pe.data.texts import Texts
from pe.engine.execution import RunContext, run_recipe
from pe.errors import APIError, ContractError, RecipeError, Unavailable
from pe.plugins.embed import embed_block
from pe.privacy.certificate import verify
from pe.recipe.schema import Recipe
from tests.cli.typed import pe
from tests.endpoints.embeddings_server import TextEmbeddingsServer, vector_of
from tests.endpoints.faults import Script
from tests.endpoints.sd_server import EmbeddingServer
from tests.endpoints.serving import serving
from tests.generators import Shades

CANARY = "canary-99"
COMMON = {"trusted_with_private_data": True, "key_env": "THE_KEY", "timeout": 1.0}
PIXELS = np.random.default_rng(0).integers(0, 256, (5, 6, 6, 3)).astype(np.uint8)
PIXELS[:, 0, 0, 0] = (1, 2, 3, 4, 5)
TEXTS = Texts.of(
    ["the film was good", "a warm night of music", "the food was not cold", "", "new place"]
)
SAMPLES = {"images": Images(PIXELS), "texts": TEXTS}
WANTED = {
    "images": PIXELS.mean(axis=(1, 2)),
    "texts": np.stack([vector_of(text or ".") for text in TEXTS.strings]),
}


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setenv("THE_KEY", CANARY)
    monkeypatch.setattr(retries, "FIRST", 0.02)
    monkeypatch.setattr(retries, "MOST", 0.05)


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def made(stack):
    """An embedding of images or texts, and the script of the server that it talks to."""

    def make(kind, *faults, server=None, **settings):
        script, given = Script(first=faults), {"model": "m"} | COMMON | settings
        if kind == "images":
            url = stack.enter_context(serving(EmbeddingServer(script, **server or {})))
            return HTTPEmbedding(url=f"{url}/v1/embeddings", **given), script
        url = stack.enter_context(serving(TextEmbeddingsServer(script, **server or {})))
        return OpenAIEmbeddings(base_url=f"{url}/v1", **given), script

    return make


def test_vectors_come_in_the_order_of_the_images(made):
    embedding, script = made("images", "500", "dropped", "")
    vectors = embedding.embed(Images(PIXELS))
    np.testing.assert_allclose(vectors, WANTED["images"], rtol=1e-6)
    assert vectors.dtype == np.float32
    assert script.keys == {f"Bearer {CANARY}"}
    assert script.requests[0]["model"] == "m"


@pytest.mark.parametrize("given", [{}, {"encoding_format": "float"}, {"server": {"plain": True}}])
def test_vectors_come_in_the_order_of_the_texts_whichever_way_they_are_written(made, given):
    embedding, script = made("texts", **given)
    vectors = embedding.embed(TEXTS)
    np.testing.assert_array_equal(vectors, WANTED["texts"])
    assert vectors.dtype == np.float32
    form = given.get("encoding_format", "base64")
    body = {"model": "m", "input": [text or "." for text in TEXTS.strings], "encoding_format": form}
    assert script.requests == [body]
    assert script.keys == {f"Bearer {CANARY}"}


def test_dimensions_and_further_fields_are_sent_and_another_length_is_refused(made):
    embedding, script = made("texts", dimensions=4, extra={"truncate": True})
    np.testing.assert_array_equal(embedding.embed(TEXTS), WANTED["texts"][:, :4])
    assert (script.requests[0]["dimensions"], script.requests[0]["truncate"]) == (4, True)
    with pytest.raises(ContractError, match=r"answers with \d+ numbers; dimensions asks for 400"):
        made("texts", dimensions=400)[0].embed(TEXTS)
    with pytest.raises(ContractError, match="takes texts, not Images"):
        embedding.embed(Images(PIXELS))


@pytest.mark.parametrize("place", ["/v1/embeddings/", "", "/v1/embeddings?dim=a%2Fb/"])
def test_the_address_is_asked_to_the_letter(stack, place):
    """Of an endpoint whose address has a slash at its end, or a query."""
    server, asked = EmbeddingServer(Script()), set()

    async def at_place(scope, receive, send):
        if scope["type"] == "http":
            asked.add(
                (
                    scope["raw_path"] + b"?" * bool(scope["query_string"]) + scope["query_string"]
                ).decode()
            )
            scope = {
                **scope,
                "path": "/v1/embeddings",
                "raw_path": b"/v1/embeddings",
                "query_string": b"",
            }
        await server(scope, receive, send)

    url = stack.enter_context(serving(at_place))
    assert len(HTTPEmbedding(url=url + place, **COMMON, tries=1).embed(Images(PIXELS))) == 5
    assert asked == {place or "/"}


@pytest.mark.parametrize(
    "changed",
    [
        {"index": 0},
        {"embedding": "no"},
        {"embedding": "AAAA"},
        {"embedding": [[1.0]]},
        {"embedding": None},
    ],
)
def test_vectors_that_are_not_one_per_sample_are_refused(made, changed):
    for kind, samples in SAMPLES.items():
        with pytest.raises(ContractError, match=r"not answer with one vector per|not one per"):
            made(kind, server={"changed": changed})[0].embed(samples)


@pytest.mark.parametrize(
    ("kind", "server", "said"),
    [
        ("images", {"refused": 3, "status": 400}, "image 2 shows a scar"),
        ("images", {"refused": 3, "status": 500}, "image 2 shows a scar"),
        ("texts", {"refused": "cold"}, "the food was not cold"),
    ],
)
def test_a_sample_that_is_refused_or_breaks_the_endpoint_gets_no_vector_and_the_others_theirs(
    made, kind, server, said, caplog
):
    embedding, script = made(kind, server=server)
    vectors = embed_block(embedding, SAMPLES[kind])
    assert np.isnan(vectors).all(axis=1).tolist() == [False, False, True, False, False]
    np.testing.assert_allclose(vectors[[0, 1, 4]], WANTED[kind][[0, 1, 4]], rtol=1e-6)
    assert said in caplog.text
    assert {len(request["input"]) for request in script.requests} == {5}, (
        "a request of another size"
    )


def test_an_endpoint_that_refuses_black_images_too_is_at_fault_and_says_so(made):
    with pytest.raises(APIError, match=r"rejects the request with HTTP 400: image 0 shows a scar"):
        embed_block(
            made("images", server={"refused": 0})[0], Images(np.zeros((2, 4, 4, 3), np.uint8))
        )


@pytest.mark.parametrize(("away", "kind"), [(6, "images"), (12, "images"), (6, "texts")])
def test_an_outage_costs_no_sample_its_vector(made, away, kind):
    vectors = embed_block(made(kind, *["503 html"] * away)[0], SAMPLES[kind])
    np.testing.assert_allclose(vectors, WANTED[kind], rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "faults", "said"),
    [
        ("images", ["503 html"] * 999, r"gave no answer for .*HTTP 503.*`pe run RUN` goes on"),
        ("images", ["500"] * 999, "fails on blank samples: HTTP 500: scripted"),
        ("texts", ["500"] * 999, "fails on blank samples: HTTP 500: scripted"),
        (
            "images",
            [*["500"] * 6, "", *["503 html"] * 999],
            "503",
        ),  # away again once blank images had an answer
    ],
)
def test_an_endpoint_that_stays_away_is_one_sentence(made, kind, faults, said):
    with pytest.raises(Unavailable, match=said):
        embed_block(made(kind, *faults, patience=0.1)[0], SAMPLES[kind])


def test_a_vector_that_is_not_finite_is_none_and_the_others_stand(made):
    vectors = made("images", server={"changed": {"infinite": 4}})[0].embed(Images(PIXELS))
    assert np.isfinite(vectors).all(axis=1).tolist() == [True, True, True, False, True]


@pytest.mark.parametrize(
    ("make", "given", "named"),
    [
        (HTTPEmbedding, {"url": "https://api.example/v1/embeddings"}, r"image to api\.example"),
        (OpenAIEmbeddings, {"model": "m"}, r"text to api\.openai\.com"),
        (OpenAIEmbeddings, {"model": "m", "base_url": "http://h:8/v1"}, "text to h:8"),
    ],
)
def test_private_samples_go_nowhere_unless_the_recipe_says_so(make, given, named):
    with pytest.raises(
        RecipeError,
        match=rf"every PRIVATE {named}: state embedding\.trusted_with_private_data: true",
    ):
        make(**given)


@pytest.fixture
def private(tmp_path):
    images = np.full((40, 4, 4, 1), 100, np.uint8)
    images[17, 0, 0] = 77
    np.savez(tmp_path / "private.npz", images=images, labels=np.array(["a", "b"] * 20))
    return tmp_path / "private.npz"


def run_by(embedding, private, api):
    content = {
        "private": {
            "kind": "npz",
            "path": private,
            "size": 4,
            "channels": 1,
            "classes": ["a", "b"],
        },
        "api": {"kind": "object:tests.generators.Shades"},
        "embedding": {"kind": "http", "url": f"http://{embedding.info.hosts[0]}/v1/embeddings"}
        | {"trusted_with_private_data": True, "patience": 0.1},
        "privacy": {"noise_multiplier": 1, "delta": 1e-5},
        "evolution": {"iterations": 1, "population": 10, "lookahead": 0},
    }
    return run_recipe(
        Recipe.parse(content, "the test"), private.parent / "run", RunContext(api=api)
    )


def test_an_endpoint_that_is_down_is_told_before_there_is_a_run(made, private):
    api = Shades()
    with pytest.raises(Unavailable, match="fails on blank samples"):
        run_by(made("images", *["500"] * 999)[0], private, api)
    assert not api.asked
    assert not (private.parent / "run").exists()


def test_the_certificate_states_who_sees_private_images_and_the_confidential_log_alone_what_is_said_of_one(
    made, private, capfd
):
    embedding, _ = made("images", server={"refused": 77})
    run, host = run_by(embedding, private, Shades()), embedding.info.hosts[0]
    certificate = json.loads((run.folder / "certificate.json").read_text())
    assert certificate["private_data_sent_to"] == host
    assert f"sent to {host}, un-noised" in certificate["not_covered"][0]
    assert not verify(certificate, run.folder)
    assert f"sent to {host}" in (run.folder / "certificate.md").read_text()
    log = run.folder / "confidential" / "log.txt"
    assert "shows a scar" in log.read_text()
    assert capfd.readouterr() == ("", "")
    log.unlink()
    told = pe(
        "evaluate", run.folder, "--test", private, "--metrics", "memorisation", cwd=private.parent
    )
    assert told.returncode == 2
    assert "HTTPEmbedding.embed gave no finite vector for an image: see the log." in told.stderr
    assert "scar" not in told.stdout + told.stderr
    assert "shows a scar" in log.read_text()
