"""The recipe's schema. Every value in it is public."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    Field,
    InstanceOf,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from pe.errors import RecipeError
from pe.plugins.price import Amount, PriceSection
from pe.plugins.specs import PluginSpec, members_of
from pe.plugins.validation import Count, Settings, read_settings
from pe.privacy.release import Relation
from pe.private.source import PrivateSource, read_source
from pe.recipe.evolution import Evolution
from pe.recipe.lengths import check_length
from pe.recipe.paths import WITHHELD, with_full_paths
from pe.recipe.reading import read_yaml, with_change
from pe.recipe.usual_embedding import usual_embedding

OBJECT = "object:"
"""How the recipe records a plug-in that was handed over as an object: this, and its class."""


WITHOUT_NOISE = "none"
NOMINAL = 1e-6
"""δ where none is asked for, because no ε holds: no number that follows from it is shown."""

BOTH_WAYS = "give epsilon or noise_multiplier, and delta; or `privacy: none`: no noise and no guarantee, for studies"


class Privacy(Settings):
    """The guarantee asked for: a target ε or a noise multiplier, and δ.

    Or, in place of the section, the word `none`, for studies: no noise is added to the votes, and no guarantee holds.
    """

    delta: float = Field(gt=0, lt=1, description="δ, well below 1 / number of records (1e-6, say); no default")
    epsilon: float | None = Field(None, gt=0, allow_inf_nan=False, description="target ε of the whole run")
    noise_multiplier: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="noise standard deviation over sensitivity, every iteration"
    )
    noise: Literal["none"] | None = Field(
        None,
        description="none: as `privacy: none`; then pool_overlaps alone may stand beside it",
        json_schema_extra={"left_out": "drawn"},
    )
    relation: Relation = Field(Relation.ADD_REMOVE, description="which data sets are neighbours")
    pool_overlaps: Literal["refused", "declared"] = Field(
        "refused",
        description="public samples that are private records; declared: allowed, because the records are published, "
        "and the certificate says so",
    )
    private_sets: Literal["may_overlap", "disjoint"] = Field(
        "may_overlap",
        description="of models and data of other runs that the recipe names; disjoint: no privacy unit is in their "
        "private records and in these, which the certificate calls declared, not verified",
    )
    schedule: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]] | None = Field(
        None, description="each iteration's share of the budget (of μ²); any scale; default: equal shares"
    )

    public_clock: Literal["auto", "always", "never"] = Field(
        "auto",
        description="whether private work is held back until a public deadline, so that who receives requests, or sees "
        "the console, cannot time it; auto: where the generator asks other machines",
    )
    clock_slack: Annotated[float, Field(ge=1, allow_inf_nan=False)] = Field(
        3.0, description="how many times what private work takes here by a try it is held back"
    )

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        if value is None or isinstance(value, str):
            if value != WITHOUT_NOISE:
                raise ValueError(BOTH_WAYS)
            value = {"noise": WITHOUT_NOISE}
        if not isinstance(value, dict) or value.get("noise") != WITHOUT_NOISE:
            return value
        given = [key for key in value if key in cls.model_fields and key not in ("noise", "pool_overlaps")]
        if given:
            raise ValueError(f"noise is none, so {', '.join(given)} cannot be given: leave it out, or noise")
        return value | {"delta": NOMINAL}

    @model_serializer(mode="wrap")
    def _as_given(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = whole(self)
        return {key: content[key] for key in ("noise", "pool_overlaps")} if self.noiseless else content

    @property
    def noiseless(self) -> bool:
        """Whether no noise is added, so that there is no guarantee."""
        return self.noise == WITHOUT_NOISE

    @model_validator(mode="after")
    def _one_of_both(self) -> Privacy:
        if self.noiseless:
            return self
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("give either epsilon or noise_multiplier, and not both")
        return self


class LimitSection(Settings):
    """Where a run stops at a chunk's boundary, to be gone on with by `pe resume`."""

    max_images: Count | None = Field(None, description="samples (images, texts) made over the whole run")
    max_cost: Amount | None = Field(None, description="in api.price's currency")
    max_seconds: Annotated[float, Field(gt=0)] | None = Field(
        None, description="during which one process asks the generator; private work does not count"
    )
    max_concurrency: Count | None = Field(None, description="requests under way at once")


class RefusalSection(Settings):
    """What becomes of samples that the generator refuses to make (a content filter, say)."""

    retries: Annotated[int, Field(ge=0)] = Field(
        2, description="how often a refused sample is asked for again; then a variation keeps its parent"
    )
    max_share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.5, description="the run stops when more than this share of what it asks for is refused"
    )


