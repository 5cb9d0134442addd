"""The schema of a recipe. Every value in it is public."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BeforeValidator,
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
from pe.plugins.settings import Count, Settings, read_settings
from pe.plugins.specs import PluginSpec, members_of
from pe.privacy.release import Relation
from pe.private.source import PrivateSource, read_source
from pe.recipe.reading import WITHHELD, read_yaml, with_change, with_full_paths, with_shared
from pe.recipe.usual_embedding import usual_embedding


def check_length(
    name: str,
    value: Any,
    iterations: int,
    extra: int = 0,
    only_list: bool = False,
) -> None:
    """Refuse a list that has not one entry per iteration and `extra` entries for S_0.

    A single number always fits.

    `only_list`: the key takes no single number. The ValueError names the ways to mend the list.
    """
    if not isinstance(value, list) or len(value) == iterations + extra:
        return
    key = "evolution.iterations" if "." in name else "iterations"
    entries = "1 entry" if len(value) == 1 else f"{len(value)} entries"
    fitting = f"{iterations + extra} ({'S_0 and ' * extra}one per iteration)"
    ways = [f"give it {fitting}" if only_list else f"give {name} one number, or {fitting}"]
    if len(value) >= extra:
        ways.append(f"set {key} to {len(value) - extra}")
    raise ValueError(f"{name} has {entries}, and {key} is {iterations}: {', or '.join(ways)}")


AUTO = "auto"
CHOSEN: dict[str, Any] = {"left_out": "chosen"}
"""Marks a default that the planner chooses, for pe/recipe/explain.py."""

MAX_SAMPLES = 10_000_000
"""Most members of a population, or of an extension, at once: 120 GB of images of 64×64 pixels in
colour."""

Selection = Literal["sample", "systematic", "rank"]
Keep = Literal["none", "selected", "winners", "all"]
SCHEDULES = (
    "degree",
    "lookahead",
    "threshold",
    "threshold_sigmas",
    "selection",
    "keep",
    "offspring",
)
"""Keys that may be lists, with one entry per iteration."""

Members = Annotated[int, Field(ge=1, le=MAX_SAMPLES)]
Offspring = Annotated[int, Field(ge=1, le=10_000)]
Lookahead = Annotated[int, Field(ge=0, le=10_000)]
Degree = Annotated[float, Field(ge=0, le=1)]
LabelName = Annotated[str, BeforeValidator(str)]  # YAML may read it as a number
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Evolution(Settings):
    """Algorithm 1's parameters, or `auto`.

    A schedule is one number, or a list with one number per iteration.

    If `iterations` or `population` is missing, every key left out is chosen from public numbers
    (docs/plan.md), before the run is stored; `evolution: auto` leaves out all keys.
    """

    iterations: int = Field(
        0,
        ge=0,
        le=10_000,
        description="T; 0 gives random samples only",
        json_schema_extra=CHOSEN,
    )
    population: Members | list[Members] = Field(
        1,
        description="members of S_t, all labels; a list gives S_0 … S_T",
        json_schema_extra=CHOSEN,
    )
    degree: Degree | list[Degree] = Field(
        0.5,
        description="v_t: 1 = as new, 0 = unchanged: S_t is the chosen candidates as they are, at "
        "no call",
    )
    lookahead: Lookahead | list[Lookahead] = Field(
        0,
        description="k, variations whose mean embedding stands for a candidate; 0 = none: its own "
        "embedding",
    )
    reuse_lookahead: bool = Field(
        False,
        description="the lookahead's variations of a chosen parent become its offspring, which "
        "saves calls",
    )
    threshold: Finite | list[Finite] | None = Field(None, description="H, in votes")
    threshold_sigmas: Finite | list[Finite] | None = Field(
        None,
        description="H, in standard deviations of the noise",
    )
    neighbors: Count = Field(1, description="q, candidates each record votes for, 1/√q each")
    metric: Literal["l2", "cosine"] = Field("l2", description="distance in embedding space")
    neighbor_search: Literal["auto", "faiss", "torch"] = Field(
        "auto",
        description="the library that finds nearest candidates, on all GPUs that it sees, else on "
        "the CPU; "
        "auto: the first of faiss on GPUs, torch on GPUs, faiss, torch. All give the same votes",
    )
    selection: Selection | list[Selection] = Field(
        "sample",
        description="how parents are chosen from noisy votes: drawn in proportion; systematic: as "
        "often as their share "
        "says; or from the highest rank down",
    )
    keep: Keep | list[Keep] = Field(
        "none",
        description="which candidates stay in S_t as they are, at no call: none, selected (the "
        "parents), winners (of "
        "this or an earlier vote, at most half of S_t), or all; they take the place of offspring",
    )
    offspring: Offspring | list[Offspring] = Field(
        1,
        description="k, the variations that a parent gets whenever it is chosen",
    )
    initial_variations: int = Field(
        0,
        ge=0,
        le=1000,
        description="k of k + 1 members of S_0 are variations, at degree v_1, of its random "
        "samples",
    )
    label_sizes: (
        Literal["equal"] | dict[LabelName, Annotated[float, Field(gt=0, allow_inf_nan=False)]]
    ) = Field(
        "equal",
        description="public proportions of the labels; never counted from the private data",
    )
    votes: Literal["raw", "smooth"] = Field(
        "raw",
        description="what a candidate weighs: its noisy votes over H; smooth: these times its "
        "label's claim on it, by "
        "the votes of all labels near it (docs/plan.md)",
    )
    estimate_label_sizes: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None,
        description="share of ε for noisy label counts, which then take the place of label_sizes",
    )
    measure_degree: Literal["auto", "always", "never"] = Field(
        "auto",
        description="whether the run first tries, by 8 new samples and a variation of each at its "
        "own least degree, "
        "that these are variations of their parents, and stops if not; auto: if it asks other "
        "machines, and only puts "
        "several degrees in words, or sends several parents at once",
    )
    attempts: Count = Field(5, description="how often a sample may fail before the run stops")

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        if value == AUTO:
            return {}
        if not isinstance(value, dict):
            return value
        lengths = [
            len(one) - (name == "population")
            for name, one in value.items()
            if isinstance(one, list)
        ]
        if lengths:
            value = {"iterations": max(lengths[0], 0)} | value
        if value.get("iterations") == 0:  # schedules of no entry say nothing
            return {name: one for name, one in value.items() if name not in SCHEDULES or one != []}
        return value

    @property
    def is_complete(self) -> bool:
        """True if no value is left for the planner to choose."""
        return {"iterations", "population"} <= self.model_fields_set

    @property
    def own_values(self) -> dict[str, Any]:
        """The values that the recipe gives, by key."""
        return {name: getattr(self, name) for name in sorted(self.model_fields_set)}

    @model_validator(mode="after")
    def _consistent(self) -> Evolution:
        if self.threshold is not None and self.threshold_sigmas is not None:
            raise ValueError("give threshold or threshold_sigmas, not both")
        if self.reuse_lookahead and "lookahead" not in self.model_fields_set:
            raise ValueError(
                "reuse_lookahead needs lookahead, which is 0 by default: set it too, to 4, say"
            )
        if self.estimate_label_sizes is not None and self.label_sizes != "equal":
            raise ValueError("give label_sizes or estimate_label_sizes, not both")
        for name in SCHEDULES:
            check_length(name, getattr(self, name), self.iterations)
        check_length("population", self.population, self.iterations, 1)
        # The variations in S_0 are made at v_1, and at degree 0 they would be copies.
        first = (
            self.degree[:1]
            if isinstance(self.degree, list)
            else [self.degree] * min(self.iterations, 1)
        )
        if self.initial_variations and first == [0]:
            raise ValueError(
                "initial_variations are made at the first degree, which is 0: set it above 0"
            )
        return self


OBJECT = "object:"
"""The start of the recorded `kind` of a plug-in that was handed over as an object. Its class
follows."""

WITHOUT_NOISE = "none"
NOMINAL = 1e-6
"""The δ of a run without noise, which has no guarantee and states no δ. No number that follows from
it is shown."""

BOTH_WAYS = (
    "give epsilon or noise_multiplier, and delta; or `privacy: none`: no noise and no guarantee, "
    "for studies"
)


_EARLIER = {"private_sets": "may_overlap", "public_clock": "auto", "clock_slack": 3.0}
"""Keys of earlier versions, with the values that stored recipes have and this version keeps to."""


class Privacy(Settings):
    """The guarantee asked for: a target ε or a noise multiplier, and δ.

    Or, in place of the section, the word `none`, for studies: no noise is added to the votes, and
    no guarantee holds.
    """

    delta: float = Field(
        gt=0,
        lt=1,
        description="δ, well below 1 / number of records (1e-6, say); no default",
    )
    epsilon: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="target ε of the whole run",
    )
    noise_multiplier: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="noise standard deviation over sensitivity, every iteration",
    )
    noise: Literal["none"] | None = Field(
        None,
        description="none: as `privacy: none`; then pool_overlaps alone may stand beside it",
        json_schema_extra={"left_out": "drawn"},
    )
    relation: Relation = Field(Relation.ADD_REMOVE, description="which data sets are neighbours")
    pool_overlaps: Literal["refused", "declared"] = Field(
        "refused",
        description="public samples in the private records' place, and public images that are "
        "private records; "
        "declared: allowed, because the private records are published, and the certificate says so",
    )
    schedule: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]] | None = Field(
        None,
        description="each iteration's share of the budget (of μ²); any scale; default: equal "
        "shares",
    )
    hold: Literal["auto", "off"] | Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        "auto",
        description="how many seconds each piece of private work takes at least, so that who "
        "receives requests, or "
        "sees the console, cannot time it; auto: measured here, where the generator asks other "
        "machines",
    )

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        if value is None or isinstance(value, str):
            if value != WITHOUT_NOISE:
                raise ValueError(BOTH_WAYS)
            value = {"noise": WITHOUT_NOISE}
        # Stored recipes of earlier versions have keys that say what this version always does.
        if isinstance(value, dict):
            value = {
                key: one
                for key, one in value.items()
                if key not in _EARLIER or one != _EARLIER[key]
            }
        if not isinstance(value, dict) or value.get("noise") != WITHOUT_NOISE:
            return value
        others = [
            key
            for key in value
            if key in cls.model_fields and key not in ("noise", "pool_overlaps")
        ]
        if others:
            raise ValueError(
                f"with noise: none, {', '.join(others)} has no meaning: remove it, or remove noise"
            )
        return value | {"delta": NOMINAL}

    @model_serializer(mode="wrap")
    def _as_given(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = whole(self)
        if self.noiseless:
            return {key: content[key] for key in ("noise", "pool_overlaps")}
        return content

    @property
    def noiseless(self) -> bool:
        """True if no noise is added, so that there is no guarantee."""
        return self.noise == WITHOUT_NOISE

    @model_validator(mode="after")
    def _one_of_both(self) -> Privacy:
        if not self.noiseless and (self.epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("give either epsilon or noise_multiplier, and not both")
        return self


class LimitSection(Settings):
    """A run stops between chunks when it reaches a limit. `pe run RUN` continues it."""

    max_images: Count | None = Field(
        None,
        description="samples (images, texts) made over the whole run",
    )
    max_cost: Amount | None = Field(None, description="in api.price's currency")
    max_seconds: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="during which one process asks the generator; private work does not count",
    )
    max_concurrency: Count | None = Field(None, description="requests under way at once")


class RefusalSection(Settings):
    """What happens when the generator refuses a sample, for example by a content filter."""

    retries: Annotated[int, Field(ge=0)] = Field(
        2,
        description="how often a refused sample is asked for again; then a variation keeps its "
        "parent",
    )
    max_share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.5,
        description="the run stops when more than this share of what it asks for is refused",
    )


class FitSection(Settings):
    """The part of the budget that fitting a generator on the private records takes."""

    budget_share: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None,
        description="share of privacy.epsilon; left out: .4 for fitted_chat and fitted_causal_lm, "
        "all if T is 0",
    )


class ApiSpec(PluginSpec):
    """A generator, what its provider charges, and what fitting it may cost."""

    price: PriceSection = PriceSection()
    fit: FitSection | None = None


class Recipe(Settings):
    """All that describes a run: data, generator, embedding, guarantee, evolution, limits."""

    name: str = Field(
        "run",
        description="goes into the run's name: ASCII letters, digits, '.', '_', '-'",
    )
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
            raise ValueError(
                "use the letters A-Z and a-z, digits, '.', '_' and '-' alone, a letter or digit "
                "first"
            )
        return name

    @model_validator(mode="after")
    def _budget_fits_evolution(self) -> Recipe:
        schedule = self.privacy.schedule
        iterations = self.evolution.iterations
        if "iterations" in self.evolution.model_fields_set:
            check_length("privacy.schedule", schedule, iterations, only_list=True)
        if self.evolution.estimate_label_sizes is not None and self.privacy.epsilon is None:
            raise ValueError(
                "evolution.estimate_label_sizes is a share of privacy.epsilon: set that too"
            )
        return self

    @model_validator(mode="after")
    def _priced_is_limited(self) -> Recipe:
        prices = {"api.price": self.api.price}
        prices |= {f"api.{key}.price": one.price for key, one in members_of(self.api).items()}
        paying = [key for key, one in prices.items() if not one.price.free]
        if paying and self.limits.max_cost is None:
            raise ValueError(
                f"{paying[0]} needs limits.max_cost: set it to the most that the run may cost"
            )
        if paying[:1] == ["api.price"] and paying[1:]:
            raise ValueError(
                f"api.price and {paying[1]} are both set: price each generator, or all as one"
            )
        return self

    @classmethod
    def parse(cls, content: Any, where: str) -> Recipe:
        """Read `content`, plain mappings and scalars. Paths are taken from the current folder.

        Content without an embedding gets the usual one, which depends on what is installed here
        (`usual_embedding`).

        Raises:
            RecipeError: `content` is no valid recipe; one sentence on the first fault, which begins
                with `where`.
        """
        if not isinstance(content, dict):
            raise RecipeError(f"{where} is not a mapping of keys to values.")
        content = with_full_paths(content, Path())
        if isinstance(content.get("private"), dict):
            content = content | {"private": read_source(content["private"], where, "private")}
        private = content.get("private")
        if isinstance(private, PrivateSource):
            if "embedding" not in content:
                content = content | {"embedding": usual_embedding(private)}
            content = with_shared(content, private)
        return read_settings(cls, content, where)

    @classmethod
    def load(cls, path: Path, changes: tuple[str, ...] = ()) -> Recipe:
        """Read a YAML file, and apply `changes` of the form `a.b=value`.

        Paths in the file are taken from its folder, and paths in `changes` from the current folder.

        Raises:
            RecipeError: the file is missing, is not YAML, gives a key twice or is no recipe.
        """
        content = with_full_paths(read_yaml(path), path.parent)
        for change in changes:
            content = with_change(content, change)
        return cls.parse(content, str(path))

    def dump(self) -> str:
        """The recipe as YAML. `load` reads it back equal."""
        return _yaml(self._content())

    def dump_shareable(self) -> str:
        """The recipe as YAML for everybody: the place of the private records is withheld."""
        content = self._content()
        places = content["private"].keys() & set(self.private.withheld)
        return _yaml(content | {"private": content["private"] | dict.fromkeys(places, WITHHELD)})

    def chosen_as(self, other: Recipe) -> Recipe:
        """A copy of this recipe, with unset keys of `evolution` and its schedule from `other`."""
        evolution = Evolution.model_validate(other.evolution.own_values | self.evolution.own_values)
        schedule = self.privacy.schedule or other.privacy.schedule
        privacy = self.privacy.model_copy(update={"schedule": schedule})
        return self.model_copy(update={"evolution": evolution, "privacy": privacy})

    def _content(self) -> dict[str, Any]:
        """Plain mappings and scalars, without values that are not set.

        In a plug-in's settings, None counts as set.
        """
        content: dict[str, Any] = self.model_dump(mode="json", exclude_none=True)
        if not self.api.price.is_stated:
            del content["api"]["price"]
        for section, spec in (("api", self.api), ("embedding", self.embedding)):
            content[section] |= {
                name: None for name, value in spec.settings.items() if value is None
            }
        return content


def _yaml(content: dict[str, Any]) -> str:
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
