"""Every link and picture of the pages that stays in the repository leads to something."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/*.md", "benchmarks/**/*.md", "adapters/**/*.md")
    for path in sorted(ROOT.glob(pattern))
]
CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.S | re.M)
LINK = re.compile(r"\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)|<(?:img|a)\b[^>]*?(?:src|href)=\"([^\"]+)\"")


@cache
def anchors(page: Path) -> frozenset[str]:
    """The names that the repository's host, and the site, give to the page's headings."""
    prose = re.sub(r"^(```|~~~).*?^\1", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    seen: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#{1,6}\s+(.+?)\s*#*$", prose, re.M):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return frozenset(found)


def broken(page: Path) -> Iterator[str]:
    """The links of the page that lead nowhere, into nothing that is published, or to a folder."""
    for match in LINK.finditer(CODE.sub("", page.read_text(encoding="utf-8"))):
        target = match[1] or match[2]
        if re.match(r"[a-z]+:", target):
            continue
        place, _, anchor = target.partition("#")
        there = (page.parent / place).resolve() if place else page
        if not there.is_file() or not there.is_relative_to(ROOT):
            yield target  # a folder too: the site has no page for it
        elif anchor and (there.suffix != ".md" or anchor not in anchors(there)):
            yield target


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_link_of_a_page_is_broken(page: Path) -> None:
    assert list(broken(page)) == []


def test_a_broken_link_and_a_broken_anchor_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.test_links.ROOT", tmp_path)
    (tmp_path / "other.md").write_text("# A word, `code` and more\n\n## Twice\n\n## Twice\n")
    good = "[a](other.md) [b](other.md#a-word-code-and-more) [c](other.md#twice-1) [d](https://x.org/y) `[e](f.md)`"
    bad = ["gone.md", "other.md#a-word", "other.md#twice-2", "#here", "../outside.md", ".", "picture.png"]
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n{good}\n\n" + " ".join(f"[x]({target})" for target in bad))
    assert list(broken(page)) == bad
