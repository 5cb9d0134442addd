"""What a server says of itself, to clients, to Prometheus and to `pe doctor`, and whom it lets in."""

from __future__ import annotations

import http.client
import io
import os
import re
import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest
import yaml
from click.testing import CliRunner
from PIL import Image

from adapters.server.application import build, with_room
from adapters.server.checks import Limits, Settings, digest_of
from adapters.server.command import serve
from adapters.server.errors import CODES
from adapters.server.ingress import ROUTES
from pe.cli.plan import doctor
from pe.errors import RecipeError
from tests.adapters.server.asking import generate
from tests.adapters.server.near import near
from tests.adapters.server.serving import LOOPBACK, Server

BOUNDARY = "pe"
PAGE = (Path(__file__).parents[3] / "docs" / "server.md").read_text(encoding="utf-8")


def test_the_description_is_of_the_routes_there_are(small: Server) -> None:
    _, page = small.get("/openapi.json")
    for path, operations in page["paths"].items():
        for method, operation in operations.items():
            shown = "/v1/models/small" if path == "/v1/models/{model}" else path
            status, _ = small.get(shown) if method == "get" and path != "/metrics" else (200, None)
            assert status == 200, path
            assert set(operation["responses"]) == {"200", *map(str, CODES)}
            other = "GET" if method == "post" else "POST"
            assert small.status(other, shown) == 405, path
    assert small.status("GET", "/v1/images") == 404


def test_the_description_lists_every_route(small: Server) -> None:
    _, page = small.get("/openapi.json")
    found = {(path, method) for path, each in page["paths"].items() for method in each}
    assert found == {(path.replace(":path", ""), method.lower()) for path, method, *_ in ROUTES}
    for path, method, _, kind in ROUTES:
        operation = page["paths"][path.replace(":path", "")][method.lower()]
        assert [*operation.get("requestBody", {}).get("content", {})] == ([kind] if kind else [])
        assert ("security" in operation) == (path not in ("/openapi.json", "/healthz", "/readyz"))
    assert page["info"]["x-limits"] == Limits(requests=80, steps=50).model_dump()


@pytest.mark.filterwarnings("ignore:Using extra keyword arguments:DeprecationWarning")  # of Ray
def test_without_a_key_no_page_of_another_site_is_answered() -> None:
    """Neither one whose name was bound to this machine, nor a form that sends to it."""
    own = {}, {"Host": "localhost:8000", "Origin": "http://localhost:3000"}, {"Host": "[::1]:8000"}
    hosts = ("rebound.example:8000", "127.0.0.1.example", "127.0.0.1@rebound.example", "", "[broken")
    origins = ("https://other.example", "null", "http://[broken")
    others = *({"Host": host} for host in hosts), *({"Origin": origin} for origin in origins)
    with near("small", "--gpus-per-replica", "0", "--steps", "4") as url:
        for headers in (*own, *others):
            for method, path, body in (("GET", "/v1/models", None), ("POST", "/v1/images/edits", form())):
                kind = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"} if body else {}
                connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
                connection.request(method, path, body, kind | headers)
                assert connection.getresponse().status == (200 if headers in own else 401), (path, headers)
                connection.close()


def form() -> bytes:
    """What a page's form sends for an edit."""
    image = io.BytesIO()
    Image.new("L", (28, 28)).save(image, "PNG")
    part = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{{}}"{{}}\r\n\r\n'
    fields = "".join(part.format(name, "") + f"{value}\r\n" for name, value in (("prompt", 7), ("strength", 0.6)))
    parts = fields + part.format("image", '; filename="a.png"')
    return parts.encode() + image.getvalue() + f"\r\n--{BOUNDARY}--\r\n".encode()


def test_what_is_asked_by_get_is_asked_by_head_too(small: Server) -> None:
    assert {small.status("HEAD", path) for path in ("/healthz", "/readyz", "/v1/models", "/metrics")} == {200}


