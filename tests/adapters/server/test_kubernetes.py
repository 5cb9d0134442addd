"""The manifest in examples/kuberay: what KubeRay, Ray and this project's command line make of its parts."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from adapters.server.application import DOOR
from adapters.server.checks import Settings, digest_of
from adapters.server.command import serve

ROOT = Path(__file__).parents[3]
MANIFEST = ROOT / "examples" / "kuberay" / "rayservice.yaml"
KEY = "a-key-that-nobody-guesses"


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


def _any(names: str) -> dict[str, Any]:
    return {name: {} for name in names.split()}


_TEXT, _NUMBER, _TEXTS = (
    {"type": "string"},
    {"type": "integer"},
    {"type": "object", "additionalProperties": {"type": "string"}},
)
_QUANTITIES = {"type": "object", "additionalProperties": {"type": ["integer", "string"]}}
_CONTAINER = _object(
    ["name"],
    name=_TEXT,
    image=_TEXT,
    env={"type": "array", "items": _object(["name"], name=_TEXT, value=_TEXT, valueFrom={})},
    ports={"type": "array", "items": _object(["containerPort"], name=_TEXT, containerPort=_NUMBER)},
    resources=_object([], requests=_QUANTITIES, limits=_QUANTITIES),
    readinessProbe=_object(
        [], httpGet=_object(["port"], path=_TEXT, port={"type": ["integer", "string"]}), periodSeconds=_NUMBER
    ),
)
_POD = _object([], spec=_object(["containers"], containers={"type": "array", "items": _CONTAINER}))
_GROUP = {"rayStartParams": _TEXTS, "template": _POD, **_any("labels resources")}
RAY_SERVICE = _object(
    [],
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayService"},
    metadata=_object(["name"], name=_TEXT),
    spec=_object(
        ["rayClusterConfig"],
        serveConfigV2=_TEXT,
        rayClusterConfig=_object(
            ["headGroupSpec"],
            rayVersion=_TEXT,
            authOptions=_object([], mode={"enum": ["disabled", "token"]}, **_any("enableK8sTokenAuth secretName")),
            headGroupSpec=_object(
                ["template"], **_GROUP, **_any("enableIngress headService ingressOptions serviceType")
            ),
            workerGroupSpecs={
                "type": "array",
                "items": _object(
                    ["groupName", "maxReplicas", "minReplicas", "template"],
                    groupName=_TEXT,
                    replicas=_NUMBER,
                    minReplicas=_NUMBER,
                    maxReplicas=_NUMBER,
                    **_GROUP,
                    **_any("idleTimeoutSeconds numOfHosts priority scaleStrategy suspend"),
                ),
            },
            **_any("autoscalerOptions enableInTreeAutoscaling gcsFaultToleranceOptions headServiceAnnotations"),
            **_any("historyServerOptions managedBy networkPolicy suspend tlsOptions upgradeStrategy"),
        ),
        **_any(
            "excludeHeadPodFromServeSvc managedBy rayClusterDeletionDelaySeconds serveService suspend upgradeStrategy"
        ),
    ),
)
"""What KubeRay v1.7.0 has in ray.io_rayservices.yaml, and of a pod what the manifest uses."""


@pytest.fixture
def manifest() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))
    return content


def test_the_manifest_is_a_ray_service_as_kuberay_takes_it(manifest: dict[str, Any]) -> None:
    jsonschema.validate(manifest, RAY_SERVICE)
    manifest["spec"]["rayClusterConfig"]["workerGroupSpec"] = manifest["spec"]["rayClusterConfig"].pop(
        "workerGroupSpecs"
    )
    with pytest.raises(jsonschema.ValidationError, match="workerGroupSpec"):
        jsonschema.validate(manifest, RAY_SERVICE)


@pytest.mark.filterwarnings("ignore:Using extra keyword arguments:DeprecationWarning")  # of Ray
def test_its_application_is_what_the_command_in_it_prints(
    manifest: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.serve.schema import ServeDeploySchema

    (command,) = re.findall(r"^# +(pe serve .* --print-config)$", MANIFEST.read_text(encoding="utf-8"), re.M)
    monkeypatch.setenv("PE_KEYS", KEY)
    printed = CliRunner().invoke(serve, shlex.split(command)[2:], catch_exceptions=False).output
    config = manifest["spec"]["serveConfigV2"]
    assert yaml.safe_load(config.replace("0" * 64, digest_of(KEY))) == yaml.safe_load(printed)
    (application,) = ServeDeploySchema.model_validate(yaml.safe_load(config)).applications
    settings = Settings.model_validate(application.args)
    assert settings.gpus_per_replica == 1  # whatever Ray has when it reads the file


def test_each_container_has_what_the_server_needs(manifest: dict[str, Any]) -> None:
    cluster = manifest["spec"]["rayClusterConfig"]
    (workers,) = cluster["workerGroupSpecs"]
    config = yaml.safe_load(manifest["spec"]["serveConfigV2"])
    for group in (cluster["headGroupSpec"], workers):
        (container,) = group["template"]["spec"]["containers"]
        env = {each["name"]: each["value"] for each in container["env"]}
        assert env["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"] == DOOR
        assert (env["RAY_USAGE_STATS_ENABLED"], env["RAY_worker_niceness"]) == ("0", "0")
        assert [port["containerPort"] for port in container["ports"]] == [config["http_options"]["port"]]
    assert cluster["authOptions"]["mode"] == "token"
    args = config["applications"][0]["args"]
    cards = int(workers["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
    assert args["replicas"] * args["gpus_per_replica"] <= workers["replicas"] * cards
    versions = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert f"ray=={cluster['rayVersion']}\n" in versions


def test_the_pages_lead_to_it() -> None:
    for page, link in (
        ("docs/server.md", "../examples/kuberay/rayservice.yaml"),
        ("examples/README.md", "kuberay/rayservice.yaml"),
    ):
        assert f"]({link})" in (ROOT / page).read_text(encoding="utf-8")
