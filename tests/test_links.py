"""Every link and picture of the pages that stays in the repository leads to something."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    path
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "examples/*.md",
        "benchmarks/**/*.md",
        "adapters/**/*.md",
    )
    for path in sorted(ROOT.glob(pattern))
]
CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.S | re.M)
LINK = re.compile(
    r"\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)|<(?:img|a)\b[^>]*?(?:src|href)=\"([^\"]+)\""
)


def broken(page: Path) -> Iterator[str]:
    """The links of the page that lead to no file of the repository. `make docs` looks at their
    anchors.
    """
    for match in LINK.finditer(CODE.sub("", page.read_text(encoding="utf-8"))):
        target = match[1] or match[2]
        place = (page.parent / target.partition("#")[0]).resolve() if target[0] != "#" else page
        if not re.match(r"[a-z]+:", target) and not (
            place.is_file() and place.is_relative_to(ROOT)
        ):
            yield target  # a folder too: the site has no page for it


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_link_of_a_page_is_broken(page: Path) -> None:
    assert list(broken(page)) == []