def test_answers_and_errors_are_as_described(small: Server) -> None:
    _, page = small.get("/openapi.json")
    components = {"components": page["components"]}  # to which the schemas refer
    error = page["components"]["schemas"]["Error"]
    jsonschema.validate(small.get("/nowhere")[1], components | error)
    answered = page["paths"]["/v1/images/generations"]["post"]["responses"]["200"]["content"]
    status, answer, _ = generate(small, {"prompt": "7"})
    assert status == 200
    jsonschema.validate(answer, components | answered["application/json"]["schema"])


def test_it_says_what_it_serves_and_within_which_limits(small: Server) -> None:
    (model,) = small.get("/v1/models")[1]["data"]
    assert model["pe"]["classes"][:3] == ["0", "1", "2"]
    assert model["pe"]["class_count"] == 62
    assert model["pe"]["limits"] == Limits(requests=80, steps=50).model_dump()
    assert small.get("/healthz") == (200, {"status": "ok"})


def test_prometheus_finds_images_batches_queues_engine_time_and_refusals(small: Server) -> None:
    before = counted(small)
    generate(small, {"prompt": "7"})
    generate(small, {"prompt": "a cat"})
    wanted = {"images_total", "batch_images_count", "queue_seconds_count", "engine_seconds_total"}
    wanted |= {"answers_total", "answer_seconds_count", "images_sent_total", "refused"}
    deadline, missing = time.monotonic() + 40, wanted
    while missing:
        assert time.monotonic() < deadline, missing
        time.sleep(0.2)
        after = counted(small)
        missing = {name for name in wanted if after.get(name, 0.0) <= before.get(name, 0.0)}


def counted(server: Server) -> dict[str, float]:
    """The server's counters by the ends of their names; `refused`: those of its answers that are of status 400."""
    parts = ("pe_server_answers_total{", 'path="/v1/images/generations"', 'status="400"')
    refused = [line for line in server.text("/metrics").splitlines() if all(part in line for part in parts)]
    found = {name.removeprefix("pe_server_"): value for name, value in server.metrics().items()}
    return found | {"refused": sum(float(line.rpartition(" ")[2]) for line in refused)}


def test_all_that_can_be_reached_without_a_token_listens_on_loopback(small: Server) -> None:
    listening = small.listening()
    assert {port for address, port in listening if address in LOOPBACK} >= {int(small.url.rpartition(":")[2])}
    for _, port in [each for each in listening if each[0] not in LOOPBACK]:
        assert refuses_strangers(port), port


def test_none_of_its_processes_gives_way_to_what_else_the_machine_does(small: Server) -> None:
    nice = {name: os.getpriority(os.PRIO_PROCESS, pid) for pid, name in small.pids().items()}
    assert set(nice.values()) == {os.getpriority(os.PRIO_PROCESS, 0)}, nice


def refuses_strangers(port: int) -> bool:
    """Whether a gRPC port, which Ray opens in each replica for the others, asks for Ray's token."""
    import grpc

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/ray.serve.ASGIService/HandleRequest")
        try:
            call(b"", timeout=10)
        except grpc.RpcError as error:
            return bool(error.code() is grpc.StatusCode.UNAUTHENTICATED)
    return False


def test_the_doctor_looks_at_an_endpoint(small: Server) -> None:
    result = CliRunner().invoke(doctor, ["--endpoint", small.url])
    assert result.exit_code == 0, result.output
    assert "serves small" in result.output
    assert "ready" in result.output


def test_the_doctor_tells_of_an_endpoint_that_is_not_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        result = CliRunner().invoke(doctor, ["--endpoint", f"http://127.0.0.1:{taken.getsockname()[1]}/v1"])
    assert result.exit_code == 1
    assert "no answer" in result.output


