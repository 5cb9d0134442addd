"""The ways in which a diffusers pipeline can vary an image.

They are read from the signatures of its class, not from weights.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pe.errors import RecipeError

Way = Literal["noise", "instruction", "meaning", "structure"]
"""Ways to vary a parent: noise and denoise it, edit it by words, or draw a new image from its
meaning or its lines."""

Inputs = Mapping[str, inspect.Parameter]
"""The parameters of a pipeline's call, or of its constructor, by name."""

_TEXT = "AUTO_TEXT2IMAGE_PIPELINES_MAPPING"
_IMAGE = "AUTO_IMAGE2IMAGE_PIPELINES_MAPPING"
# inputs that only pipelines for other tasks have: to fill a gap, follow a control image, enlarge,
# or make videos
_OTHER_TASKS = {
    "mask_image",
    "control_image",
    "controlnet_conditioning_scale",
    "adapter_conditioning_scale",
    "noise_level",
    "num_frames",
}


@dataclass(frozen=True)
class Description:
    """The pipeline classes that can run one set of weights.

    None means that diffusers has no such class.
    """

    kind: type  # the class that the model's index names
    text: type | None  # draws new images from text
    noise: type | None  # varies an image by img2img, with a strength
    instruction: type | None  # edits an image by words
    structure: type | None  # draws from text under a ControlNet

    @property
    def prompted_by_images(self) -> type | None:
        """The text-to-image class if an IP-Adapter lets it draw from an image too, else None."""
        return (
            self.text if self.text and "ip_adapter_image_embeds" in inputs_of(self.text) else None
        )

    @property
    def meaning(self) -> type | None:
        """The pipeline class that draws from an image's meaning, or None.

        It has a prior, takes an image as its prompt, or takes an IP-Adapter.
        """
        own = has_prior(self.kind) or _is_image_variation(self.kind)
        return self.kind if own else self.prompted_by_images

    @property
    def ways(self) -> tuple[Way, ...]:
        """The ways in which these weights can vary an image, alone or with adapters.

        The ways that `kind` itself offers come first.
        """
        able = [way for way in get_args(Way) if getattr(self, way) is not None]
        return tuple(sorted(able, key=lambda way: getattr(self, way) is not self.kind))

    def of(self, way: Way) -> type:
        """Return the pipeline class for a way, which must be one of `ways`."""
        kind: type | None = getattr(self, way)
        assert kind is not None
        return kind


def degree_of(way: Way) -> Literal["exact", "wording"]:
    """Return `wording` if this way tells the model the degree in words, else `exact`."""
    return "wording" if way == "instruction" else "exact"


def describe_weight(way: Way, degree: float) -> str:
    """Describe a degree of `meaning` or `structure`, in which the parent weighs 1 − degree."""
    part = {"meaning": "what the parent shows", "structure": "the parent's structure"}[way]
    return f"drawn anew, with a weight of {1 - degree:g} for {part}"


def describe_pipeline(kind: type) -> Description:
    """Return the pipeline classes that can run on the parts of a pipeline of class `kind`."""
    text = _text(kind)
    return Description(
        kind, text, _noise(kind, text), _instruction(kind), text and _structure(text)
    )


def pipeline_class(name: str, model: str) -> type:
    """Return the class that a model's index names.

    Raises:
        RecipeError: the installed diffusers has no such pipeline.
    """
    import diffusers

    kind = getattr(diffusers, name, None)
    if not (isinstance(kind, type) and issubclass(kind, diffusers.DiffusionPipeline)):
        raise RecipeError(
            f"`model`: '{model}' needs the pipeline {name}, which diffusers "
            f"{diffusers.__version__} does not have. Install a newer diffusers, or set "
            "`pipeline` to a class of your own (module:Class)."
        )
    return kind


def inputs_of(kind: type) -> Inputs:
    """Return the parameters of a pipeline's call."""
    return inspect.signature(kind.__call__).parameters


def parts_of(kind: type) -> Inputs:
    """Return a pipeline's parts and options, which are the parameters of its constructor."""
    return inspect.signature(kind).parameters


def has_prior(kind: type) -> bool:
    """Return true if a pipeline has a prior, which turns text into an image embedding."""
    return {"prior_prior", "prior_image_encoder", "prior_image_processor"} <= parts_of(kind).keys()


