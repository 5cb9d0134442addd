"""Local text-to-image models as generators.

RANDOM_API draws from a prompt, and VARIATION_API varies in four ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from adapters.diffusion.description import degree_of
from adapters.diffusion.engine import Engine, LocalDiffusion, answer_of_outcomes, parents_of
from adapters.diffusion.items import GRID, Item, Job, Outcome, Pixels, numbers_of, of_iteration
from adapters.diffusion.text_files import MEMORY_SETTINGS, TextSettings
from adapters.diffusion.text_model import TextLoader
from adapters.prompts import PROMPT, Prompts, TextByLabel, Texts, prompts_of
from pe.data.decoding import Resize, Size, decode_image
from pe.data.samples import Conditions
from pe.errors import RecipeError
from pe.plugins.protocols import (
    Answer,
    Capabilities,
    PluginInfo,
    RandomRequest,
    Seeds,
    VariationRequest,
)
from pe.plugins.settings import Count
from pe.plugins.specs import plugin


@plugin
class TextToImage(TextSettings, LocalDiffusion):
    """Text-to-image models on this machine, such as Stable Diffusion, SDXL, Flux and Qwen-Image.

    LoRA weights can be added. What a pipeline takes and how it can vary an image is read from its
    class; docs/diffusion.md has a table. The model is loaded at the first request, once on each
    device. Degree 0 is the parent itself, degree 1 a new image of the parent's prompt.

    Conditions: `prompt`, drawn for each new sample; variations inherit it.

    Args:
        prompts: a text, a list to draw from, or either for each label. `{label}` in a text becomes
            the label.
        negative_prompt: what images should not be like, or a text for each label.
        steps: denoising steps of a new image. A variation by noise of degree v runs the last
            ⌊v·steps⌋ of them. Or a list with one number per iteration; new samples use the first.
        guidance: scale of classifier-free guidance, or a list, as in `steps`. None: the pipeline's
            own.
        size: height and width at which the model draws, or one number for both. None: the model's
            own.
        image_size: height and width of the samples, to which the drawn images are resized. None: as
            drawn.
        resize: how an image gets `image_size`.
        channels: 3, or 1 for grey samples.

    Raises:
        RecipeError: a setting is out of range.
    """

    info = PluginInfo(
        hosts=(),
        machine_settings=(*LocalDiffusion.info.machine_settings, *MEMORY_SETTINGS),
        code_settings=("pipeline", "control"),
        schedules=("steps", "guidance"),
    )
    starter = """\
  model: stable-diffusion-v1-5/stable-diffusion-v1-5\t# OWNER/NAME of the hub, or a folder in diffusers' format
  prompts: {prompts}\t# public: a text, a list to draw from, or either for each label
  # negative_prompt: text, watermark
  # lora: style.safetensors\t# weights over the model's own; its images must be public
  size: 512\t# height and width that the model draws at
  image_size: {size}\t# what the samples are resized to
  channels: {channels}
  steps: 30
  # guidance: 7.5\t# the model's own unless given
  # vary: noise\t# or instruction, meaning, structure; what the model does by itself unless given (docs/diffusion.md)