@pytest.mark.parametrize("url", ["file:///etc/passwd", "127.0.0.1:8000"])
def test_the_doctor_opens_no_file(url: str) -> None:
    result = CliRunner().invoke(doctor, ["--endpoint", url])
    assert result.exit_code == 1
    assert "no address" in result.output


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "example.org", "::"])
def test_others_are_let_in_only_with_a_key(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for options in ([], ["--print-config"]):
        result = CliRunner().invoke(serve, ["small", "--host", host, *options])
        assert isinstance(result.exception, RecipeError)
        assert "--api-key-env" in str(result.exception)
    monkeypatch.setenv("KEYS", "short")
    result = CliRunner().invoke(serve, ["small", "--host", host, "--api-key-env", "KEYS", "--print-config"])
    assert "at least 16" in str(result.exception)


@pytest.mark.filterwarnings("ignore:Using extra keyword arguments:DeprecationWarning")  # of Ray
def test_the_file_for_serve_deploy_is_ray_s_and_holds_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.serve.schema import ServeDeploySchema

    monkeypatch.setenv("KEYS", "a-key-that-nobody-guesses")
    options = ["small", "--host", "0.0.0.0", "--api-key-env", "KEYS", "--replicas", "3", "--print-config"]
    printed = CliRunner().invoke(serve, options, catch_exceptions=False).output
    assert "nobody" not in printed
    (application,) = ServeDeploySchema.model_validate(yaml.safe_load(printed)).applications
    settings = Settings.model_validate(application.args)
    assert settings.replicas == 3
    assert settings.key_digests == (digest_of("a-key-that-nobody-guesses"),)
    assert application.import_path == "adapters.server.application:build"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--replicas", "none"], "--replicas"),
        (["--limit", "images"], "NAME=N"),
        (["--limit", "imags=3"], "did you mean 'images'"),
        (["--limit", "images=0"], "images"),
        (["--api-key-env", "NOT_SET"], "NOT_SET is not set"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_sentence(options: list[str], said: str) -> None:
    result = CliRunner().invoke(serve, ["small", *options])
    assert isinstance(result.exception, RecipeError)
    assert said in str(result.exception)


def test_a_port_that_is_taken_is_said_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = CliRunner().invoke(serve, ["small", "--port", str(taken.getsockname()[1])])
    assert "take another --port" in str(result.exception)


def test_a_model_that_is_not_there_is_said_before_anything_starts() -> None:
    result = CliRunner().invoke(serve, ["/nowhere/model"])
    assert "there is nothing at '/nowhere/model'" in str(result.exception)


@pytest.mark.filterwarnings("ignore:Using extra keyword arguments:DeprecationWarning")  # of Ray
def test_ray_builds_the_application_from_the_arguments_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray
    from ray.serve._private.api import call_user_app_builder_with_args_if_necessary

    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 4.0})
    application = call_user_app_builder_with_args_if_necessary(build, {"model": "small", "replicas": 2})
    assert application._bound_deployment.name == "ingress"


def test_the_deployment_has_the_room_that_there_is() -> None:
    def room(resources: dict[str, float], **given: Any) -> tuple[float | None, int | None, float | None]:
        found = with_room(Settings(model="small", **given), resources)
        return found.gpus_per_replica, found.max_replicas, found.cpus_per_replica

    assert room({"CPU": 4.0}) == (0.0, 1, 3.0)
    assert room({"CPU": 2.0}, replicas=4) == (0.0, 1, 0.25)
    assert room({"CPU": 65.0, "GPU": 8.0}) == (1.0, 8, 8.0)
    assert room({"CPU": 65.0, "GPU": 8.0}, gpus_per_replica=0.5) == (0.5, 16, 4.0)
    assert room({"CPU": 64.0, "GPU": 8.0}, max_replicas=2, cpus_per_replica=3) == (1.0, 2, 3.0)


def test_the_python_of_the_page_runs(small: Server) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block.replace("http://127.0.0.1:8000", small.url), "server.md", "exec"), names)
    assert len(names["client"].images.generate(prompt="7").data) == 1
    assert names["images"].shape == (100, 28, 28, 1)


def test_the_page_lists_every_limit_and_every_path() -> None:
    for name, value in Limits():
        assert f"| {name} | {value:,.0f} |" in PAGE
    for path, *_ in ROUTES:
        assert path.replace("{model:path}", "NAME").replace("/v1/models/NAME", "`/v1/models/NAME`") in PAGE, path
