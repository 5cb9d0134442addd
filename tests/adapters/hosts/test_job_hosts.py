"""Hosts that answer by jobs, over their scripted servers: what holds for all of them, and what each
is sent.
"""

import json

import pytest

import adapters.job_hosts as job_hosts_module
from adapters.comfyui import ComfyUI
from pe.errors import APIError, RecipeError
from pe.plugins.protocols import Failed, JobNote, Refused
from tests.endpoints.asking import CANARY, random, shades, varied
from tests.endpoints.job_hosts import RANDOM, SERVERS, generator, workflows


@pytest.fixture
def make(serve, tmp_path):
    """A host's adapter, and its scripted server."""

    def made(kind, **settings):
        server = SERVERS[kind]()
        return generator(kind, serve(server), tmp_path, **{"key_env": "THE_KEY"} | settings), server

    return made


EACH = pytest.mark.parametrize("kind", SERVERS)


@pytest.mark.parametrize(
    ("kind", "key"),
    [("bfl", ""), ("comfyui", "Bearer "), ("replicate", "Bearer "), ("fal", "Key ")],
)
def test_a_request_is_a_job_whose_images_are_fetched_and_the_key_goes_to_the_host_alone(
    make, kind, key
):
    api, server = make(kind)
    answer = random(api)
    assert shades(answer) == [40 * 37 % 256]
    assert (answer.usage.calls, answer.usage.images) == (1, 1)
    assert shades(varied(api, 0.4, [100])) == [60]
    assert list(server.submitted.values()) == [1, 1]
    assert server.script.keys - {""} == {key + CANARY}
    assert not any(CANARY in str(headers) for headers in server.fetched)
    assert not list(type(api).look({}))  # without a job there is nothing to look at


@EACH
@pytest.mark.parametrize("place", range(4))
def test_a_fault_at_any_request_of_a_job_heals(make, kind, place):
    api, server = make(kind)
    fault = ("429 milliseconds", "500", "dropped", "html")[place]
    server.script._first = [""] * place + [fault]
    assert len(random(api).samples) == 1
    assert server.script.seen[fault] == 1
    assert len(server.jobs) == 1


@EACH
def test_a_job_without_a_result_is_an_outcome(make, kind):
    api, server = make(kind)
    for seed, outcome in enumerate(server.knows):
        server.outcomes = [outcome]
        answer = random(api, seed=seed)
        assert isinstance(answer.missing[0], Refused if outcome == "refusal" else Failed)
        assert answer.usage.calls == 1
        assert len(server.jobs) == seed + 1


@EACH
@pytest.mark.parametrize("place", [0, 1])
def test_a_job_that_is_not_taken_or_of_which_nothing_is_said_has_failed(make, kind, place):
    api, server = make(kind)
    server.script._first = [""] * (server.submit_at + place) + ["422"]
    answer = random(api)
    assert answer.missing == {0: Failed("HTTP 422: scripted", rejected=True)}
    assert answer.usage.calls == 1
    assert len(server.jobs) == place


@EACH
def test_a_job_is_noted_before_anyone_looks_at_it_and_a_noted_one_is_not_submitted_again(
    make, kind
):
    api, server = make(kind)
    kept, looked = [], []

    def keep(name):
        kept.append(name)
        looked.append(sum(job.looks for job in server.jobs.values()))

    random(api, job=JobNote(keep=keep))
    assert looked == [0]
    answer = random(api, job=JobNote(kept[0], calls=1, keep=keep))
    assert (len(answer.samples), answer.usage.calls) == (1, 1)
    assert (len(server.jobs), len(kept)) == (1, 1)


@EACH
def test_a_job_that_the_host_has_forgotten_is_submitted_again_and_counted(make, kind, caplog):
    api, server = make(kind)
    kept = []
    random(api, job=JobNote(keep=kept.append))
    server.jobs.clear()
    answer = random(api, job=JobNote(kept[0], calls=1))
    assert (len(answer.samples), answer.usage.calls) == (1, 2)
    assert "submitted again" in caplog.text
    server.outcomes = ["unknown"]  # one that knows nothing of what it takes is asked once
    assert "does not know" in random(api, seed=9).missing[0].reason


@EACH
def test_a_job_that_does_not_end_in_time_has_failed_and_is_cancelled_where_the_host_can_be_told(
    make, kind
):
    api, server = make(kind, job_timeout=0.05)
    server.finished = 0
    assert "job_timeout" in random(api).missing[0].reason
    assert len(server.jobs) == (kind == "bfl")


@EACH
def test_a_lost_answer_costs_nothing_where_the_id_is_ours(make, kind):
    api, server = make(kind)
    server.script._first = [""] * server.submit_at + ["lost"]
    answer = random(api)
    assert len(answer.samples) == 1
    assert len(server.jobs) == answer.usage.calls == (1 if kind == "comfyui" else 2)


def bodies(server):
    return [job.body for job in server.jobs.values()]


@pytest.mark.parametrize("kind", ["bfl", "replicate", "fal"])
def test_an_image_at_an_unknown_host_is_not_fetched(make, kind):
    api, server = make(kind)
    server.outcomes = ["elsewhere"]
    reason = random(api).missing[0].reason
    assert all(words in reason for words in ("https://elsewhere.example", "only", "result_hosts"))


def test_a_polling_address_elsewhere_is_not_asked_with_the_key(make):
    api, server = make("bfl")
    server.poll_at = "https://bfl.ai.elsewhere.example"
    with pytest.raises(APIError, match="the key would go there") as error:
        random(api)
    assert CANARY not in str(error.value)


