"""Start Ray quietly on this machine alone, or join a cluster that is running."""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

from pe.errors import RecipeError
from pe.plugins.devices import import_library

# environment variables for a Ray that is started here; a cluster that is joined has its own
_OWN = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_worker_niceness": "0",  # else 15: whatever else the machine does would come first
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # a node of its own, on loopback, on any system
}

# Thread limits of this process, hidden from Ray while it starts. Ray itself gives a worker of one
# core one thread.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

_LOOPBACK = ("127.0.0.1", "localhost")

# seconds within which the head of a cluster must answer
_PATIENCE = 10.0


def start_ray(
    address: str | None,
    *,
    extra: str,
    purpose: str,
    environment: Mapping[str, str] | None = None,
    **own: Any,
) -> None:
    """Start Ray on this machine, or join the cluster at `address`.

    A Ray that is started listens on loopback, for holders of this process's token, and has no
    dashboard; its processes also get the variables in `environment`, and `ray.init` the arguments
    `own`. If Ray is missing, the error says that `extra` brings it and that `purpose` needs it.
    """
    if address is not None:
        _check_there(address)
    else:
        os.environ.update({"RAY_AUTH_TOKEN": _token()} | _OWN | dict(environment or {}))
    ray = import_library("ray", extra, purpose)
    logging.getLogger("ray").setLevel(logging.WARNING)
    common: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
    with ray_errors():
        _read_environment()
        if address is None:
            # "local": else it joins a cluster that RAY_ADDRESS or a file of Ray's names
            with _without_threads():
                ray.init(
                    "local", include_dashboard=False, _node_ip_address="127.0.0.1", **common, **own
                )
        else:
            _keep_loopback(address)
            ray.init(address=address, **common)


@contextmanager
def _without_threads() -> Iterator[None]:
    settings = {name: os.environ.pop(name) for name in _THREADS if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(settings)


def _check_there(address: str) -> None:
    """Raise RecipeError if nothing listens at HOST:PORT.

    Ray would wait for it for minutes, and fill the console.
    """
    host, _, port = address.rpartition(":")
    if not port.isdigit() or "/" in host:
        return  # one of Ray's own words for a cluster
    try:
        with socket.create_connection((host, int(port)), timeout=_PATIENCE):
            pass
    except (OSError, OverflowError) as error:
        raise RecipeError(
            f"No Ray cluster answers at {address} ({error}). Use the HOST:PORT that `ray start "
            "--head` printed."
        ) from error


def _keep_loopback(address: str) -> None:
    """Let Ray reach a cluster that listens only on loopback.

    Ray would replace loopback by another address.
    """
    from ray._private import ray_constants, services

    if address.rpartition(":")[0] in _LOOPBACK:
        try:
            _check_there(services.canonicalize_bootstrap_address(address))
        except RecipeError:
            ray_constants.ENABLE_RAY_CLUSTER = False


def _read_environment() -> None:
    """Make Ray read its variables again.

    It reads them only at its first import, which may come before this call.
    """
    import ray
    from ray._private import ray_constants

    library: Any = ray._raylet
    ray_constants.ENABLE_RAY_CLUSTER = ray_constants.env_bool(
        ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR, sys.platform.startswith("linux")
    )
    if (
        os.environ.get("RAY_AUTH_MODE") == "token"
        and library.get_authentication_mode() != library.AuthenticationMode.TOKEN
    ):
        library.Config.initialize(json.dumps({"AUTH_MODE": "token"}))
        library.AuthenticationTokenLoader.instance().reset_cache()


@cache
def _token() -> str:
    """Return the token of this process, the same at every call, because Ray reads it once."""
    return secrets.token_hex(16)


@contextmanager
def ray_errors() -> Iterator[None]:
    """Turn any error of the block, in which Ray is started or joined, into a RecipeError."""
    try:
        yield
    # On a machine that is too busy to start it in time, Ray raises Exception itself.
    except Exception as error:
        why = " ".join(str(error).split())[:200].rstrip(".")
        raise RecipeError(f"Ray cannot be started or joined: {why}.") from error
