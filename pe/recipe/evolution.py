"""The recipe's section `evolution`: Algorithm 1's parameters."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from pe.plugins.validation import Count, Settings
from pe.recipe.lengths import check_length

AUTO = "auto"
CHOSEN: dict[str, Any] = {"left_out": "chosen"}
"""What a default is told as that the planner chooses (pe/recipe/reference.py)."""

MAX_SAMPLES = 10_000_000
"""Most members of a population, or of an extension, at once: 120 GB of images of 64×64 pixels in colour."""

Selection = Literal["sample", "systematic", "rank"]
Keep = Literal["none", "selected", "winners", "all"]
SCHEDULES = ("degree", "lookahead", "threshold", "threshold_sigmas", "selection", "keep", "offspring")
"""Keys that may be lists, with one entry per iteration."""

Members = Annotated[int, Field(ge=1, le=MAX_SAMPLES)]
Offspring = Annotated[int, Field(ge=1, le=10_000)]
Lookahead = Annotated[int, Field(ge=0, le=10_000)]
Degree = Annotated[float, Field(ge=0, le=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Evolution(Settings):
    """Algorithm 1's parameters, or `auto`; a schedule is one number, or a list with one number per iteration.

    Without `iterations` or `population`, all that is not given is chosen from public numbers (docs/plan.md), before the
    run is stored; `evolution: auto` gives nothing.
    """

    iterations: int = Field(0, ge=0, le=10_000, description="T; 0 gives random samples only", json_schema_extra=CHOSEN)
    population: Members | list[Members] = Field(
        1, description="members of S_t, all labels; a list gives S_0 … S_T", json_schema_extra=CHOSEN
    )
    degree: Degree | list[Degree] = Field(
        0.5,
        description="v_t: 1 = as new, 0 = unchanged: S_t is the chosen candidates as they are, at no call",
    )
    lookahead: Lookahead | list[Lookahead] = Field(
        0, description="k, variations whose mean embedding stands for a candidate; 0 = none: its own embedding"
    )
    reuse_lookahead: bool = Field(
        False, description="the lookahead's variations of a chosen parent become its offspring, which saves calls"
    )
    threshold: Finite | list[Finite] | None = Field(None, description="H, in votes")
    threshold_sigmas: Finite | list[Finite] | None = Field(None, description="H, in standard deviations of the noise")
    neighbors: Count = Field(1, description="q, candidates each record votes for, 1/√q each")
    metric: Literal["l2", "cosine"] = Field("l2", description="distance in embedding space")
    neighbor_search: Literal["auto", "faiss", "torch"] = Field(
        "auto",
        description="the library that finds nearest candidates: faiss on the CPU, torch on all GPUs, else on the CPU; "
        "auto: torch where it sees a GPU, else faiss. All give the same votes",
    )
    selection: Selection | list[Selection] = Field(
        "sample",
        description="how parents are chosen from noisy votes: drawn in proportion; systematic: as often as their share "
        "says; or from the highest rank down",
    )
    keep: Keep | list[Keep] = Field(
        "none",
        description="which candidates stay in S_t as they are, at no call: none, selected (the parents), winners (of "
        "this or an earlier vote, at most half of S_t), or all; they take the place of offspring",
    )
    offspring: Offspring | list[Offspring] = Field(
        1, description="k, the variations that a parent gets whenever it is chosen"
    )
    initial_variations: int = Field(
        0, ge=0, le=1000, description="k of k + 1 members of S_0 are variations, at degree v_1, of its random samples"
    )
    label_sizes: Literal["equal"] | dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(
        "equal", description="public proportions of the labels; never counted from the private data"
    )
    estimate_label_sizes: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="share of ε for noisy label counts, which then take the place of label_sizes"
    )
    measure_degree: Literal["auto", "always", "never"] = Field(
        "auto",
        description="whether the run first tries, by 8 new samples and a variation of each at its own least degree, "
        "that these are variations of their parents, and stops if not; auto: if it asks other machines, and only puts "
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
        lengths = [len(one) - (name == "population") for name, one in value.items() if isinstance(one, list)]
        if lengths:
            value = {"iterations": max(lengths[0], 0)} | value
        if value.get("iterations") == 0:  # schedules of no entry say nothing
            return {name: one for name, one in value.items() if name not in SCHEDULES or one != []}
        return value

    @property
    def settled(self) -> bool:
        """Whether nothing is left to be chosen."""
        return {"iterations", "population"} <= self.model_fields_set

    @property
    def given(self) -> dict[str, Any]:
        """What the recipe gives, by key."""
        return {name: getattr(self, name) for name in sorted(self.model_fields_set)}

    @field_validator("label_sizes", mode="before")
    @classmethod
    def _names_are_text(cls, value: Any) -> Any:
        return {str(name): size for name, size in value.items()} if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _consistent(self) -> Evolution:
        if self.threshold is not None and self.threshold_sigmas is not None:
            raise ValueError("give threshold or threshold_sigmas, not both")
        if self.reuse_lookahead and "lookahead" not in self.model_fields_set:
            raise ValueError("reuse_lookahead needs lookahead, which is 0 if it is not given: give it too, 4 (say)")
        if self.estimate_label_sizes is not None and self.label_sizes != "equal":
            raise ValueError("give label_sizes or estimate_label_sizes, not both")
        for name in SCHEDULES:
            check_length(name, getattr(self, name), self.iterations)
        check_length("population", self.population, self.iterations, 1)
        first = self.degree[:1] if isinstance(self.degree, list) else [self.degree] * min(self.iterations, 1)
        if self.initial_variations and first == [0]:
            raise ValueError("initial_variations are made at degree v_1, which is 0: give a first degree above 0")
        return self
