"""Our own server (`pe serve`) as a generator.

Its samples are those that a local diffusion adapter would make.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
from pydantic import model_validator

from adapters.diffusion.description import Way, degree_of, describe_weight
from adapters.diffusion.items import describe_steps, of_iteration
from adapters.http import (
    Concurrent,
    Endpoints,
    Fault,
    OnFirstUse,
    Pictures,
    Seconds,
    Size,
    object_of,
    workers_for,
)
from adapters.http.credentials import check_key
from adapters.http.servers import look_at
from adapters.prompts import (
    API_CLASS,
    PROMPT,
    Choices,
    Classes,
    Prompts,
    TextByLabel,
    check_choices,
    prompts_of,
)
from adapters.server.formats import (
    ARRAYS,
    BatchAnswer,
    BatchRequest,
    FormatError,
    pack_request,
    read_answer,
)
from pe.data.arrays import UInt8Array
from pe.data.decoding import Channels, decode_image
from pe.data.images import Images
from pe.data.samples import Conditions
from pe.errors import APIError, RecipeError
from pe.plugins.protocols import (
    Answer,
    Capabilities,
    Finding,
    Generator,
    PluginInfo,
    RandomRequest,
    Seeds,
    Usage,
    VariationRequest,
)
from pe.plugins.settings import Count, read_settings

if TYPE_CHECKING:
    import httpx2

Pixels = UInt8Array


class ServerSettings(Concurrent, Pictures):
    """Settings of `diffusion_server`.

    Attributes:
        base_url: the server's address, without /v1; or several addresses: each request goes to the
            least busy server.
        prompts: for a model that takes them: a text, a list, or either for each label; `{label}` is
            replaced.
        classes: for a model with classes: label → a class, by name or number, or several to draw
            from. None: any class may be drawn for any label.
        negative_prompt: what images should not be like; or a text for each label.
        steps: denoising steps of a new image; a variation by noise of degree v runs the last
            ⌊v·steps⌋ of these. Or a list with one number for each iteration, of which new samples
            take the first.
        guidance: classifier-free guidance scale, for models that take one; or a list, as `steps`.
            None: the server's.
        size: height and width at which a model that takes prompts draws, or one number for both;
            None: the model's own.
        vary: how the server varies images, as its /v1/models says: noise, instruction, meaning or
            structure. A server that varies images otherwise refuses every request.
        image_size: size of the samples, to which drawn images are resized; None: samples keep the
            size drawn.
        resize: how an image is brought to a size: crop, fit or stretch.
        channels: 3, or 1 for grey samples, of a model that takes prompts.
        chunk: most images of one request; a killed run repeats unfinished requests. A server takes
            up to 256 images.
        concurrency: most requests at once, to each server.
        timeout: most seconds to connect, and until the answer comes.
    """

    base_url: str | list[str]
    classes: dict[str | int, Choices] | None = None
    negative_prompt: TextByLabel = ""
    steps: Count | list[Count] = 50
    guidance: float | list[float] | None = None
    size: Size | None = None
    vary: Way = "noise"
    chunk: Count = 64
    concurrency: Count = 4
    timeout: Seconds = 960.0

    @model_validator(mode="after")
    def _check_together(self) -> ServerSettings:
        if self.prompts is not None and self.classes is not None:
            raise RecipeError("`prompts` and `classes` exclude each other. Remove one of them.")
        if self.image_size is not None and self.size is None:
            raise RecipeError("`image_size` needs `size`, the size at which the model draws.")
        if not self.base_url:
            raise RecipeError("`base_url` is empty. Name at least one server.")
        return self

    @property
    def urls(self) -> list[str]:
        """Addresses of the servers."""
        return [self.base_url] if isinstance(self.base_url, str) else self.base_url


class ServerClient(Generator):
    """For several GPUs or another machine: models of `diffusion` and its like behind `pe serve`.

    RANDOM_API and VARIATION_API by POST /v1/batch/images of one or several servers of one model.

    The same recipe over the same model has the same samples here and with the local adapters
    `pixel_diffusion`, `improved_diffusion` (for models with classes or none) and `diffusion` (for
    models that take prompts), but for the model's own numerical noise.

    Conditions: `api_class`, or `prompt`, drawn for each new sample and inherited by its variations.

    Args:
        settings: see `ServerSettings`.

    Raises:
        RecipeError: a setting is wrong.
    """

    Settings = ServerSettings
    starter = """\
  base_url: http://127.0.0.1:8000\t# of `pe serve`; or a list: each request goes to the least busy
  # key_env: PE_SERVER_KEY\t# the environment variable that holds the key, where the server wants one
  prompts: {prompts}\t# for a model that takes them; else classes: {{label: class}}
  steps: 30
  guidance: 7.5
  # vary: noise\t# how the server varies images; `pe doctor` says it: instruction, meaning, structure
  size: 512\t# at which the model draws
  image_size: {size}\t# what the samples are resized to
  channels: {channels}