class FitSection(Settings):
    """What it may cost to fit a generator on the private records."""

    budget_share: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="share of privacy.epsilon; the rest evolves; without iterations, all of it"
    )


class ApiSpec(PluginSpec):
    """A generator, what its provider charges, and what fitting it may cost."""

    price: PriceSection = PriceSection()
    fit: FitSection | None = None


class Recipe(Settings):
    """A run, whole: data, generator, embedding, guarantee, evolution."""

    name: str = Field("run", description="goes into the run's name: ASCII letters, digits, '.', '_', '-'")
    seed: int = Field(0, ge=0, description="all randomness but the noise comes from it")
    private: SerializeAsAny[InstanceOf[PrivateSource]]
    api: ApiSpec
    embedding: PluginSpec
    privacy: Privacy = Field(description=BOTH_WAYS)
    evolution: Evolution = Evolution()
    limits: LimitSection = LimitSection()
    refusals: RefusalSection = RefusalSection()

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise ValueError("use the letters A-Z and a-z, digits, '.', '_' and '-' alone, a letter or digit first")
        return name

    @model_validator(mode="after")
    def _budget_fits_evolution(self) -> Recipe:
        schedule, iterations = self.privacy.schedule, self.evolution.iterations
        if "iterations" in self.evolution.model_fields_set:
            check_length("privacy.schedule", schedule, iterations, only_list=True)
        if self.evolution.estimate_label_sizes is not None and self.privacy.epsilon is None:
            raise ValueError("evolution.estimate_label_sizes is a share of privacy.epsilon, so give that")
        return self

    @model_validator(mode="after")
    def _priced_is_limited(self) -> Recipe:
        several = {f"api.{key}.price": one.price for key, one in members_of(self.api).items()}
        charged = [key for key, one in {"api.price": self.api.price, **several}.items() if not one.price.free]
        if charged and self.limits.max_cost is None:
            raise ValueError(f"{charged[0]} is given, so limits.max_cost must be too: say how much the run may cost")
        if charged[:1] == ["api.price"] and charged[1:]:
            raise ValueError(f"api.price and {charged[1]} are given: give each generator its own, or all of them one")
        return self

    @classmethod
    def parse(cls, content: Any, where: str) -> Recipe:
        """The recipe that `content`, plain mappings and scalars, describes; paths are taken from the current folder.

        Without an embedding it has the usual one, which depends on what is installed here (`usual_embedding`).

        Raises:
            RecipeError: it describes none; one sentence on the first fault.
        """
        if not isinstance(content, dict):
            raise RecipeError(f"{where} is not a mapping of keys to values.")
        content = with_full_paths(content, Path())
        if isinstance(content.get("private"), dict):
            content = content | {"private": read_source(content["private"], where, "private")}
        if isinstance(private := content.get("private"), PrivateSource):
            content = content if "embedding" in content else content | {"embedding": usual_embedding(private)}
        return read_settings(cls, content, where)

    @classmethod
    def load(cls, path: Path, changes: tuple[str, ...] = ()) -> Recipe:
        """The recipe of a YAML file, with `changes` of the form `a.b=value` applied.

        Paths in the file are taken from its folder, those in `changes` from the current one.

        Raises:
            RecipeError: the file is missing, is not YAML, gives a key twice or is no recipe.
        """
        content = with_full_paths(read_yaml(path), path.parent)
        for change in changes:
            content = with_change(content, change)
        return cls.parse(content, str(path))

    def dump(self) -> str:
        """The recipe as YAML; `load` reads it back equal."""
        return _yaml(self._content())

    def chosen_as(self, other: Recipe) -> Recipe:
        """This recipe, with what it leaves open of its evolution as in `other`, which was once chosen."""
        evolution = other.evolution.given | self.evolution.given
        schedule = self.privacy.schedule or other.privacy.schedule
        return self.model_copy(
            update={
                "evolution": Evolution.model_validate(evolution),
                "privacy": self.privacy.model_copy(update={"schedule": schedule}),
            }
        )

    def _content(self) -> dict[str, Any]:
        """Plain mappings and scalars, without what is not set; a plug-in's None is a setting like any other."""
        content: dict[str, Any] = self.model_dump(mode="json", exclude_none=True)
        if not self.api.price.stated:
            del content["api"]["price"]
        for section, spec in (("api", self.api), ("embedding", self.embedding)):
            content[section] |= {name: None for name, value in spec.settings.items() if value is None}
        return content

    def dump_shareable(self) -> str:
        """The recipe as YAML for everybody: where the private records lie is withheld."""
        content = self._content()
        places = content["private"].keys() & set(self.private.withheld)
        return _yaml(content | {"private": content["private"] | dict.fromkeys(places, WITHHELD)})


def _yaml(content: dict[str, Any]) -> str:
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
