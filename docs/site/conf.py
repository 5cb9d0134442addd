"""How Sphinx makes the site of the pages in docs/: `make docs`.

The repository's root is the source folder.

So the links that lead out of docs/ on the repository's host hold in the site, too: to results and
examples as pages, to files of code as downloads. Nothing is loaded from elsewhere: the theme's
script and style are its own.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import pe
from pe.plugins import protocols
from pe.recipe.explain import kinds, page, sections

project = "Private Evolution toolkit"
author = "the authors of the toolkit"
version = release = pe.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/README"
include_patterns = [
    "*.md",
    "docs/**.md",
    "benchmarks/README.md",
    "benchmarks/results/*.md",
    "examples/README.md",
    "published/README.md",
    "adapters/diffusion/small/README.md",
]
exclude_patterns = ["**/.venv*", ".pytest_cache", "build"]

html_theme = "furo"
html_title = "Private Evolution toolkit"
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}

myst_heading_anchors = 4  # as the repository's host makes them
myst_links_external_new_tab = False
highlight_language = "none"
default_role = "literal"

autodoc_class_signature = "mixed"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_use_ivar = True
napoleon_attr_annotations = False  # the signature has the types
napoleon_use_rtype = False

PAGES = {
    "Tutorial": ["tutorial/*", "will-it-work"],
    "Data": ["data", "text"],
    "Generators": ["generators", "endpoints", "diffusion", "methods", "write-your-own"],
    "Runs": [
        "plan",
        "evaluation",
        "handing-on",
        "server",
        "commands",
        "recipe",
        "reference",
        "../examples/README",
    ],
    "Privacy": ["privacy", "proofs", "data-protection"],
    "Results": ["../benchmarks/README", "../published/README"],
    "The project": [
        "install",
        "glossary",
        "architecture",
        "../README",
        "../CONTRIBUTING",
        "../CHANGELOG",
    ],
}
"""The site's menu. A page in none of these lists is a warning, and so an error of the build."""

UNDER = {
    "benchmarks/README": ["results/*"],
    "docs/diffusion": ["../adapters/diffusion/small/README"],
}

ELSEWHERE = re.compile(r"<(?:link|script|img|iframe)\b[^>]*?(?:src|href)=\"(?:https?:)?//[^\"]*\"")


def _menu(entries: list[str], caption: str = "") -> str:
    options = [
        ":hidden:",
        *([f":caption: {caption}"] if caption else []),
        *([":glob:"] if "*" in entries[0] else []),
    ]
    return "\n".join(["", "", "```{toctree}", *options, *entries, "```", ""])


def _names() -> dict[str, list[str]]:
    """Heading → the full names of what stands under it on the page of the API."""
    public = [f"pe.{name}" for name in pe.__all__ if name != "__version__"]
    more = [
        f"{protocols.__name__}.{name}"
        for name, value in vars(protocols).items()
        if (inspect.isclass(value) or inspect.isfunction(value))
        and not name.startswith("_")
        and getattr(value, "__module__", "") == protocols.__name__
        and name not in pe.__all__
    ]
    functions = [name for name in public if inspect.isfunction(getattr(pe, name[3:]))]
    classes = [name for name in public if name not in functions]
    return {
        "Functions of `pe`": functions,
        "Classes of `pe`": classes,
        "More of `pe.plugins.protocols`": more,
    }


def _described(name: str) -> str:
    module, _, last = name.rpartition(".")
    value = getattr(pe if module == "pe" else protocols, last)
    if inspect.isfunction(value):
        return f"```{{eval-rst}}\n.. autofunction:: {name}\n```\n"
    options = "" if dataclasses.is_dataclass(value) and not _methods(value) else "\n   :members:"
    return f"```{{eval-rst}}\n.. autoclass:: {name}{options}\n```\n"


def _methods(kind: type) -> bool:
    return any(
        callable(value) or isinstance(value, property)
        for name, value in vars(kind).items()
        if name[0] != "_"
    )


def _write_recipe(app: Any, config: Any) -> None:
    """Write the page of all keys of a recipe, which is not in git: `pe explain --markdown`."""
    path = Path(app.srcdir, "docs", "recipe.md")
    path.write_text(page([*sections(), *kinds()]) + "\n", encoding="utf-8")


def _complete(app: object, page: str, source: list[str]) -> None:
    """Add to a page what its source, which people read on the repository's host, cannot have:
    menus, the API.
    """
    if page == root_doc:
        source[0] += "".join(_menu(entries, caption) for caption, entries in PAGES.items())
    if page in UNDER:
        source[0] += _menu(UNDER[page])
    if page == "docs/reference":
        for heading, names in _names().items():
            source[0] += f"\n## {heading}\n\n" + "\n".join(map(_described, names))


def _finish(app: Any, exception: Exception | None) -> None:
    """Refuse a site that loads something from elsewhere; lead who opens its folder to its first
    page.
    """
    if exception is None and app.builder.format == "html":
        for path in Path(app.outdir).rglob("*.html"):
            if found := ELSEWHERE.search(path.read_text(encoding="utf-8")):
                raise RuntimeError(
                    f"{path} loads {found[0]}: the site must load nothing from elsewhere."
                )
        line = (
            f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; '
            f'url={root_doc}.html">'
        )
        Path(app.outdir, "index.html").write_text(
            f"{line}<title>{project}</title>\n", encoding="utf-8"
        )


def setup(app: Any) -> None:
    """Sphinx calls this."""
    app.connect("config-inited", _write_recipe)
    app.connect("source-read", _complete)
    app.connect("build-finished", _finish)
