"""The list of pipelines in docs/diffusion.md, from the installed diffusers: `python docs/ways.py`
writes it anew.

It names, for each way to vary an image, the pipelines that can. The tests compare the page with
what is found here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import diffusers

from adapters.diffusion.description import Description, describe_pipeline, inputs_of

PAGE = Path(__file__).parent / "diffusion.md"
BEGIN, END = "<!-- python docs/ways.py -->\n", "<!-- end -->"

WAYS = ("noise", "instruction", "meaning", "structure")

_OTHERS = re.compile(
    r"Img2Img|Inpaint|Control|PAG|Fill|Prior|Upscale|SuperResolution|Refiner|Audio|Video|Wan|LLaDA|AceStep|Gemma|Latte"
)
"""In the names of pipelines that others stand for, or that do another job."""

_TASKS = {
    "num_frames",
    "audio_length_in_s",
    "audio_end_in_s",
    "frame_size",
    "boxes",
    "adapter_conditioning_scale",
}


def table() -> str:
    """A line for each way to vary an image."""
    found = dict(sorted(_found()))
    lines = [
        f"- `{way}`: " + ", ".join(name for name, each in found.items() if way in each.ways)
        for way in WAYS
    ]
    return "\n".join([f"diffusers {diffusers.__version__}:", "", *lines, ""])


def _found() -> Iterator[tuple[str, Description]]:
    for name in dir(diffusers):
        kind = (
            getattr(diffusers, name)
            if name.endswith("Pipeline") and not _OTHERS.search(name)
            else None
        )
        if not isinstance(kind, type) or "deprecated" in kind.__module__:
            continue
        inputs = inputs_of(kind).keys()
        if (
            {"prompt", "image"} & inputs
            and {"generator", "num_inference_steps"} <= inputs
            and not _TASKS & inputs
        ):
            described = describe_pipeline(kind)
            if described.ways:
                yield name.removesuffix("Pipeline"), described


def written() -> str:
    """The page with the list."""
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(written(), encoding="utf-8")
