"""Private Evolution on colour pictures: one maker's emoji are private, those of two others are the
public pool.

    python examples/emoji.py FOLDER [OPTIONS OF pe run, such as --set privacy.epsilon=8]

npm fetches three packages (240 MB) into FOLDER; nothing of them is run. Then `pe run` and `pe
evaluate` follow, six minutes or more. Needs Node.js, and the extras `embeddings` and `evaluation`.
FOLDER holds

    private/CLASS/CODE.png                 four fifths of the private maker's pictures, 64×64
    test/CLASS/CODE.png                    the other fifth, for tests
    public/MAKER-CODE.png                  the public makers' pictures, without classes
    public-by-class/CLASS/MAKER-CODE.png   the same, with them
    recipe.yaml, run/                      a copy of examples/emoji.yaml, and its run
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from pe.data.decoding import decode_image

SIDE = 64
CLASSES = (
    "Activities",
    "Animals & Nature",
    "Flags",
    "Food & Drink",
    "Objects",
    "People & Body",
    "Smileys & Emotion",
    "Symbols",
    "Travel & Places",
)
PACKAGES = {
    "google": "fb5fd131b362aab7a55542d2a147a79708cce0a8b1c1bbacd470172708b5c438",
    "twitter": "f64a530c63bca463bd8317fdc4615ce63a53a0c65018e4ce2d848aaba7a28877",
    "facebook": "017038cf5a4e7fcf03dd9133cbed43d4c281c4b3ce7b927c7160261b92b8821e",
}
"""Maker → SHA-256 of its package emoji-datasource-MAKER, version 16.0.0."""

RECIPE = Path(__file__).with_suffix(".yaml")


class Picture(NamedTuple):
    """A character without a skin tone, as one maker draws it; pixels uint8 (64, 64, 3)."""

    code: str
    category: str
    pixels: np.ndarray

    @property
    def is_test(self) -> bool:
        """True for one in five, by a hash of the code, so that no version of a package decides."""
        return int.from_bytes(hashlib.sha256(self.code.encode()).digest()[:8]) % 5 == 0


def make_picture_set(
    folder: Path,
    private: str = "google",
    public: Sequence[str] = ("twitter", "facebook"),
    packages: Mapping[str, str] = PACKAGES,
) -> Path:
    """Fetch the packages and write the set; a set of the same packages is left as it is."""
    makers = {"private": private, "public": list(public)}
    record = folder / "pictures.json"
    if folder.exists():
        if not record.is_file() or json.loads(record.read_bytes()) != makers:
            sys.exit(
                f"{folder} exists and is not this picture set: name another folder, or delete it."
            )
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as place:
        whole = Path(place) / "set"
        for maker in (private, *public):
            for picture in read_pictures(fetch(maker, packages[maker], Path(place)), maker):
                for path in places(picture, maker, is_private=maker == private):
                    (whole / path).parent.mkdir(parents=True, exist_ok=True)
                    Image.fromarray(picture.pixels).save(whole / path)
        (whole / record.name).write_text(json.dumps(makers))
        whole.rename(folder)
    return folder


def places(picture: Picture, maker: str, is_private: bool) -> list[str]:
    """Paths of a picture in the set."""
    if is_private:
        return [f"{'test' if picture.is_test else 'private'}/{picture.category}/{picture.code}.png"]
    name = f"{maker}-{picture.code}.png"
    return [f"public/{name}", f"public-by-class/{picture.category}/{name}"]


def fetch(maker: str, sha256: str, folder: Path) -> Path:
    """Let npm fetch a maker's package; exit if it is another file than the one that is known."""
    npm = shutil.which("npm")
    if npm is None:
        sys.exit("Fetching the pictures needs npm: install Node.js, which brings it.")
    name = f"emoji-datasource-{maker}"
    print(f"Fetching {name} …", file=sys.stderr)
    command = [
        npm,
        "pack",
        f"{name}@16.0.0",
        "--ignore-scripts",
        "--loglevel=error",
        f"--pack-destination={folder}",
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    archive = folder / f"{name}-16.0.0.tgz"
    with archive.open("rb") as file:
        if (digest := hashlib.file_digest(file, "sha256").hexdigest()) != sha256:
            sys.exit(
                f"What npm gave as {name} has the SHA-256 {digest}, not {sha256}: nothing of it "
                "was used."
            )
    return archive


def read_pictures(archive: Path, maker: str) -> Iterator[Picture]:
    """Yield the base pictures of a package by code, over white, and of equal ones the first."""
    images, files = f"package/img/{maker}/{SIDE}/", {}
    with tarfile.open(archive) as members:
        for member in members:
            if member.name == "package/emoji.json" or member.name.startswith(images):
                files[member.name] = members.extractfile(member).read()
    entries = [
        entry for entry in json.loads(files["package/emoji.json"]) if entry[f"has_img_{maker}"]
    ]
    seen = set()
    for code, category in sorted(
        {(entry["unified"].lower(), entry["category"]) for entry in entries}
    ):
        if category not in CLASSES:  # skin tones by themselves
            continue
        content = files[f"{images}{code}.png"]
        pixels = decode_image(
            content, size=(SIDE, SIDE), resize=None, channels=3, name=f"{archive.name}: {code}.png"
        )
        if pixels.tobytes() not in seen:
            seen.add(pixels.tobytes())
            yield Picture(code, category, pixels)


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
    folder = make_picture_set(arguments.folder)
    recipe = Path(shutil.copy(RECIPE, folder / "recipe.yaml"))
    pe("run", recipe, "--out", folder / "run", *options)
    pe(
        "evaluate",
        folder / "run",
        "--test",
        folder / "test",
        "--metrics",
        "judgement",
    )


if __name__ == "__main__":
    main()
