"""What a pipeline of diffusers takes and in which ways it can vary an image, found by looking at its class.

A class's call says what it takes, its constructor which parts it has. No weights are read.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pe.errors import RecipeError

Way = Literal["noise", "instruction", "meaning", "structure"]
"""How an image is varied: noised and denoised; edited as told in words; drawn anew from what it means, or from its
lines."""

_HELD = {"meaning": "what the parent shows", "structure": "the parent's structure"}
"""What of the parent weighs 1 − degree."""

_OTHER_TASKS = {
    "mask_image",
    "control_image",
    "controlnet_conditioning_scale",
    "adapter_conditioning_scale",
    "noise_level",
    "num_frames",
}
"""Inputs of pipelines that fill in, follow a control image, enlarge, or make videos."""


@dataclass(frozen=True)
class Description:
    """The pipelines that one set of weights serves.

    Attributes:
        kind: the pipeline that the model's index names.
        text: draws new images from text; None: diffusers has none for these weights.
        noise: img2img with a strength; None: there is none.
        instruction: edits an image as told; None: there is none.
        structure: follows a ControlNet; None: there is none.
    """

    kind: type
    text: type | None
    noise: type | None
    instruction: type | None
    structure: type | None

    @property
    def prompted_by_images(self) -> type | None:
        """Draws from text, and with an IP-Adapter from an image beside it; None: diffusers has none."""
        return self.text if self.text and "ip_adapter_image_embeds" in inputs_of(self.text) else None

    @property
    def meaning(self) -> type | None:
        """Draws from what an image means: with an IP-Adapter, from its own prior's embedding, or in place of a text."""
        own = has_prior(self.kind) or _is_image_variation(self.kind)
        return self.kind if own else self.prompted_by_images

    @property
    def ways(self) -> tuple[Way, ...]:
        """What these weights, or adapters over them, can do: first what the pipeline that they name does by itself."""
        able = [way for way in get_args(Way) if self._of(way) is not None]
        return tuple(sorted(able, key=lambda way: self._of(way) is not self.kind))

    def of(self, way: Way) -> type:
        """The class that varies this way, which is one of `ways`."""
        found = self._of(way)
        assert found is not None
        return found

    def _of(self, way: Way) -> type | None:
        found: type | None = getattr(self, way)
        return found


def degree_of(way: Way) -> Literal["exact", "wording"]:
    """How a degree is obeyed."""
    return "wording" if way == "instruction" else "exact"


def describe_weight(way: Way, degree: float) -> str:
    """What a degree means where something of the parent weighs 1 − degree."""
    return f"drawn anew, with a weight of {1 - degree:g} for {_HELD[way]}"


def describe(kind: type) -> Description:
    """What a class of pipelines, and those over the same parts, can do."""
    text = _text(kind)
    return Description(kind, text, _noise(kind, text), _instruction(kind), text and _structure(text))


def class_of(name: str, model: str) -> type:
    """The class that a model's index names.

    Raises:
        RecipeError: diffusers has no such class.
    """
    import diffusers

    found = getattr(diffusers, name, None)
    if not (isinstance(found, type) and issubclass(found, diffusers.DiffusionPipeline)):
        raise RecipeError(
            f"model: '{model}' is made for {name}, which diffusers {diffusers.__version__} has not: take a newer "
            "diffusers, or name your own class under pipeline (module:Class)."
        )
    return found


def inputs_of(kind: type) -> Mapping[str, inspect.Parameter]:
    """What a pipeline's call takes."""
    return inspect.signature(kind.__call__).parameters


def parts_of(kind: type) -> Mapping[str, inspect.Parameter]:
    """What a pipeline is made of, and its options."""
    return inspect.signature(kind).parameters


def has_prior(kind: type) -> bool:
    """Whether the pipeline first draws an image's embedding from the text, which may be an image's own as well."""
    return {"prior_prior", "prior_image_encoder", "prior_image_processor"} <= parts_of(kind).keys()


