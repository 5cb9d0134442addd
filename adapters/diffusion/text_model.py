"""A text-to-image model: how it is set up on a device, and how its pipelines are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from adapters.diffusion.description import (
    Description,
    Inputs,
    Way,
    describe_pipeline,
    describe_weight,
    inputs_of,
    over,
)
from adapters.diffusion.items import Item, Job, Outcome, outcomes_of, torch_rng
from adapters.diffusion.text_files import Dtypes, PipelineFiles, TextSettings, quiet_loading
from adapters.diffusion.vary import (
    ByNoise,
    ByStructure,
    Instruction,
    Vary,
    control_of,
    set_sampler,
    vary_by_meaning,
)
from adapters.diffusion.weights import require_diffusers
from adapters.prompts import Ladder
from pe.errors import RecipeError
from pe.plugins.devices import Precision, dtype_on, words_of_error
from pe.plugins.protocols import Refused
from pe.plugins.weights import SAFETENSORS, check_whole

if TYPE_CHECKING:
    import torch

TRUE = "true_cfg_scale"
"""Input for classifier-free guidance where `guidance_scale` is missing, or distilled into the
network."""

_PLAIN = "guidance_scale"
_NEGATIVE = "negative_prompt"
# A negative prompt that says nothing, for `true_cfg_scale`, which has no effect without one
_NOTHING = " "
# inputs of a call that the adapter sets itself, so `arguments` may not name them
_OURS = {
    "prompt",
    "negative_prompt",
    "num_inference_steps",
    "generator",
    "output_type",
    "height",
    "width",
    "image",
}

# most images decoded at once: the autoencoder works at full size, and takes more memory than the
# network
_WHOLE = 4

_UNSAFE = Refused("the model's safety checker found the image unsafe")


class TextLoader:
    """Loads a text-to-image model, and sets it up to draw and to vary."""

    def __init__(self, config: TextSettings, precision: Precision, compile: bool = False) -> None:  # noqa: A002
        self._config = config
        self._compile = compile
        self._precisions: dict[str, Precision] = {
            "default": precision,
            **(config.precision_of or {}),
        }
        self._ladder = Ladder.of(config.wordings)
        self._arguments = config.arguments or {}
        self._files = self._varying = PipelineFiles(config)
        if config.variation_model is not None:
            other = TextSettings(
                model=config.variation_model,
                offline=config.offline,
                safety_checker=config.safety_checker,
            )
            self._varying = PipelineFiles(other)

    @property
    def way(self) -> Way:
        """The way to vary, by the recipe and the model's index.

        Without an index on this machine it is the recipe's way, or noise.
        """
        description = self._varying.description()
        return self._stated_way or "noise" if description is None else self._settle(description)

    def describe_degree(self, degree: float) -> str | None:
        """Describe a degree of `way`, or return None if it is 0, 1, or a number of steps."""
        way = self.way
        if way == "noise" or degree in (0, 1):
            return None
        return (
            self._ladder.describe(degree) if way == "instruction" else describe_weight(way, degree)
        )

    def check(self) -> None:
        """Raise RecipeError if the models cannot do what the recipe wants.

        Only indices that are on this machine are read.
        """
        drawing = self._files.description()
        varying = self._varying.description()
        if drawing is not None and drawing.text is None:
            raise RecipeError(
                f"`model`: '{self._config.model}' ({drawing.kind.__name__}) cannot generate "
                "images from text. Use a text-to-image model there, and put this one in "
                "`variation_model` if it is to vary them."
            )
        if varying is None:
            return
        way = self._settle(varying)
        if drawing is not None and drawing.text is not None:
            self._check_arguments([drawing.text, varying.of(way)])

    def load(self, device: torch.device) -> TextModel:
        """Return the model on a device.

        Raises:
            RecipeError: a file is damaged, or the model cannot do what is asked.
        """
        require_diffusers("diffusers")
        self.check()
        default_way = self.way
        self._files.folder(), self._varying.folder()
        self.check()  # again, of what was fetched
        if self.way != default_way:
            raise RecipeError(
                f"`model`: '{self._varying.config.model}' varies images by {self.way}, but the "
                f"plan assumed {default_way} before its index was fetched. Start again, or set "
                f"`vary: {self.way}`."
            )
        dtypes = {part: dtype_on(device, each) for part, each in self._precisions.items()}
        base = self._load_parts(self._files, dtypes)
        kind = describe_pipeline(type(base)).text
        assert kind is not None
        varies = base if self._varying is self._files else self._load_parts(self._varying, dtypes)
        vary = self._set_up(varies, dtypes)
        text = vary.pipeline if type(vary.pipeline) is kind and varies is base else over(kind, base)
        pipelines = _distinct([base, varies, text, vary.pipeline])
        for pipeline in pipelines:
            pipeline.set_progress_bar_config(disable=True)
        place(pipelines, device, self._config)
        if self._compile:
            networks = [getattr(each, "unet", None) for each in pipelines]
            networks += [getattr(each, "transformer", None) for each in pipelines]
            for network in _distinct(networks):
                network.compile()
        return TextModel(text, vary, device, self._config)

    def _load_parts(self, files: PipelineFiles, dtypes: Dtypes) -> Any:
        pipeline = files.load(dtypes)
        set_sampler(pipeline, self._config.sampler)
        return pipeline

    @property
    def _stated_way(self) -> Way | None:
        """The way that the recipe names or has a setting for, or None if it leaves it open."""
        config = self._config
        settings: dict[str, tuple[Way, object]] = {
            "wordings": ("instruction", config.wordings),
            "ip_adapter": ("meaning", config.ip_adapter),
            "controlnet": ("structure", config.controlnet),
        }
        answer = config.vary
        for setting, (way, value) in settings.items():
            if value is None:
                continue
            answer = answer or way
            if way != answer:
                raise RecipeError(
                    f"`{setting}` is for `vary: {way}`, but `vary` is '{answer}'. Remove one of "
                    "them."
                )
        return answer

    def _settle(self, description: Description) -> Way:
        """Return the way to vary.

        Raises:
            RecipeError: the model cannot vary so, or the recipe lacks a setting that the way needs.
        """
        config = self._config
        able = description.ways
        model = f"'{self._varying.config.model}' ({description.kind.__name__})"
        weights = str((config.ip_adapter or {}).get("weight_name", SAFETENSORS))
        if not weights.endswith(SAFETENSORS):
            raise RecipeError(
                f"`ip_adapter.weight_name` is '{weights}'. Only {SAFETENSORS} files are read, "
                "because others may contain code."
            )
        # What a way needs and the recipe lacks. Such a way is never chosen, but a recipe can ask
        # for it, and then the message says what to add.
        lacks: dict[Way, str] = {}
        if config.controlnet is None:
            lacks["structure"] = "a ControlNet. Set `controlnet`"
        if config.ip_adapter is None and description.meaning is description.prompted_by_images:
            lacks["meaning"] = "an IP-Adapter. Set `ip_adapter`"
        way = self._stated_way or next((each for each in able if each not in lacks), None)
        if way is None or way not in able:
            cannot = "cannot answer VARIATION_API" if way is None else f"cannot vary by {way}"
            can = f"vary by {' or '.join(able)}" if able else "only draw"
            raise RecipeError(
                f"`model`: {model} {cannot}. In diffusers it can {can}. Set `variation_model` "
                "to another model, or `vary` to another way."
            )
        if way in lacks:
            raise RecipeError(f"`vary: {way}` with {model} needs {lacks[way]}.")
        if way == "structure":
            control_of(config.control)
        return way

    def _set_up(self, pipeline: Any, dtypes: Dtypes) -> Vary:
        """Return the way to vary by a loaded pipeline, with all that it needs."""
        from diffusers import AutoModel
        from safetensors import SafetensorError

        # A pipeline class of the user's own is known only now, so the way is settled once more.
        description = describe_pipeline(type(pipeline))
        way = self._settle(description)
        kind = description.of(way)
        try:
            if way == "structure":
                with quiet_loading():
                    net = AutoModel.from_pretrained(
                        self._config.controlnet,
                        dtype=dtypes["default"],
                        use_safetensors=True,
                        local_files_only=self._config.offline,
                    )
                return ByStructure(
                    over(kind, pipeline, controlnet=net), control_of(self._config.control)
                )
            varying = over(kind, pipeline)
            if way == "noise":
                return ByNoise(varying)
            if way == "instruction":
                return Instruction(varying, self._ladder)
            if self._config.ip_adapter is not None:
                with quiet_loading():
                    varying.load_ip_adapter(
                        **{"local_files_only": self._config.offline, **self._config.ip_adapter}
                    )
            return vary_by_meaning(varying, self._arguments)
        except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
            adapter = (self._config.ip_adapter or {}).get("pretrained_model_name_or_path_or_dict")
            check_whole(self._config.controlnet or adapter or self._varying.config.model)
            raise RecipeError(
                f"`vary: {way}` cannot be set up for '{self._varying.config.model}' "
                f"({words_of_error(error)})."
            ) from error

    def _check_arguments(self, kinds: Sequence[type]) -> None:
        inputs = {name for kind in kinds for name in inputs_of(kind)}
        for name in self._arguments:
            if name in _OURS:
                raise RecipeError(f"`arguments`: the adapter sets {name} itself. Remove it.")
            if name not in inputs:
                classes = " or ".join(dict.fromkeys(kind.__name__ for kind in kinds))
                raise RecipeError(
                    f"`arguments`: {classes} takes no {name}. It takes "
                    f"{', '.join(sorted(inputs - _OURS))}."
                )


class TextModel:
    """A pipeline that draws new images and one that varies images, on a device.

    They may share weights, or be the same. Each call gets those of `arguments` that its pipeline
    takes.
    """

    def __init__(
        self,
        text: Any,
        vary: Vary,
        device: torch.device,
        config: TextSettings,
    ) -> None:
        self._text = text
        self._vary = vary
        self._device = device
        self._config = config
        self._more = config.arguments or {}
        self._is_engaged: Any = None
        parts = _distinct([getattr(each, "vae", None) for each in (text, vary.pipeline)])
        self._autoencoders = [(part, part.dtype) for part in parts]

    @property
    def heeds_negative_prompts(self) -> bool:
        """True if a negative prompt has an effect on new images and on variations."""
        kinds = (type(self._text), type(self._vary.pipeline))
        return all(heeds_negative_prompts(inputs_of(kind), self._more) for kind in kinds)

    def sample(self, job: Job, items: Sequence[Item]) -> Sequence[Outcome]:
        """Draw new images of the items' prompts."""
        return self._run(
            self._text,
            job,
            items,
            self._vary.arguments_of_new(len(items)),
        )

    def vary(self, job: Job, items: Sequence[Item]) -> Sequence[Outcome]:
        """Vary the items' images.

        At degree 1, where the parent would still leave a trace, draw new images.
        """
        assert job.degree is not None
        if job.degree == 1:
            return self.sample(job, items)
        outcomes: list[Outcome] = []
        for part in [[item] for item in items] if self._vary.alone else [items]:
            outcomes += self._run(
                self._vary.pipeline, job, part, self._vary.arguments(job, job.degree, part)
            )
        return outcomes

    def _run(
        self, pipeline: Any, job: Job, items: Sequence[Item], more: Mapping[str, Any]
    ) -> Sequence[Outcome]:
        # Pipelines share weights, so what one of them offloads must move when the other is called.
        if self._is_engaged is not pipeline:
            self._engage(pipeline)
            self._is_engaged = pipeline
        self._slice(pipeline, len(items))
        self._restore()
        inputs = inputs_of(type(pipeline))
        negative = [item.negative_prompt for item in items]
        if any(negative) and not heeds_negative_prompts(inputs, self._more):
            raise RecipeError(
                f"`negative_prompt` has no effect on {type(pipeline).__name__}. Remove it."
            )
        arguments = {
            "prompt": [item.prompt for item in items],
            "num_inference_steps": job.steps,
            "generator": [torch_rng(item.seed) for item in items],
            "output_type": "pt" if hasattr(pipeline, "image_processor") else "np",
            **guidance_of(inputs, job.guidance, negative, self._more),
        }
        if job.size is not None:
            height, width = job.size
            arguments |= {"height": height, "width": width, "max_area": height * width}
        arguments |= self._more
        return _outcomes(
            pipeline(
                **{name: each for name, each in arguments.items() if name in inputs} | dict(more)
            )
        )

    def _engage(self, pipeline: Any) -> None:
        """Let this pipeline, which is called next, offload the weights that the pipelines share."""
        if self._config.offload == "model":
            pipeline.enable_model_cpu_offload(device=self._device)
        elif self._config.offload == "sequential":
            pipeline.enable_sequential_cpu_offload(device=self._device)

    def _slice(self, pipeline: Any, count: int) -> None:
        """Decode images one at a time (VAE slicing) if `count` > 4, unless the recipe decides."""
        autoencoder: Any = getattr(pipeline, "vae", None)
        if self._config.vae_slicing is None and hasattr(autoencoder, "use_slicing"):
            (autoencoder.enable_slicing if count > _WHOLE else autoencoder.disable_slicing)()

    def _restore(self) -> None:
        """Give autoencoders their types back after a failed call.

        Stable Diffusion XL decodes in float32, and a failure leaves the autoencoder so.
        """
        for autoencoder, dtype in self._autoencoders:
            if autoencoder.dtype != dtype:
                autoencoder.to(dtype=dtype)


