"""An export, put on Hugging Face's hub as a data set."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pe.errors import APIError, MissingDependency, RecipeError, RunError, printable
from pe.privacy.covered import CERTIFICATES, SIGNED
from pe.store.certified import digests, is_export
from pe.store.export import examine

_EMPTY = frozenset({".gitattributes"})
"""What the hub itself puts into a new repository."""


def push(folder: Path, to: str, *, public: bool = False) -> str:
    """Put the export in `folder` into the new or empty data-set repository `to`, whole, in one commit.

    What is checked first is all that `pe privacy` checks; what goes is what the certificate covers, the certificate and
    its signature, and nothing else. The token is HF_TOKEN's, or that of `hf auth login`; the hub is HF_ENDPOINT's.

    Args:
        folder: an export's.
        to: `owner/name`.
        public: whether everybody may read it at once; else only the owner.

    Returns:
        The repository's address.

    Raises:
        RunError: `folder` is no export, or not as it was certified.
        RecipeError: `to` is no repository's name, or there is no token.
        APIError: the hub refused, cannot be reached, or has files there already.
        MissingDependency: huggingface_hub is not installed.
    """
    if not is_export(folder):
        raise RunError(f"{folder} is no export: `pe export RUN --to FOLDER --format huggingface` makes one.")
    certificate, problems = examine(folder)
    if problems:
        raise RunError(f"{folder} is not as it was certified and is not pushed: {problems[0]}")
    names = [*digests(certificate), *CERTIFICATES, *([SIGNED] if (folder / SIGNED).is_file() else [])]
    hub, errors = _hub()
    try:
        address = str(hub.create_repo(to, repo_type="dataset", private=not public, exist_ok=True))
        found = hub.repo_info(to, repo_type="dataset")
        if not (public or found.private):
            raise APIError(f"{address} is public already: say --public, or name a new repository.")
        there = {one.rfilename for one in found.siblings or ()} - _EMPTY
        if there:
            raise APIError(f"{address} has files already ({printable(sorted(there)[0])}): name a new repository.")
        added = _additions(folder, sorted(names))
        hub.create_commit(to, added, commit_message=_message(certificate), repo_type="dataset")
    except errors as error:
        raise _refused(error, to) from error
    return address


def _hub() -> tuple[Any, tuple[type[Exception], ...]]:
    """The hub, and the errors by which it says that it cannot."""
    try:
        import httpx2
        from huggingface_hub import HfApi, get_token
    except ImportError as error:
        raise MissingDependency.of("huggingface_hub", "http", "Pushing to the hub") from error
    token = get_token()
    if token is None:
        raise RecipeError("There is no token for the hub: set HF_TOKEN, or call `hf auth login`.")
    # of names and of the card's head: ValueError; of answers, and of HF_HUB_OFFLINE: OSError; of uploads: RuntimeError
    errors = (ValueError, OSError, RuntimeError, httpx2.HTTPError)
    return HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=token), errors


def _additions(folder: Path, names: list[str]) -> list[Any]:
    from huggingface_hub import CommitOperationAdd

    return [CommitOperationAdd(path_in_repo=name, path_or_fileobj=folder / name) for name in names]


def _message(certificate: dict[str, Any]) -> str:
    from pe.privacy.words import guarantee

    total = guarantee(certificate["epsilon"], certificate["delta"]) if certificate["holds"] else "no guarantee"
    return f"Add {printable(certificate['run'])} ({total})"


def _refused(error: Exception, to: str) -> APIError | RecipeError:
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if isinstance(error, HFValidationError):
        return RecipeError(f"--to: '{printable(to)}' is no name of a repository: give owner/name.")
    if isinstance(error, HfHubHTTPError):
        told = printable(error.server_message or "without a reason")
        status = error.response.status_code
        return APIError(f"The hub answered {status} ({told}): see whether the token may write to {printable(to)}.")
    first = str(error.__cause__ or error).split("\n")[0] or type(error).__name__
    return APIError(f"Nothing was committed to {printable(to)} ({printable(first)}): push again.")
