"""What an evaluation is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pe.errors import RecipeError, check_list, nearest_name
from pe.evaluation.classifiers import Classifier, NetworkSettings
from pe.plugins.protocols import Embedding, GenerationAPI
from pe.plugins.specs import PluginSpec

METRICS = ("fidelity", "utility", "memorisation")


@dataclass(frozen=True)
class Request:
    """What to measure, with what, against what.

    Attributes:
        test: where real samples that no run has seen are; see `source_at` of pe/evaluation/methods.py.
        metrics: of METRICS; None: all that are possible.
        seeds: trainings of each classifier on each set, ≥ 1.
        embeddings: under which samples are compared; the first serves memorisation and the verdict too. Empty: the
            run's own.
        classifiers: names, see `Classifier`; None: those of the modality.
        networks: settings of ResNet-9.
        reference: where the real (or public) samples are that fidelity compares with; None: the test set.
        canaries: a UTF-8 file with a string in each line, which the user planted among the private texts.
        random_selection: whether to run that control: True, False, or None: where it is free and quick.
        one_vote: likewise.
        api: the generator, when it is the user's own object.
        embedding: the run's embedding, when it is the user's own object.

    Raises:
        RecipeError: an unknown metric or classifier, or a text in place of a list of them, no seed.
    """

    test: str
    metrics: tuple[str, ...] | None = None
    seeds: int = 3
    embeddings: tuple[PluginSpec, ...] = ()
    classifiers: tuple[str, ...] | None = None
    networks: NetworkSettings = field(default_factory=NetworkSettings)
    reference: str | None = None
    canaries: Path | None = None
    random_selection: bool | None = None
    one_vote: bool | None = None
    api: GenerationAPI | None = None
    embedding: Embedding | None = None

    def __post_init__(self) -> None:
        for name in ("metrics", "embeddings", "classifiers"):
            check_list(name, getattr(self, name))
        for name in self.metrics or ():
            if name not in METRICS:
                raise RecipeError(f"Unknown metric '{name}': {nearest_name(name, METRICS)}")
        if self.seeds < 1:
            raise RecipeError(f"An evaluation needs one seed or more, not {self.seeds}.")
        _ = self.trained(())

    def trained(self, by_default: tuple[str, ...]) -> tuple[Classifier, ...]:
        """The classifiers; those `by_default` where none is named."""
        names = by_default if self.classifiers is None else self.classifiers
        return tuple(Classifier(name, self.networks) for name in names)

    @property
    def planted(self) -> tuple[str, ...]:
        """The canaries, each once.

        Raises:
            RecipeError: the file cannot be read, or holds none.
        """
        if self.canaries is None:
            return ()
        try:
            lines = self.canaries.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(
                f"{self.canaries} cannot be read as UTF-8: name a file with a canary in each line."
            ) from error
        found = tuple(dict.fromkeys(line.strip() for line in lines if line.strip()))
        if not found:
            raise RecipeError(f"{self.canaries} holds no canary: write one in each line.")
        return found

    def wants(self, metric: str) -> bool:
        """True if a metric is asked for."""
        return self.metrics is None or metric in self.metrics