def _distinct(objects: Sequence[Any]) -> list[Any]:
    """Return each object once, without None."""
    return list({id(each): each for each in objects if each is not None}.values())


def _outcomes(answer: Any) -> Sequence[Outcome]:
    """Return an outcome per image of a pipeline's answer, tensors n×c×h×w or arrays n×h×w×c."""
    import torch

    values = answer.images
    images = (
        values.float().permute(0, 2, 3, 1)
        if torch.is_tensor(values)
        else torch.from_numpy(np.asarray(values))
    )
    unsafe = getattr(answer, "nsfw_content_detected", None) or [False] * len(images)
    return [
        _UNSAFE if bad else outcome
        for bad, outcome in zip(unsafe, outcomes_of(images), strict=True)
    ]


def guidance_input(inputs: Inputs) -> str | None:
    """Return the name of the input for classifier-free guidance, or None.

    It is `true_cfg_scale` if that is on by default, else `guidance_scale`.
    """
    true = inputs.get(TRUE)
    if true is not None and isinstance(true.default, int | float) and true.default > 1:
        return TRUE
    return _PLAIN if _PLAIN in inputs else None


def guidance_of(
    inputs: Inputs,
    guidance: float | None,
    negative: Sequence[str],
    arguments: Mapping[str, Any],
) -> dict[str, Any]:
    """Return a call's arguments for guidance and negative prompts.

    If `guidance` is None, the pipeline keeps its own scale.
    """
    name = guidance_input(inputs)
    values: dict[str, Any] = {} if guidance is None or name is None else {name: guidance}
    is_true = TRUE in inputs and {**arguments, **values}.get(TRUE, inputs[TRUE].default) > 1
    if _NEGATIVE in inputs and (is_true or any(negative)):
        values[_NEGATIVE] = [text or (_NOTHING if is_true else "") for text in negative]
    return values


