"""The Ray Serve application: an ingress and the replicas of the engine behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ray
from ray import serve
from ray.serve import Application

from adapters.server.ingress import Ingress
from adapters.server.replica import Replica
from adapters.server.settings import Settings

_UNDER_WAY = 4096
"""Requests that Ray hands to one actor at once: the bounds are ours, in `service`, and these must lie above."""

_BUSY = 4.0
"""Parts under way at a replica, on the average, beyond which there should be another."""


def build(settings: Settings) -> Application:
    """The application; Ray calls it with the `args` of a file for `serve deploy`."""
    settings = with_room(settings, ray.cluster_resources())
    given = settings.model_dump(mode="json")
    drain = settings.limits.seconds
    common: dict[str, Any] = {"graceful_shutdown_timeout_s": drain, "graceful_shutdown_wait_loop_s": 0.2}
    scaling: dict[str, Any] = {"num_replicas": settings.replicas}
    if settings.replicas is None:
        bounds = {"min_replicas": 1, "max_replicas": settings.max_replicas, "target_ongoing_requests": _BUSY}
        scaling = {"num_replicas": "auto", "autoscaling_config": bounds}
    engine = serve.deployment(
        Replica,
        name="engine",
        max_ongoing_requests=_UNDER_WAY,
        ray_actor_options={"num_cpus": settings.cpus_per_replica, "num_gpus": settings.gpus_per_replica},
        health_check_period_s=1,
        max_constructor_retry_count=2,  # a model that cannot be loaded is said soon
        **scaling,
        **common,
    )
    ingress = serve.deployment(
        serve.ingress()(Ingress),
        name="ingress",
        num_replicas=1,
        max_ongoing_requests=_UNDER_WAY,
        max_queued_requests=_UNDER_WAY,
        ray_actor_options={"num_cpus": 0},
        health_check_period_s=1,
        **common,
    )
    return ingress.bind(given, engine.bind(given))


def with_room(settings: Settings, resources: Mapping[str, float]) -> Settings:
    """`settings` with what there is room for where they name nothing: cards, replicas, cores.

    Args:
        settings: as given.
        resources: of the cluster: GPU, CPU.
    """
    cards, cores = resources.get("GPU", 0.0), max(1.0, resources.get("CPU", 1.0) - 1)  # one for Ray and the ingress
    gpus = settings.gpus_per_replica
    gpus = (1.0 if cards else 0.0) if gpus is None else gpus
    most = settings.max_replicas or (max(1, int(cards / gpus)) if gpus else 1)
    share = cores / (settings.replicas or most)
    share = settings.cpus_per_replica or (float(int(share)) if share >= 1 else share)  # Ray takes no 1.5
    return settings.model_copy(update={"gpus_per_replica": gpus, "max_replicas": most, "cpus_per_replica": share})