"""  # noqa: E501

    prompts: Texts | dict[str, Texts]
    negative_prompt: TextByLabel = ""
    guidance: float | list[float] | None = None
    size: int | Size | None = None
    image_size: int | Size | None = None
    resize: Resize = "crop"
    channels: Literal[1, 3] = 3
    chunk: Count = 64

    def __post_init__(self) -> None:
        self._size = _pair(self.size)
        self._image_size = _pair(self.image_size)
        if self._size is not None and any(side < GRID or side % GRID for side in self._size):
            raise RecipeError(
                f"`size` is {self._size}, but a model draws multiples of {GRID} pixels. "
                "`image_size` can be any size."
            )
        if self._image_size is not None and self._size is None:
            raise RecipeError(
                "`image_size` needs `size`, the size at which the model draws. Set both."
            )
        # Pipelines ignore negative prompts unless guided, and `arguments` may guide them otherwise.
        scales = [] if self.guidance is None else numbers_of(self.guidance)
        low = [scale for scale in scales if scale <= 1]
        self._negative = Prompts.negative(self.negative_prompt)
        setting = self.negative_prompt
        texts = [setting] if isinstance(setting, str) else setting.values()
        if any(texts) and low and not self.arguments:
            raise RecipeError(
                f"`negative_prompt` has no effect at guidance {low[0]}. Use a guidance above 1, "
                "or remove it."
            )
        self._prompts = Prompts.of(self.prompts)
        self.info = replace(self.info, by_label=self._prompts.by_label)
        self._loader = TextLoader(self, self.precision, self.compile)
        self._engine = Engine(
            self._loader.load,
            device=self.device,
            batch_size=self.batch_size,
            most=64,
            most_on_cpu=4,
        )

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of every local model.

        The degree is `wording` if the model is told the degree in words.
        """
        return replace(super().capabilities, degree=degree_of(self._loader.way))

    def describe_degree(self, degree: float, iteration: int = 1) -> str:
        """Describe what this degree means for this generator.

        Raises:
            RecipeError: the model cannot vary as asked.
        """
        words = self._loader.describe_degree(degree)
        return super().describe_degree(degree, iteration) if words is None else words

    def check_labels(self, labels: Sequence[str]) -> None:
        """Raise RecipeError if a label has no entry in `prompts` or `negative_prompt`."""
        self._prompts.check(labels)
        self._negative.check(labels)

    def draw_conditions(self, labels: tuple[str, ...], seeds: Seeds) -> Conditions:
        """Draw the prompt of each new sample."""
        return self._prompts.draw(labels, seeds)

    def random_api(self, request: RandomRequest) -> Answer:
        """Draw new images of the items' prompts.

        `DeviceEngine.make` lists more errors.

        Raises:
            RecipeError: the model cannot draw or vary as asked.
        """
        return self._answer(request, self._job(None, 1), [None] * len(request))

    def variation_api(self, request: VariationRequest) -> Answer:
        """Vary each parent under the prompt that it carries."""
        parents = parents_of(request.samples)
        if request.degree == 0:
            return answer_of_outcomes(
                parents, request.samples.array.shape[1:], self._with_prompts(request)
            )
        rule = self.resize if self._size else None
        images = [
            decode_image(image, size=self._size, resize=rule, channels=3) for image in parents
        ]
        return self._answer(
            request,
            self._job(request.degree, request.iteration),
            images,
        )

    def _job(self, degree: float | None, iteration: int) -> Job:
        steps = of_iteration("steps", self.steps, iteration)
        guidance = (
            None if self.guidance is None else of_iteration("guidance", self.guidance, iteration)
        )
        return Job(steps, degree, guidance, self._size)

    def _with_prompts(self, request: RandomRequest | VariationRequest) -> Conditions:
        """Return the prompts that the request carries, or else prompts drawn by the seeds."""
        conditions = request.conditions
        return (
            conditions
            if PROMPT in conditions
            else self.draw_conditions(request.labels, request.seeds)
        )

    def _answer(
        self, request: RandomRequest | VariationRequest, job: Job, images: Sequence[Pixels | None]
    ) -> Answer:
        conditions = self._with_prompts(request)
        prompts = prompts_of(conditions, conditions.rows or 0).tolist()
        columns = zip(
            request.seeds, images, prompts, self._negative.first_of(request.labels), strict=True
        )
        items = [
            Item(job, int(seed), image, prompt, negative)
            for seed, image, prompt, negative in columns
        ]
        outcomes = [self._to_sample(outcome) for outcome in self._engine.run(items)]
        height, width = self._image_size or self._size or (1, 1)
        return answer_of_outcomes(outcomes, (height, width, self.channels), conditions)

    def _to_sample(self, outcome: Outcome) -> Outcome:
        if not isinstance(outcome, np.ndarray):
            return outcome
        size = self._image_size
        return decode_image(
            outcome, size=size, resize=self.resize if size else None, channels=self.channels
        )


def _pair(size: int | Size | None) -> Size | None:
    return (size, size) if isinstance(size, int) else size
