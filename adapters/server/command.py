"""`pe serve`: a diffusion model over HTTP."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from pe.errors import RecipeError
from pe.plugins.devices import Precision

if TYPE_CHECKING:
    from adapters.server.checks import ServeSettings

# settings that hold paths or repositories of models; in a `lora` with weights they are the keys
_PLACES = (
    *("model", "variation_model", "controlnet", "single_file", "components", "lora"),
    "pretrained_model_name_or_path_or_dict",  # in ip_adapter
)


@click.command()
@click.argument("model")
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set one of the local generator's settings, in YAML.",
)
@click.option(
    "--replicas", default="auto", show_default=True, metavar="N|auto", help="Copies of the model."
)
@click.option(
    "--gpus-per-replica", type=float, help="May be a share of one, or 0; 1 where there are GPUs."
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; any but loopback needs a key.",
)
@click.option("--port", type=int, default=8000, show_default=True)
@click.option(
    "--max-batch", type=click.IntRange(1), help="Images per forward pass; as many as memory takes."
)
@click.option(
    "--api-key-env",
    metavar="NAME",
    help="The variable with the API key, or several between commas.",
)
@click.option(
    "--precision", type=click.Choice(get_args(Precision)), default="auto", show_default=True
)
@click.option(
    "--steps",
    type=click.IntRange(1),
    default=50,
    show_default=True,
    help="Default steps of a request.",
)
@click.option("--guidance", type=float, help="Default guidance of a request.")
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME=N",
    help="Change a limit; docs/server.md lists them.",
)
@click.option("--address", help="Ray cluster to join; without it Ray is started on this machine.")
@click.option(
    "--print-config", is_flag=True, help="Print a file for `serve deploy`, and start nothing."
)
def serve(
    model: str,
    changes: tuple[str, ...],
    replicas: str,
    host: str,
    port: int,
    api_key_env: str | None,
    limits: tuple[str, ...],
    address: str | None,
    print_config: bool,
    **options: Any,
) -> None:
    """Serve MODEL, a diffusion model of your own, over HTTP.

    MODEL is `small`, a folder in diffusers' format, a checkpoint, or OWNER/NAME of the hub. It
    answers OpenAI's images API, and POST /v1/batch/images for thousands. Ctrl-C stops it after all
    requests are answered.
    """
    from adapters.server import deploy
    from adapters.server.checks import ServeSettings, is_loopback
    from adapters.server.models import SMALL, check_model
    from pe.plugins.settings import read_settings

    digests = _digests(api_key_env)
    if not digests and not is_loopback(host):
        raise RecipeError(
            f"--host {host} lets others in. Name the variable that has a key: --api-key-env NAME."
        )
    content = options | {
        "model": model if model == SMALL else _absolute("model", model),
        "generator": _generator(changes),
        "replicas": None if replicas == "auto" else replicas,
        "key_digests": digests,
        "limits": dict(_pair("--limit", text, "NAME=N, as images=512") for text in limits),
    }
    settings = read_settings(ServeSettings, content, "pe serve")
    check_model(settings)
    if print_config:
        click.echo(_config(settings, host, port), nl=False)
        return
    click.echo(f"Starting {model} …", err=True)
    deploy.start(address, host, port)
    try:
        deploy.deploy(settings)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # in place of Ray's
        click.echo(
            f"Serving {model} at http://{host}:{port} (metrics at /metrics). Ctrl-C ends it.",
            err=True,
        )
        threading.Event().wait()
    except KeyboardInterrupt:
        click.echo(
            "Ending when the requests under way are answered; once more to end at once.", err=True
        )
    finally:
        deploy.stop(settings.limits.seconds)


def _digests(name: str | None) -> list[str]:
    """Return the digests of the keys in the environment variable `name`."""
    from adapters.server.checks import digest_of

    if name is None:
        return []
    keys = [key.strip() for key in os.environ.get(name, "").split(",") if key.strip()]
    if not keys:
        raise RecipeError(
            f"--api-key-env: the environment variable {name} is not set. Export a key in it."
        )
    if any(len(key) < 16 for key in keys):
        raise RecipeError(
            f"{name} has a key of fewer than 16 characters. Use a longer one that nobody can guess."
        )
    return [digest_of(key) for key in keys]


def _pair(option: str, text: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise RecipeError(f"{option} {text}: write {form}.")
    return name, value


def _config(settings: ServeSettings, host: str, port: int) -> str:
    """Return a file for `serve deploy`."""
    import yaml

    from adapters.server import deploy

    args = settings.model_dump(mode="json", exclude_defaults=True)
    content = {
        "proxy_location": "EveryNode",
        "http_options": {"host": host, "port": port},
        "logging_config": deploy.LOGGING,
        "applications": [
            {
                "name": deploy.APP,
                "route_prefix": "/",
                "import_path": deploy.IMPORT_PATH,
                "args": args,
            }
        ],
    }
    return yaml.safe_dump(content, sort_keys=False)


def _generator(changes: Sequence[str]) -> dict[str, Any]:
    """Return the settings of `--set NAME=VALUE`.

    Paths become absolute, because replicas run in other folders.
    """
    import yaml

    settings: dict[str, Any] = {}
    for text in changes:
        name, value = _pair("--set", text, "NAME=VALUE, as vary=meaning")
        if name in settings:
            raise RecipeError(f"--set {name} is given twice. Remove one.")
        try:
            settings[name] = _absolute(name, yaml.safe_load(value))
        except (yaml.YAMLError, RecursionError) as error:
            raise RecipeError(
                f"--set {name}: '{value}' is not YAML. Put quotes around a text with : or #."
            ) from error
    return settings


def _absolute(name: str, value: Any) -> Any:
    """Return the value of setting `name`, with existing paths made absolute."""
    if isinstance(value, list):
        return [_absolute(name, each) for each in value]
    if isinstance(value, dict):
        is_keyed_by_place = name == "lora"
        return {
            _absolute(name, key) if is_keyed_by_place else key: _absolute(
                key if name == "ip_adapter" else name, each
            )
            for key, each in value.items()
        }
    path = Path(value).expanduser() if name in _PLACES and isinstance(value, str) else None
    return str(path.resolve()) if path is not None and path.exists() else value
