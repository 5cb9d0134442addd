"""Fonts that have the letters of a text: Pillow's own, or one that is installed on this machine."""

from __future__ import annotations

import os
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path

from PIL import ImageFont

_PROBE = 24  # pixels; the size at which coverage is looked at
_FOLDERS = (
    *("/usr/share/fonts", "/usr/local/share/fonts", "~/.local/share/fonts", "~/.fonts"),  # Linux
    *("/System/Library/Fonts", "/Library/Fonts", "~/Library/Fonts"),  # macOS
    "$WINDIR/Fonts",
)
_STYLES = (
    "bold",
    "italic",
    "oblique",
    "light",
    "thin",
    "black",
    "condensed",
    "mono",
    "serif",
    "math",
)


def font_for(text: str, size: int) -> ImageFont.FreeTypeFont | None:
    """Return a font that has all letters of `text`, `size` pixels high, or None.

    Pillow's own font, for Latin letters, comes first. Then come the fonts installed on this
    machine, upright ones of common weight first.
    """
    own = ImageFont.load_default(size=size)
    if isinstance(own, ImageFont.FreeTypeFont) and _has(own, text):
        return own
    return next(
        (ImageFont.truetype(path, size) for path in installed_fonts() if draws(path, text)),
        None,
    )


@cache
def installed_fonts() -> tuple[Path, ...]:
    """Return the font files of this machine, including matplotlib's, plain ones first."""
    folders = [Path(os.path.expandvars(folder)).expanduser() for folder in _FOLDERS]
    spec = find_spec("matplotlib")
    if spec is not None and spec.origin is not None:
        folders.append(Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf")
    files = (path for folder in folders if folder.is_dir() for path in folder.rglob("*"))
    return tuple(
        sorted(
            (path for path in files if path.suffix.lower() in (".ttf", ".otf", ".ttc")),
            key=_plain,
        )
    )


@lru_cache(maxsize=4096)
def draws(path: Path, text: str) -> bool:
    """Return True if the font has real glyphs for all of `text`.

    The glyphs are drawn, because character maps promise more than they hold: placeholder fonts draw
    adjacent characters alike, and symbol fonts put symbols in the places of letters and of the
    space. A file that cannot be read has no glyphs.
    """
    try:
        return _has(ImageFont.truetype(path, _PROBE), text)
    except (OSError, ValueError):
        return False


def _has(font: ImageFont.FreeTypeFont, text: str) -> bool:
    missing = _look(font, "\uffff")
    if font.getlength(" ") <= 0 or font.getmask(" ").getbbox():
        return False
    for character in set(text) - {" "}:
        look = _look(font, character)
        if not font.getmask(character).getbbox() or look in (
            missing,
            _look(font, chr(ord(character) ^ 1)),
        ):
            return False
    return True


def _look(font: ImageFont.FreeTypeFont, character: str) -> tuple[tuple[int, int], bytes]:
    mask = font.getmask(character)
    return mask.size, bytes(mask)


def _plain(path: Path) -> tuple[int, int, str]:
    name = path.stem.lower().replace("sansserif", "").replace("sans-serif", "")
    return sum(style in name for style in _STYLES), len(name), str(path)
