"""The table of pipelines in docs/diffusion.md, from the installed diffusers: `python docs/ways.py` writes it anew.

A row for each pipeline that draws from text or edits an image, with the ways in which it can vary one and the numbers
that its call takes. The tests compare the page with what is found here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import diffusers

from adapters.diffusion.description import Description, describe, inputs_of

PAGE = Path(__file__).parent / "diffusion.md"
BEGIN, END = "<!-- python docs/ways.py -->\n", "<!-- end -->"

_OTHERS = re.compile(
    r"Img2Img|Inpaint|Control|PAG|Fill|Prior|Upscale|SuperResolution|Refiner|Audio|Video|Wan|LLaDA|AceStep|Gemma|Latte"
)
"""In the names of pipelines that others stand for, or that do another job."""

_TASKS = {"num_frames", "audio_length_in_s", "audio_end_in_s", "frame_size", "boxes", "adapter_conditioning_scale"}
_OURS = {
    "num_inference_steps",
    "height",
    "width",
    "strength",
    "eta",
    "num_images_per_prompt",
    "callback_steps",
    "max_area",
}
"""Numbers that other settings are for, or that change nothing here."""


def table() -> str:
    """The rows, and a sentence on the pipelines that can only draw."""
    found = dict(sorted(_found()))
    rows = [_row(name, each) for name, each in found.items() if each.ways]
    drawing = [f"`{name}`" for name, each in found.items() if not each.ways]
    head = [
        "| pipeline | noise | instruction | meaning | structure | numbers of its call |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    others = f"Only drawing, so that another model must vary: {', '.join(drawing)}."
    return "\n".join([f"diffusers {diffusers.__version__}:", "", *head, *rows, "", others, ""])


def _found() -> Iterator[tuple[str, Description]]:
    for name in dir(diffusers):
        kind = getattr(diffusers, name) if name.endswith("Pipeline") and not _OTHERS.search(name) else None
        if not isinstance(kind, type) or "deprecated" in kind.__module__:
            continue
        inputs = inputs_of(kind).keys()
        if {"prompt", "image"} & inputs and {"generator", "num_inference_steps"} <= inputs and not _TASKS & inputs:
            described = describe(kind)
            if described.text is kind or described.ways:
                yield name.removesuffix("Pipeline"), described


def _row(name: str, found: Description) -> str:
    adapter = "with `ip_adapter`" if found.meaning is found.prompted_by_images else "yes"
    cells = {"noise": "yes", "instruction": "yes", "meaning": adapter, "structure": "with `controlnet`"}
    ways = [cells[way] if way in found.ways else "" for way in cells]
    known = inputs_of(found.kind).items()
    numbers = [f"`{key}` {each.default:g}" for key, each in known if key not in _OURS and _is_number(each.default)]
    return f"| {name} | {' | '.join(ways)} | {', '.join(numbers)} |"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def written() -> str:
    """The page with the table."""
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(written(), encoding="utf-8")