def over(kind: type, pipeline: Any, **more: Any) -> Any:
    """A pipeline of this class with the parts and options of another.

    Raises:
        ValueError: the other lacks a part.
    """
    if kind is type(pipeline) and not more:
        return pipeline
    known = dict(pipeline.config) | pipeline.components
    wanted = parts_of(kind)
    given = {name: known[name] for name in wanted if name in known} | more
    lacking = [name for name, part in wanted.items() if name not in given and part.default is part.empty]
    if lacking:
        raise ValueError(f"{kind.__name__} needs {', '.join(lacking)} besides what {type(pipeline).__name__} has")
    return kind(**given)


def _text(kind: type) -> type | None:
    """The class that diffusers names for text to image; else this one; else one that takes the same parts."""
    known = _known("AUTO_TEXT2IMAGE_PIPELINES_MAPPING")
    linked = _linked(known, kind)
    if linked is not None:
        return linked
    inputs = inputs_of(kind)
    if "prompt" in inputs and not {"image", "images"} & inputs.keys():
        return kind
    if "prompt" not in inputs or _expects_more_channels(kind):
        return None
    return next((other for other in known.values() if _same_parts(other, kind)), None)


def _noise(kind: type, text: type | None) -> type | None:
    """The class that diffusers links, or that is named after it, or this one itself."""
    import diffusers

    linked = _linked_of(_known("AUTO_IMAGE2IMAGE_PIPELINES_MAPPING"), kind)
    stem = (text or kind).__name__.removesuffix("Pipeline").removesuffix("Img2Img")
    named = getattr(diffusers, f"{stem}Img2ImgPipeline", None)
    return next((each for each in (linked, named, kind) if each and _takes(each, "strength")), None)


def _instruction(kind: type) -> type | None:
    linked = _linked_of(_known("AUTO_IMAGE2IMAGE_PIPELINES_MAPPING"), kind)
    return next((each for each in (kind, linked) if each and _takes(each, "prompt", "strength")), None)


def _structure(text: type) -> type | None:
    from diffusers.pipelines import auto_pipeline

    known = _known("AUTO_TEXT2IMAGE_PIPELINES_MAPPING")
    return known.get(f"{auto_pipeline._get_model(text.__name__)}-controlnet")


def _takes(kind: type, wanted: str, unwanted: str = "") -> bool:
    """Whether a call varies an image, with this input and without that one."""
    inputs = inputs_of(kind)
    return {"image", wanted} <= inputs.keys() and not (_OTHER_TASKS | {unwanted}) & inputs.keys()


def _is_image_variation(kind: type) -> bool:
    inputs = inputs_of(kind)
    return "image" in inputs and "prompt" not in inputs and "image_encoder" in parts_of(kind)


def _same_parts(other: type, kind: type) -> bool:
    """Whether one class is made of parts of the other, of the same types."""
    theirs, ours = parts_of(other), parts_of(kind)
    needed = [name for name, part in theirs.items() if part.default is part.empty]
    return (
        bool({"transformer", "unet"} & set(needed))
        and not {"image", "images"} & inputs_of(other).keys()
        and all(name in ours and ours[name].annotation == theirs[name].annotation for name in needed)
    )


def _expects_more_channels(kind: type) -> bool:
    """Whether the network takes the parent's latents beside the noise, so that text alone cannot drive it."""
    return "image_guidance_scale" in inputs_of(kind)


def _known(mapping: str) -> Mapping[str, type]:
    from diffusers.pipelines import auto_pipeline

    found: Mapping[str, type] = getattr(auto_pipeline, mapping)
    return found


def _linked_of(mapping: Mapping[str, type], kind: type) -> type | None:
    """The same for a class of one's own, by what it inherits from."""
    found = (_linked(mapping, each) for each in kind.__mro__)
    return next((each for each in found if each is not None), None)


def _linked(mapping: Mapping[str, type], kind: type) -> type | None:
    """What diffusers' own Auto classes would take for this one."""
    from diffusers.pipelines import auto_pipeline

    found: type | None = auto_pipeline._get_task_class(mapping, kind.__name__, throw_error_if_not_exist=False)
    return found