def heeds_negative_prompts(inputs: Inputs, arguments: Mapping[str, Any]) -> bool:
    """Return true if a negative prompt has an effect.

    A pipeline with a prior takes none if each item has a seed.
    """
    if _NEGATIVE not in inputs or "prior_guidance_scale" in inputs:
        return False
    return TRUE not in inputs or arguments.get(TRUE, inputs[TRUE].default) > 1


def place(
    pipelines: Sequence[Any],
    device: torch.device,
    config: TextSettings,
) -> None:
    """Put weights on the device, or set up their offloading.

    Raises:
        RecipeError: the device or the pipeline cannot do it.
    """
    offload = config.offload
    if offload != "none" and device.type == "cpu":
        raise RecipeError(
            f"`offload` is '{offload}', but the model runs on the CPU. Set `offload: none`."
        )
    # Pipelines share parts, and group offloading must be set up for a part only once.
    on_demand: list[Any] = []
    for pipeline in pipelines:
        if config.vae_slicing:
            _autoencoder(pipeline, "vae_slicing", "use_slicing").enable_slicing()
        if config.vae_tiling:
            _autoencoder(pipeline, "vae_tiling", "use_tiling").enable_tiling()
        if offload == "none":
            pipeline.to(device)
        elif offload == "group":
            parts = pipeline.components
            names = [name for name in parts if any(parts[name] is other for other in on_demand)]
            pipeline.enable_group_offload(
                onload_device=device, num_blocks_per_group=1, use_stream=True, exclude_modules=names
            )
            on_demand += parts.values()


def _autoencoder(pipeline: Any, setting: str, switch: str) -> Any:
    autoencoder = getattr(pipeline, "vae", None)
    if not hasattr(autoencoder, switch):
        raise RecipeError(
            f"`{setting}`: the autoencoder of {type(pipeline).__name__} cannot do this. Remove "
            f"`{setting}`."
        )
    return autoencoder