def over(kind: type, pipeline: Any, **more: Any) -> Any:
    """Return a pipeline of class `kind` with the parts of `pipeline` and of `more`.

    Raises:
        ValueError: a part is missing.
    """
    if kind is type(pipeline) and not more:
        return pipeline
    available = dict(pipeline.config) | pipeline.components
    parameters = parts_of(kind)
    parts = {name: available[name] for name in parameters if name in available} | more
    lacking = [
        name
        for name, part in parameters.items()
        if name not in parts and part.default is part.empty
    ]
    if lacking:
        raise ValueError(
            f"{kind.__name__} needs {', '.join(lacking)} besides what {type(pipeline).__name__} has"
        )
    return kind(**parts)


def _text(kind: type) -> type | None:
    """Return the text-to-image class for a pipeline, or None.

    This is the class that diffusers links to `kind`, `kind` itself, or one that runs on its parts.
    """
    pipeline = _pipeline_of(_TEXT, kind)
    if pipeline is not None:
        return pipeline
    inputs = inputs_of(kind)
    if "prompt" in inputs and not {"image", "images"} & inputs.keys():
        return kind
    # With image_guidance_scale the network takes the parent's latents beside the noise: text alone
    # cannot drive it.
    if "prompt" not in inputs or "image_guidance_scale" in inputs:
        return None
    return next((other for other in _mapping(_TEXT).values() if _same_parts(other, kind)), None)


def _noise(kind: type, text: type | None) -> type | None:
    """Return the first class that takes a strength, or None.

    The candidates are diffusers' image-to-image class, …Img2ImgPipeline and `kind`.
    """
    import diffusers

    stem = (text or kind).__name__.removesuffix("Pipeline").removesuffix("Img2Img")
    candidates = (_linked_base(kind), getattr(diffusers, f"{stem}Img2ImgPipeline", None), kind)
    return next((each for each in candidates if _takes(each, "strength")), None)


def _instruction(kind: type) -> type | None:
    candidates = (kind, _linked_base(kind))
    return next((each for each in candidates if _takes(each, "prompt", "strength")), None)


def _structure(text: type) -> type | None:
    from diffusers.pipelines import auto_pipeline

    return _mapping(_TEXT).get(f"{auto_pipeline._get_model(text.__name__)}-controlnet")


def _takes(kind: type | None, name: str, other: str = "") -> bool:
    """Return true if the call takes an image and the input `name`.

    Pipelines that also take `other`, or an input of another task, do not count.
    """
    inputs = inputs_of(kind).keys() if kind else set()
    return {"image", name} <= inputs and not (_OTHER_TASKS | {other}) & inputs


def _is_image_variation(kind: type) -> bool:
    inputs = inputs_of(kind)
    return "image" in inputs and "prompt" not in inputs and "image_encoder" in parts_of(kind)


def _same_parts(other: type, kind: type) -> bool:
    """Return true if `other` takes no image and runs on the parts of `kind`.

    The parts must include a network, and must have equal types.
    """
    ours = {name: part.annotation for name, part in parts_of(kind).items()}
    needed = {
        name: part.annotation
        for name, part in parts_of(other).items()
        if part.default is part.empty
    }
    return (
        not {"transformer", "unet"}.isdisjoint(needed)
        and {"image", "images"}.isdisjoint(inputs_of(other))
        and all(item in ours.items() for item in needed.items())
    )


def _mapping(name: str) -> Mapping[str, type]:
    from diffusers.pipelines import auto_pipeline

    mapping: Mapping[str, type] = getattr(auto_pipeline, name)
    return mapping


def _pipeline_of(mapping: str, kind: type) -> type | None:
    """Return the class that diffusers' Auto classes use for `kind` in this mapping, or None."""
    from diffusers.pipelines import auto_pipeline

    pipeline: type | None = auto_pipeline._get_task_class(
        _mapping(mapping), kind.__name__, throw_error_if_not_exist=False
    )
    return pipeline


def _linked_base(kind: type) -> type | None:
    """Return diffusers' image-to-image class for `kind` or for one of its bases, or None."""
    linked = (_pipeline_of(_IMAGE, base) for base in kind.__mro__)
    return next(filter(None, linked), None)
