"""What two runs show to the world, compared byte by byte: where noisy votes are held equal, all of
it must be equal.
"""

import json
from pathlib import Path

from pe.privacy.covered import CERTIFICATES, CONFIDENTIAL


def compare_surfaces(first: Path, second: Path) -> list[str]:
    """The names of files, folders and links in which the shareable sides of two runs differ,
    sorted.

    `confidential/` at the top is left out, and in the certificates the run's own name, once. Times
    are not compared.
    """
    one, other = entries(first), entries(second)
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def entries(folder):
    paths = [
        path for path in folder.rglob("*") if path.relative_to(folder).parts[0] != CONFIDENTIAL
    ]
    return {path.relative_to(folder).as_posix(): _content(path, folder) for path in paths}


def _content(path, folder):
    if path.is_symlink():
        return f"a link to {path.readlink()}"
    if not path.is_file():
        return "a folder"
    content = path.read_bytes()
    if path.relative_to(folder).as_posix() in CERTIFICATES:
        for stated in (
            f'"run": {json.dumps(folder.name, ensure_ascii=False)}',
            f"Run `{folder.name}`.",
        ):
            content = content.replace(stated.encode(), b"the run", 1)
    return content
