"""A set of small colour pictures from the package index: drawn emoji of three makers, 64×64, in nine classes.

FOLDER/private/CLASS/CODE.png               four fifths of the private maker's pictures
FOLDER/test/CLASS/CODE.png                  the other fifth, for tests
FOLDER/public/MAKER-CODE.png                the public makers' pictures, without classes
FOLDER/public-by-class/CLASS/MAKER-CODE.png the same, with them
FOLDER/pictures.json                        what it was made from; written last

Every picture is what its file shows, over white; of a maker's pictures that look the same, pixel by pixel, the first is
kept. A picture is a test picture by a hash of its character's code, so that neither the order nor the version of a
package decides.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from pe.data.decoding import UInt8Array, decode_image
from pe.engine.demo.packages import Package, fetch_package, read_members
from pe.errors import RunError
from pe.progress import Progress
from pe.store.durable import publish_folder, write_durably

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
    maker: Package(f"emoji-datasource-{maker}", "16.0.0", sha256)
    for maker, sha256 in {
        "google": "fb5fd131b362aab7a55542d2a147a79708cce0a8b1c1bbacd470172708b5c438",
        "twitter": "f64a530c63bca463bd8317fdc4615ce63a53a0c65018e4ce2d848aaba7a28877",
        "facebook": "017038cf5a4e7fcf03dd9133cbed43d4c281c4b3ce7b927c7160261b92b8821e",
    }.items()
}

_MADE, _LIST = "pictures.json", "package/emoji.json"
_CODE = re.compile(r"[0-9A-F]{2,6}(-[0-9A-F]{2,6})*")
_TEST_EVERY = 5


@dataclass(frozen=True, eq=False)
class Picture:
    """One base picture of a maker: a character without a skin tone.

    Attributes:
        code: its code points, such as 1f385.
        category: one of CLASSES.
        pixels: uint8, 64×64×3, sRGB.
    """

    code: str
    category: str
    pixels: UInt8Array

    @property
    def is_test(self) -> bool:
        """Whether it is held out: one in five, by a hash of its code."""
        return int.from_bytes(hashlib.sha256(self.code.encode()).digest()[:8]) % _TEST_EVERY == 0


def make_picture_set(
    folder: Path,
    *,
    private: str = "google",
    public: Sequence[str] = ("twitter", "facebook"),
    packages: Mapping[str, Package] = PACKAGES,
    progress: Progress,
) -> Path:
    """Fetch the packages and write the set; a set of the same packages that is there already is left as it is.

    Args:
        folder: where; it must not hold anything else.
        private: the maker whose pictures stand for private ones.
        public: the makers whose pictures are the public pool.
        packages: maker → package.
        progress: told of every package.

    Returns:
        `folder`.

    Raises:
        MissingDependency: npm is not there, or cannot get a package.
        RunError: a package is not the one that is known, or the folder holds something else.
        BadImage: a picture cannot be decoded.
    """
    makers = (private, *public)
    made_from: dict[str, Any] = {
        "private": private,
        "public": list(public),
        "packages": {str(packages[maker]): packages[maker].sha256 for maker in makers},
    }
    if folder.exists() or folder.is_symlink():
        _check_same(folder, made_from)
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as place:
        made = Path(place) / "set"
        with progress.task("fetching pictures", len(makers)) as task:
            for maker in makers:
                archive = fetch_package(packages[maker], Path(place))
                for picture in read_pictures(archive, maker):
                    _write(made, picture, None if maker == private else maker)
                archive.unlink()
                task.advance(1)
        made_from["pictures"] = _count(made)
        write_durably(made / _MADE, (json.dumps(made_from, indent=2) + "\n").encode())
        publish_folder(made, folder)
    return folder


def read_pictures(archive: Path, maker: str) -> Iterator[Picture]:
    """The base pictures of a maker's package, ordered by code, each once.

    Those of the category Component are left out.

    Raises:
        RunError: the package is damaged, or its list is not as known.
        BadImage: a picture cannot be decoded, or is not of 64×64 pixels.
    """
    images = f"package/img/{maker}/{SIDE}/"
    wanted = re.compile(rf"{re.escape(_LIST)}|{images}[0-9a-f-]+\.png")
    files = dict(read_members(archive, lambda name: wanted.fullmatch(name) is not None))
    seen: set[bytes] = set()
    for code, category in sorted(_listed(files.pop(_LIST, b""), maker, archive.name)):
        name = f"{images}{code}.png"
        if name not in files:
            raise RunError(f"{archive.name} lists {code}.png and does not hold it: fetch it anew.")
        pixels = decode_image(files[name], size=(SIDE, SIDE), resize=None, channels=3, name=f"{archive.name}: {name}")
        if pixels.tobytes() not in seen:
            seen.add(pixels.tobytes())
            yield Picture(code, category, pixels)


def _listed(content: bytes, maker: str, archive: str) -> set[tuple[str, str]]:
    """Code and category of every base picture that a package's list says it holds."""
    try:
        entries = [entry for entry in json.loads(content) if entry[f"has_img_{maker}"]]
        found = {(str(entry["unified"]), str(entry["category"])) for entry in entries}
    except (ValueError, TypeError, KeyError) as error:
        raise RunError(f"{archive}: {_LIST} is not the list of pictures that it should be: fetch it anew.") from error
    for code, category in found:
        if not _CODE.fullmatch(code) or category not in (*CLASSES, "Component"):
            raise RunError(f"{archive}: {_LIST} lists {code!r} of {category!r}, which no picture set holds.")
    return {(code.lower(), category) for code, category in found if category in CLASSES}


def _write(folder: Path, picture: Picture, public_of: str | None) -> None:
    """Write a picture to its place, or to both where it is of a public maker."""
    if public_of is None:
        paths = [folder / ("test" if picture.is_test else "private") / picture.category / f"{picture.code}.png"]
    else:
        name = f"{public_of}-{picture.code}.png"
        paths = [folder / "public" / name, folder / "public-by-class" / picture.category / name]
    buffer = io.BytesIO()
    Image.fromarray(picture.pixels).save(buffer, "PNG")
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(buffer.getvalue())


def _count(folder: Path) -> dict[str, int]:
    """Pictures in each part of the set."""
    return {part.name: sum(1 for _ in part.rglob("*.png")) for part in sorted(folder.iterdir()) if part.is_dir()}


def _check_same(folder: Path, made_from: dict[str, Any]) -> None:
    """Check that a folder holds the set that would be made."""
    try:
        found = json.loads((folder / _MADE).read_bytes())
        same = found == made_from | {"pictures": _count(folder)}
    except (OSError, ValueError):
        same = False
    if not same:
        raise RunError(f"{folder} exists and is not this picture set, whole: name another folder, or delete it.")