def test_black_forest_labs_takes_a_prompt_a_size_and_a_parent_and_moderates_images(make):
    api, server = make("bfl", variation_model="flux-kontext-pro", extra={"safety_tolerance": 5})
    random(api)
    varied(api, 0.4, [9])
    assert api.capabilities.degree == "wording"
    new, edited = bodies(server)
    fields = {"output_format": "png", "safety_tolerance": 5, "height": 16, "width": 16}
    assert new == fields | {"prompt": "a cat", "seed": 40}
    assert "close variation" in edited["prompt"]
    assert edited["input_image"].startswith("iVBOR")
    server.outcomes = ["refusal"]
    assert random(api).missing == {0: Refused("Content Moderated")}


def test_replicate_runs_a_version_of_a_model(make):
    api, server = make(
        "replicate", model="stability-ai/sdxl:5c7d", size=[32, 16], inputs={"prompt_strength": 0.5}
    )
    random(api)
    inputs = {
        "prompt_strength": 0.5,
        "prompt": "a cat",
        "seed": 40,
        "num_outputs": 1,
        "width": 16,
        "height": 32,
    }
    assert bodies(server) == [{"version": "5c7d", "input": inputs}]


@pytest.mark.parametrize(
    ("kind", "field"), [("replicate", "prompt_strength"), ("fal", "strength"), ("replicate", None)]
)
def test_a_model_s_own_number_tells_the_degree_and_else_words_do(make, kind, field):
    api, server = make(kind, degree_field=field)
    varied(api, 0.3, [9])
    (body,) = bodies(server)
    body = body.get("input", body)
    assert api.capabilities.degree == ("exact" if field else "wording")
    assert body.get(field or "prompt_strength") == (0.3 if field else None)
    assert (body["prompt"] == "a cat") == (field is not None)


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        (
            "replicate",
            {"degree_field": "strength"},
            "has no input 'strength'; did you mean 'prompt_strength'",
        ),
        ("replicate", {"inputs": {"steps": 4}}, "flux-dev has no input 'steps'"),
        ("fal", {"variation_model": "fal-ai/flux/dev"}, "fal-ai/flux/dev has no input 'strength'"),
    ],
)
def test_an_input_that_the_model_does_not_describe_stops_the_run_before_a_job(
    make, kind, settings, words
):
    api, server = make(kind, **settings)
    with pytest.raises(APIError, match=words):
        varied(api, 0.3, [9])
    assert not server.jobs


def test_several_images_of_a_job(make):
    api, server = make("fal", n=3, size=[16, 32])
    server.outcomes = ["flagged", "fewer"]
    answer = random(api, 3)
    assert answer.missing == {0: Refused("has_nsfw_concepts")}
    assert (answer.usage.calls, answer.usage.images) == (1, 3)
    assert [type(miss) for miss in random(api, 3, seed=5).missing.values()] == [Failed]
    assert bodies(server)[0]["image_size"] == {"width": 32, "height": 16}


def test_a_large_parent_is_uploaded(make, monkeypatch):
    monkeypatch.setattr(job_hosts_module, "LARGEST", 10)
    api, server = make("replicate")
    assert shades(varied(api, 0.4, [100])) == [60]
    assert bodies(server)[0]["input"]["image"].endswith("/v1/files/0")


def test_a_request_fills_in_every_place_of_a_workflow_and_leaves_the_rest(make, tmp_path):
    flows = workflows(tmp_path)
    flows["random"]["prompt"] = ["6.text", "9.filename_prefix"]
    api, server = make("comfyui", batch=3, size=(16, 16), **flows)
    assert len(random(api, 3).samples) == 3
    assert len(varied(api, 0.4, [100, 100]).samples) == 2
    assert (api.capabilities.max_chunk, api.capabilities.degree) == (3, "exact")
    assert "denoise = 0.4" in api.describe_degree(0.4)
    new, variation = bodies(server)
    assert new["6"]["inputs"] == {"text": "a cat", "clip": ["4", 1]}
    assert new["9"]["inputs"]["filename_prefix"] == "a cat"
    assert new["5"]["inputs"] == {"width": 16, "height": 16, "batch_size": 3}
    assert (new["3"]["inputs"]["seed"], new["3"]["inputs"]["denoise"]) == (40, 1.0)
    assert variation["3"]["inputs"]["denoise"] == 0.4
    assert variation["10"]["inputs"]["image"] in server.uploads
    assert json.loads((tmp_path / "random.json").read_text()) == RANDOM


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompt": "6.txt"}, "random.prompt: .* has no 6.txt; did you mean '6.text'"),
        ({"seed": "seed"}, "a place is NODE.INPUT"),
        ({"seed": "3.latent_image"}, "3.latent_image is connected to another node"),
        ({"batch": None}, "needs `random.batch`"),
    ],
)
def test_a_wrong_workflow_is_refused_before_anything_is_sent(tmp_path, change, words):
    flows = workflows(tmp_path)
    flows["random"] = {
        name: value for name, value in (flows["random"] | change).items() if value is not None
    }
    with pytest.raises(RecipeError, match=words):
        ComfyUI(**flows, base_url="http://127.0.0.1:1", prompts="a {label}", image_size=16, batch=2)


def test_what_comfyui_says_of_a_workflow_is_told(make):
    api, server = make("comfyui")
    wrong = varied(api, 0.125).missing[0]
    assert "Prompt outputs failed validation" in wrong.reason
    assert wrong.rejected
    server.outcomes = ["failed", "cancelled"]
    assert random(api, seed=1).missing == {0: Failed("KSampler failed: Allocation on device")}
    assert "cancelled" in random(api, seed=2).missing[0].reason