"""  # noqa: E501

    info = PluginInfo(
        machine_settings=("base_url", "chunk", *Concurrent.model_fields),
        code_settings=("key_command",),
        schedules=("steps", "guidance"),
    )

    def __init__(self, **settings: Any) -> None:
        self._config = config = read_settings(
            ServerSettings,
            settings,
            type(self).__name__,
        )
        self._prompts = None if config.prompts is None else Prompts.of(config.prompts)
        self._negative = Prompts.negative(config.negative_prompt)
        classes = config.classes
        self._classes = (
            None if classes is None else {str(label): choice for label, choice in classes.items()}
        )
        self._endpoints = OnFirstUse(lambda: Endpoints(config.urls, config, config.concurrency))
        self._model = OnFirstUse(self._describe)
        hosts = tuple(urlsplit(url).netloc for url in config.urls)
        knows = self._classes is not None if self._prompts is None else self._prompts.by_label
        self.info = replace(self.info, hosts=hosts, by_label=knows)

    @classmethod
    def look(cls, settings: Mapping[str, Any]) -> Iterator[Finding]:
        """See `Generator.look`."""
        return look_at(cls.Settings, settings, ours=True)

    def draw_conditions(self, labels: tuple[str, ...], seeds: Seeds) -> Conditions:
        """Draw a prompt for each item, if the generator has prompts."""
        return Conditions() if self._prompts is None else self._prompts.draw(labels, seeds)

    @property
    def capabilities(self) -> Capabilities:
        """Any classes or prompts in a request.

        Several requests for each server, so that none is idle.
        """
        workers = workers_for(self._config.concurrency * len(self._config.urls))
        return Capabilities(
            self._config.chunk,
            workers,
            "nothing",
            degree_of(self._config.vary),
        )

    def describe_degree(self, degree: float, iteration: int = 1) -> str:
        """Describe what this degree means to such a server.

        Raise RecipeError if it leaves no step to run.
        """
        vary = self._config.vary
        if vary == "instruction" and 0 < degree < 1:
            return "told by the server, in words of its own"
        if vary != "noise" and 0 < degree < 1:
            return describe_weight(vary, degree)
        words = describe_steps(of_iteration("steps", self._config.steps, iteration), degree)
        return words if degree else f"{words}, without a call"

    def describe_wait(self) -> str:
        """Return the reason why requests wait now, or an empty text."""
        endpoints = self._endpoints.value
        return "" if endpoints is None else endpoints.wait

    def check_machine(self) -> None:
        """Raise RecipeError if the key is not there: see `check_key`."""
        check_key(self._config)

    def check_labels(self, labels: Sequence[str]) -> None:
        """Raise RecipeError if a setting that is given by label lacks a label.

        `prompts`, `classes` and `negative_prompt` can be given so.
        """
        if self._prompts is not None:
            self._prompts.check(labels)
        self._negative.check(labels)
        check_choices(labels, self._classes)

    def random_api(self, request: RandomRequest) -> Answer:
        """Draw new images, each of a class drawn by its seed, or of its prompt.

        Raises:
            RecipeError: the settings do not suit the model that is served.
            Rejected: a server will not answer however often it is asked.
        """
        return self._ask(request)

    def variation_api(self, request: VariationRequest) -> Answer:
        """Vary each parent, by its class or prompt.

        Degree 0 returns the parents.

        Errors: see `random_api`.
        """
        if request.degree == 0:
            return Answer(request.samples, request.conditions, usage=Usage(0))
        if not isinstance(request.samples, Images):
            raise APIError(f"A diffusion server varies images, not {request.samples.kind}.")
        parents = self._convert(
            np.ascontiguousarray(request.samples.pixels),
            self._config.size,
            3,
        )
        return self._ask(
            request,
            request.iteration,
            degree=request.degree,
            images=parents,
        )

    def _ask(
        self, request: RandomRequest | VariationRequest, iteration: int = 1, **variation: Any
    ) -> Answer:
        """Ask for images with the settings of this iteration."""
        config = self._config
        conditions = self._conditions(
            request.labels,
            request.conditions,
            request.seeds,
        )
        negative = tuple(self._negative.first_of(request.labels))
        # What is None is not sent: the server takes its model's own, or refuses what that lacks.
        if config.guidance is not None:
            variation["guidance"] = of_iteration(
                "guidance",
                config.guidance,
                iteration,
            )
        if API_CLASS in conditions:
            variation["classes"] = conditions[API_CLASS].astype(np.int64)
        if self._prompts is not None:
            variation["prompts"] = tuple(prompts_of(conditions, len(request)).tolist())
        if any(negative):
            variation["negative_prompts"] = negative
        images_asked = BatchRequest(
            request.seeds,
            steps=of_iteration("steps", config.steps, iteration),
            size=config.size,
            vary=config.vary,
            **variation,
        )
        outcome = self._endpoints.get().ask(
            "/v1/batch/images",
            lambda response: _read_images(response, len(request)),
            request.job.check_stop,
            content=pack_request(images_asked),
            headers={"Content-Type": ARRAYS},
        )
        if outcome.result is None:
            assert outcome.miss is not None
            empty = Images(np.empty((0, 1, 1, config.channels), dtype=np.uint8))
            missing = dict.fromkeys(range(len(request)), outcome.miss)
            return Answer(
                empty,
                conditions.take([]),
                missing,
                Usage(outcome.calls, 0),
            )
        answer = outcome.result
        images = Images(
            self._convert(
                answer.images,
                config.image_size,
                config.channels,
            )
        )
        return Answer(
            images,
            conditions.take(answer.places),
            answer.missing,
            Usage(outcome.calls, len(images)),
        )

    def _convert(self, images: Pixels, size: tuple[int, int] | None, channels: Channels) -> Pixels:
        """Return images in this size and channels if the model takes prompts.

        Else return them unchanged.
        """
        if self._prompts is None or not len(images):
            return images
        rule = self._config.resize if size else None
        return np.stack(
            [decode_image(each, size=size, resize=rule, channels=channels) for each in images]
        )

    def _conditions(
        self, labels: tuple[str, ...], conditions: Conditions, seeds: Seeds
    ) -> Conditions:
        """Return the prompts or classes that the samples carry. Draw them if there are none."""
        if self._prompts is not None:
            return conditions if PROMPT in conditions else self._prompts.draw(labels, seeds)
        model = self._model.get()
        if API_CLASS in conditions and model.count is not None:
            return conditions
        classes = model.draw(labels, seeds, self._classes)
        return Conditions() if classes is None else Conditions({API_CLASS: classes})

    def _describe(self) -> Classes:
        """Return the classes of the model that is served."""
        outcome = self._endpoints.get().ask("/v1/models", _classes_of)
        if outcome.result is None:
            hosts = ", ".join(self.info.hosts or ())
            raise APIError(f"{hosts}: no answer from /v1/models ({outcome.fault}).")
        return outcome.result


def _read_images(response: httpx2.Response, count: int) -> BatchAnswer:
    """Return the images of an answer.

    Raise Fault if the answer holds something else.
    """
    try:
        return read_answer(response.content, count)
    except FormatError as error:
        raise Fault(str(error), 200) from error


def _classes_of(response: httpx2.Response) -> Classes:
    """Return the classes of the model that /v1/models describes.

    Raise Fault if the answer is not from `pe serve`.
    """
    data: Any = object_of(response).get("data")
    try:
        model = data[0]["pe"]
        if model["prompts"]:
            raise RecipeError(f"The model '{model['name']}' takes prompts. Set `prompts`.")
        return Classes(
            str(model["name"]),
            model["class_count"],
            tuple(model["classes"]),
        )
    except (IndexError, KeyError, TypeError) as error:
        raise Fault("it is no server of `pe serve`", 404) from error
