"""The Ray Serve application: one deployment and its replicas, here or on a running cluster."""

from __future__ import annotations

import logging
import re
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from adapters.server.checks import ServeSettings
from pe.errors import MissingDependency, RecipeError
from pe.plugins.start_ray import ray_errors, start_ray

if TYPE_CHECKING:
    from ray.serve import Application

APP = "pe"
IMPORT_PATH = "adapters.server.deploy:build"
MIDDLEWARES = "adapters.server.errors:middlewares"
LOGGING = {"encoding": "JSON", "enable_access_log": False}

# environment of Ray's processes, if they are started here
_START = {
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": MIDDLEWARES,
    "RAY_SERVE_LOG_TO_STDERR": "0",
    # of each of 3 checks before Ray kills a proxy; 5 by default
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "100",
}

# seconds for Ray's first HTTP proxy to come up
_PATIENCE = 300.0

_CLASS = re.compile(r"^[\w.]*Error: ")

# requests that Ray hands to one replica at once: more than `RequestLimits` allows, so that those
# apply first
_ONGOING = 4096

# average requests under way at a replica, above which Ray should start another one
_BUSY = 2.0


def build(settings: ServeSettings | Mapping[str, Any]) -> Application:
    """Return the application.

    Ray passes the unchecked `args` of a file for `serve deploy`.
    """
    import ray
    from ray import serve

    from adapters.server.server import Server

    settings = ServeSettings.model_validate(settings)
    gpus, cores, most = room_for(settings, ray.cluster_resources())
    content = settings.model_copy(update={"gpus_per_replica": gpus}).model_dump(mode="json")
    deployment = serve.deployment(
        serve.ingress()(Server),
        autoscaling_config={
            "min_replicas": settings.replicas or 1,
            "max_replicas": settings.replicas or most,
            "target_ongoing_requests": _BUSY,
        },
        ray_actor_options={"num_cpus": cores, "num_gpus": gpus},
        max_constructor_retry_count=2,  # a model that cannot be loaded is said soon
        max_ongoing_requests=_ONGOING,
        health_check_period_s=1,
        graceful_shutdown_timeout_s=settings.limits.seconds,
        graceful_shutdown_wait_loop_s=0.2,
    )
    return deployment.bind(content)


def room_for(settings: ServeSettings, resources: Mapping[str, float]) -> tuple[float, float, int]:
    """Return a replica's GPUs and cores, and the most replicas that the cluster has room for."""
    cards = resources.get("GPU", 0.0)
    cores = max(1.0, resources.get("CPU", 1.0) - 1)  # one for Ray
    gpus = min(1.0, cards) if settings.gpus_per_replica is None else settings.gpus_per_replica
    most = max(1, int(cards / gpus)) if gpus else 1
    share = cores / (settings.replicas or most)
    return gpus, int(share) or share, most  # Ray takes no 1.5 cores


def start(address: str | None, host: str, port: int) -> None:
    """Start Ray on this machine or join the cluster at `address`, and start Serve.

    Serve listens on `host` and `port`.
    """
    if address is None:
        try:
            # Ray's own words for a port that is taken fill a page.
            with socket.create_server((host, port)):
                pass
        except OSError as error:
            raise RecipeError(
                f"{host}:{port} cannot be used ({error.strerror}): take another --port."
            ) from error
    start_ray(
        address,
        extra="server",
        purpose="A diffusion server",
        environment=_START,
    )
    try:
        from ray import serve
    except ImportError as error:  # Ray is there without it
        raise MissingDependency.of("ray[serve]", "server", "A diffusion server") from error
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    options = {"host": host, "port": port}
    place = "HeadOnly" if address is None else "EveryNode"
    # Serve waits a minute for its proxies, and `deploy` waits longer.
    with ray_errors(), suppress(TimeoutError):
        serve.start(proxy_location=place, http_options=options, logging_config=LOGGING)


def deploy(settings: ServeSettings) -> None:
    """Return when all replicas, and a proxy of Ray's, can answer.

    Raises:
        RecipeError: they cannot, with the reason.
    """
    from ray import serve

    try:
        serve.run(build(settings), name=APP, route_prefix="/", logging_config=LOGGING)
    except RuntimeError as error:
        raise RecipeError(f"The server cannot start: {_reason() or error}.") from error
    deadline = time.monotonic() + _PATIENCE
    # One is enough, because proxies on hosts without a replica are drained.
    while "HEALTHY" not in serve.status().proxies.values():
        if time.monotonic() > deadline:
            raise RecipeError(
                "The server cannot start: Ray's HTTP proxy did not come up within "
                f"{_PATIENCE:g} seconds. Try again when the machine is less busy."
            )
        time.sleep(0.2)


def stop(patience: float) -> None:
    """Take no more requests, let those under way finish, then end Ray or leave its cluster.

    The wait takes at most `patience` seconds.
    """
    import ray
    from ray import serve

    deadline = time.monotonic() + patience
    try:
        serve.delete(APP, _blocking=False)
        while APP in serve.status().applications and time.monotonic() < deadline:
            time.sleep(0.2)
    finally:
        ray.shutdown()


def _reason() -> str:
    """Return the last error of the deployment, or an empty text."""
    from ray import serve

    status = serve.status().applications.get(APP)
    messages = [deployment.message for deployment in status.deployments.values()] if status else []
    lines = [line.strip() for line in "\n".join(messages).splitlines() if "Error" in line]
    return _CLASS.sub("", lines[-1]).rstrip(".") if lines else ""
