"""A generator that another run fitted answers in this run, and its cost counts in this run, too."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from adapters.public_files import paths_of, samples_of
from pe.data.samples import Array, Samples, Shape
from pe.errors import PluginError, RecipeError
from pe.fit.trainer import MODEL, Fitted, FitTerms, Fitting, Trainer, is_own
from pe.plugins.protocols import (
    Answer,
    Capabilities,
    Generator,
    PluginInfo,
    RandomRequest,
    VariationRequest,
    info_of,
)
from pe.plugins.reach import leaves, reach
from pe.plugins.registry import load
from pe.plugins.specs import construct, plugin
from pe.privacy.accounting import epsilon
from pe.privacy.certificate_text import round_up
from pe.privacy.release import Release


@plugin
class Trained(Generator):
    """To use a model again that another run fitted, without a second fit.

    Guarantee: the releases of that fit are charged to this run's ledger, each as often as it was in
    the other run, because one person's records may be in both runs; nothing is drawn anew.

    Attributes:
        path: directory of the finished run that fitted the model, or of one that took the model
            over.
        settings: of the fitted generator, if they are to differ from the other run's settings, such
            as sampling or device. Code that the model names to be run (`teacher:
            package.module:function`) must be named here again. Relative paths are taken from the
            current folder.
    """

    info = PluginInfo(
        hosts=(),
        machine_settings=("settings.device", "settings.batch_size", "settings.public.path"),
        code_settings=("settings.teacher",),
        fitted_before=True,
        by_label=True,
    )

    path: Path
    settings: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self._api: Generator | None = None

    @property
    def capabilities(self) -> Capabilities:
        """The fitted generator's capabilities."""
        return self._generator().capabilities

    def describe_degree(self, degree: float, iteration: int = 1) -> str:
        """Describe what this degree means for the fitted generator."""
        return self._generator().describe_degree(degree, iteration)

    def public_paths(self) -> tuple[Path, ...]:
        """Return the public files of the fitted generator.

        This run's records may be among its public samples.
        """
        return paths_of([self._generator()])

    def public_samples(
        self,
        shape: Shape,
        rule: str | None,
    ) -> Iterator[tuple[str, Array]]:
        """Yield the public samples of the fitted generator."""
        return samples_of([self._generator()], shape, rule)

    def labelled_public(self, shape: Shape, seed: int) -> tuple[Samples, Sequence[str]] | None:
        """Return the labelled public samples of the fitted generator: see `Generator`."""
        return self._generator().labelled_public(shape, seed)

    def check_machine(self) -> None:
        """Raise PEError if the model cannot answer here.

        Its device, or something that it reads, may be missing.
        """
        generator = self._generator()
        generator.check_machine()
        assert isinstance(generator, Trainer)
        generator.load(self.path / MODEL)

    def plan_releases(self, terms: FitTerms) -> Sequence[Release]:
        """Return the releases of the other run's fit.

        Raises:
            RecipeError: no such run, or its model was fitted for other labels, sizes, relation or
                unit, cost more than the budget, or runs code that this recipe does not name.
        """
        record = Fitted.of_run(self.path)
        self._api = self._made(record, self.path)
        for what, theirs, ours in (
            ("the labels", record.classes, terms.classes),
            ("height, width and channels", record.shape, terms.shape),
            ("the relation", {str(one.relation) for one in record.releases}, {str(terms.relation)}),
            ("the unit", {one.unit for one in record.releases}, {terms.unit}),
        ):
            if list(theirs) != list(ours):
                raise RecipeError(
                    f"`api.path`: the model of {self.path} was fitted for {what} "
                    f"{', '.join(map(str, theirs))}, but this recipe says "
                    f"{', '.join(map(str, ours))}. Make them the same, or fit a model of your own."
                )
        # A ledger has each name once, and that fit may have been charged twice after a crash.
        releases = _with_own_names(record.releases)
        budget = terms.budget
        cost = epsilon(releases, budget.delta)
        if cost > budget.epsilon:
            raise RecipeError(
                f"`privacy.epsilon` is {budget.epsilon:g}, but the fit of {self.path} cost ε = "
                f"{round_up(cost)} at δ = {budget.delta:g}. Raise it, or reuse a model that cost "
                "less."
            )
        return releases

    def fit(self, fitting: Fitting) -> None:
        """Charge the other fit's releases to this run's ledger, then copy its model.

        The files of these releases in this run's `releases/` are empty: the other run has the noisy
        values.
        """
        for release in self.plan_releases(fitting.terms):
            fitting.ledger.release(release, lambda _: np.zeros(0))
        shutil.copytree(self.path / MODEL, fitting.folder, dirs_exist_ok=True)

    def load(self, folder: Path) -> None:
        """Answer from the model in `folder`.

        Raise RecipeError if there is none, or it is damaged.
        """
        generator = self._made(Fitted.read(folder), folder.parent)
        generator.load(folder)
        self._api = generator

    def random_api(self, request: RandomRequest) -> Answer:
        """Return the fitted generator's answer."""
        return self._generator().random_api(request)

    def variation_api(self, request: VariationRequest) -> Answer:
        """Return the fitted generator's answer."""
        return self._generator().variation_api(request)

    def _generator(self) -> Generator:
        if self._api is None:
            self._api = self._made(Fitted.of_run(self.path), self.path)
        return self._api

    def _made(self, record: Fitted, run: Path) -> Any:
        """Return the generator that `record` describes, whose model is in `run`.

        Raise RecipeError if the record names code that this recipe does not name, too; likewise an
        address, a key or a file, if the run was made elsewhere.
        """
        settings = _merge(record.settings, self.settings or {})
        code = info_of(load("pe.adapters", record.kind)).code_settings
        own = is_own(run)
        named = dict(leaves(self.settings))
        for key, value in reach({"kind": record.kind, **settings}, run).items():
            if key not in named and (key in code or not own):
                does = "runs code" if key in code else "uses a thing of this machine"
                raise RecipeError(
                    f"`api.path`: the model of {self.path} {does} that it names itself, {key}: "
                    f"'{value}'. If you trust that, name it in `api.settings`, too (an address as "
                    "`base_url`)."
                )
        generator = construct("pe.adapters", record.kind, settings)
        if not isinstance(generator, Trainer):
            raise PluginError(
                f"{self.path} was fitted with '{record.kind}', which cannot be fitted here. "
                "Install the version that can."
            )
        return generator


def _with_own_names(releases: Sequence[Release]) -> tuple[Release, ...]:
    """Return the releases under different names: a number is added to a name that occurs again."""
    by_name: dict[str, Release] = {}
    for release in releases:
        name = release.name
        again = 1
        while name in by_name:
            again += 1
            name = f"{release.name}/again-{again}"
        by_name[name] = replace(release, name=name)
    return tuple(by_name.values())


def _merge(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `settings` with the values of `changes`.

    In a section, only the keys that `changes` names are replaced.
    """
    union = dict(settings)
    for key, value in changes.items():
        before = settings.get(key)
        union[key] = (
            _merge(before, value)
            if isinstance(before, Mapping) and isinstance(value, Mapping)
            else value
        )
    return union
