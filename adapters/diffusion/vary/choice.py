"""Which way to vary a recipe means, whether the model can, and that way over the loaded pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from adapters.diffusion.description import Description, Way, over
from adapters.diffusion.text_files import Dtypes, quiet_loading
from adapters.diffusion.vary.instruction import Instruction
from adapters.diffusion.vary.meaning import vary_by_meaning
from adapters.diffusion.vary.noise import Noise
from adapters.diffusion.vary.structure import Structure, control_of
from adapters.diffusion.vary.way import Vary
from adapters.diffusion.weights import SAFETENSORS
from adapters.prompts import Ladder
from pe.errors import RecipeError


@dataclass(frozen=True)
class Choice:
    """How images are to be varied.

    Attributes:
        way: None: what the other settings speak of, else what the model can do first.
        ladder: for `instruction`: the words for each degree.
        worded: whether the recipe gave those words.
        ip_adapter: for `meaning`: the arguments of diffusers' load_ip_adapter.
        controlnet: for `structure`: a folder or a repository.
        control: for `structure`: see `control_of`.
        offline: fetch none of them.
    """

    way: Way | None = None
    ladder: Ladder = field(default_factory=lambda: Ladder.of(None))
    worded: bool = False
    ip_adapter: Mapping[str, Any] | None = None
    controlnet: str | None = None
    control: str = "image"
    offline: bool = False

    @property
    def named(self) -> Way | None:
        """The way that the recipe speaks of, by name or by what only that way needs.

        Raises:
            RecipeError: it speaks of two.
        """
        spoken: dict[str, tuple[Way, bool]] = {
            "wordings": ("instruction", self.worded),
            "ip_adapter": ("meaning", self.ip_adapter is not None),
            "controlnet": ("structure", self.controlnet is not None),
        }
        given = [(setting, way) for setting, (way, is_given) in spoken.items() if is_given]
        for setting, way in given:
            if way != (self.way or given[0][1]):
                raise RecipeError(f"{setting} is for vary: {way}, and vary is '{self.way or given[0][1]}': drop one.")
        return self.way or (given[0][1] if given else None)

    def settle(self, description: Description, model: str) -> Way:
        """The way, and whether this model can.

        Raises:
            RecipeError: it cannot, or something is missing.
        """
        able = description.ways
        self._check_file()
        way = self.named or next((each for each in able if not self._lack(each, description)), None)
        name = description.kind.__name__
        if way is None or way not in able:
            cannot = "cannot answer VARIATION_API" if way is None else f"cannot vary by {way}"
            can = f"vary by {' or '.join(able)}" if able else "only draw"
            raise RecipeError(
                f"model: '{model}' ({name}) {cannot}: in diffusers it can {can}, so name another model under "
                "variation_model, or another way under vary."
            )
        if lack := self._lack(way, description):
            raise RecipeError(f"vary: {way} with '{model}' ({name}) needs {lack}.")
        if way == "structure":
            control_of(self.control)
        return way

    def over(self, pipeline: Any, kind: type, way: Way, arguments: Mapping[str, Any], dtypes: Dtypes) -> Vary:
        """The way over a loaded pipeline, with what it needs besides.

        Args:
            pipeline: with all parts of the model.
            kind: of the pipeline that varies.
            way: which `kind` can.
            arguments: of its call, by their own names.
            dtypes: part → type.

        Raises:
            OSError: a file is missing.
            ValueError: a file is none of its kind.
        """
        if way == "structure":
            net = self._controlnet(dtypes["default"])
            return Structure(over(kind, pipeline, controlnet=net), control_of(self.control))
        found = over(kind, pipeline)
        if way == "noise":
            return Noise(found)
        if way == "instruction":
            return Instruction(found, self.ladder)
        if self.ip_adapter is not None:
            with quiet_loading():
                found.load_ip_adapter(**{"local_files_only": self.offline, **self.ip_adapter})
        return vary_by_meaning(found, arguments)

    def _check_file(self) -> None:
        """Raise RecipeError if the IP-Adapter's file may hold code."""
        name = (self.ip_adapter or {}).get("weight_name", SAFETENSORS)
        if not str(name).endswith(SAFETENSORS):
            raise RecipeError(
                f"ip_adapter.weight_name is '{name}': only {SAFETENSORS} files are read, since others may hold code."
            )

    def _lack(self, way: Way, description: Description) -> str | None:
        """What the recipe must name for this way; None: nothing."""
        if way == "structure" and self.controlnet is None:
            return "a ControlNet: name one under controlnet"
        if way == "meaning" and self.ip_adapter is None and description.meaning is description.prompted_by_images:
            return "an IP-Adapter: name one under ip_adapter"
        return None

    def _controlnet(self, dtype: Any) -> Any:
        from diffusers import AutoModel

        with quiet_loading():
            return AutoModel.from_pretrained(
                self.controlnet, dtype=dtype, use_safetensors=True, local_files_only=self.offline
            )
