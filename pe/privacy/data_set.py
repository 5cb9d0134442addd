"""The data set's ledger: a file beside the private data that adds up all runs over it.

Every run enters its planned releases before it draws the first of them, and stays entered, finished
or not; a run that has drawn nothing may be struck out again. The file holds no private value; it
belongs to the owner of the data.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from pe.data.bounded import read_bytes
from pe.data.strict_json import json_object
from pe.errors import BudgetExceeded, PrivacyError
from pe.privacy.accounting import epsilon
from pe.privacy.certificate_text import finite
from pe.privacy.ledger import Budget
from pe.privacy.mechanisms import check_delta
from pe.privacy.release import Relation, Release

FORMAT = 1

Content = dict[str, Any]
"""What a ledger file holds, as JSON values. See `DataSetLedger.read`."""
Runs = dict[str, Any]
"""The identity of each run → its releases, as JSON values."""
MIXED = (
    "Such a total counts a run up to four times as much as the run itself does. To keep it small, "
    "give all runs over the same records one `private.privacy_unit` and one `privacy.relation`. "
    "What earlier runs have spent stays in it."
)
"""Explains a total over runs of several relations or units."""


@dataclass(frozen=True)
class DataSetLedger:
    """The ledger file of one data set, which need not exist yet.

    Every method raises PrivacyError if the file cannot be read or written, or is not a ledger file.
    """

    path: Path

    @classmethod
    def beside(cls, data: Path) -> DataSetLedger:
        """Return the ledger beside the folder or file `data`: `<data>.ledger.json`."""
        path = data.resolve()
        return cls(path.with_name(f"{path.name}.ledger.json"))

    def enter(self, run: str, releases: Sequence[Release], delta: float) -> dict[str, Any]:
        """Enter a run, durably. Entering it again replaces its entry.

        Args:
            run: the run's identity, not its name.
            releases: all that the run plans.
            delta: the δ, in (0, 1), at which the data set's total is stated.

        Returns:
            The data set's total for the certificate: epsilon and delta (None if a run added no
                noise), the number of runs, and `for`, if `whom` names neighbours.

        Raises:
            BudgetExceeded: the total would exceed the file's cap; the run was not entered.
        """
        with self._open() as (content, save):
            runs = self._runs_with(content, run, releases)
            save(content | {"runs": runs, "deltas": {**content["deltas"], run: delta}})
            return _total(runs, delta)

    def drew(self, run: str, releases: int) -> None:
        """Note, durably, how many releases a run has drawn and kept.

        A copy of the run that has fewer of them is older. Also called with 0 before the first draw;
        from then on the run cannot be struck out any more.

        Raises:
            PrivacyError: the run is not entered, for example because it was struck out meanwhile.
                It must not draw.
        """
        with self._open() as (content, save):
            if run not in content["runs"]:
                raise PrivacyError(
                    f"Nothing is drawn, because {self.path} does not list the run, or no longer. "
                    "Resume the run to enter it again."
                )
            save(content | {"drawn": {**content["drawn"], run: releases}})

    def strike(self, run: str) -> None:
        """Strike out a run that has drawn nothing, durably.

        After that it cannot draw until it is entered again. The caller must know that nothing was
        drawn; the file's note of draws (`drew`) is checked as well.

        Raises:
            PrivacyError: the run is not entered, or has begun to draw; nothing was changed.
        """
        with self._open() as (content, save):
            if run not in content["runs"]:
                raise PrivacyError(f"{self.path} does not list this run. Name the file that does.")
            if run in content["drawn"]:
                raise PrivacyError(
                    f"This run has begun to draw noise, so its entry stays in {self.path}."
                )
            del content["runs"][run]
            content["deltas"].pop(run, None)
            save(content)

    def draw_count(self, run: str) -> int:
        """Return how many releases the run has drawn and kept, as far as the file notes it."""
        return int(self.read()["drawn"].get(run, 0))

    def total(self, delta: float, releases: Sequence[Release] = ()) -> dict[str, Any]:
        """Return the data set's total, as `enter` does, also with one more run of `releases`."""
        more = {"": [release.to_dict() for release in releases]} if releases else {}
        return _total(self.read()["runs"] | more, delta)

    def check(self, releases: Sequence[Release]) -> None:
        """Raise BudgetExceeded if these releases do not fit under the cap. Enters no run."""
        with self._open() as (content, _):
            self._runs_with(content, "", releases)

    def refusal(self, releases: Sequence[Release]) -> str:
        """Return why `check` would refuse, or "". The file is only read, so none is made."""
        try:
            self._runs_with(self.read(), "", releases)
        except BudgetExceeded as error:
            return str(error)
        return ""

    def cap(self, budget: Budget | None) -> None:
        """Set the cap, which refuses every later run that would bring the total above it.

        None takes the cap away.
        """
        with self._open() as (content, save):
            save(content | {"cap": None if budget is None else asdict(budget)})

    def add(self, other: DataSetLedger) -> None:
        """Count all runs of another ledger file of the same records here, too, durably.

        A run that is in both files counts once, with the larger plan and the larger number of
        releases drawn.
        """
        theirs = other.read()
        with self._open() as (content, save):
            both = {name: theirs[name] | content[name] for name in ("runs", "deltas", "drawn")}
            for run in theirs["runs"].keys() & content["runs"].keys():
                # at any δ the larger plan costs more
                plans = theirs["runs"][run], content["runs"][run]
                both["runs"][run] = max(plans, key=lambda plan: total_epsilon({"": plan}, 1e-6))
            for run, count in theirs["drawn"].items():
                both["drawn"][run] = max(count, both["drawn"][run])
            save(content | both)

    def read(self) -> Content:
        """Return the file's content as JSON values.

        It has format, cap ({epsilon, delta} or None), runs (identity → releases), deltas (identity
        → the run's δ) and drawn (identity → releases kept; see `drew`). Old files do not know each
        run's δ.
        """
        try:
            return self._parse(read_bytes(self.path) if self.path.exists() else b"")
        except OSError as error:
            raise PrivacyError(
                f"The data set's ledger file {self.path} cannot be read ({error.strerror}). Check "
                "its permissions."
            ) from error

    @contextmanager
    def _open(self) -> Iterator[tuple[Content, Callable[[Content], None]]]:
        """Yield the file's content, and a function that replaces it, whole or not at all.

        Other processes are locked out.
        """
        try:
            with _locked_file(self.path) as (text, write):
                yield self._parse(text), lambda content: write(json.dumps(content, indent=1) + "\n")
        except OSError as error:
            raise PrivacyError(
                f"The data set's ledger file {self.path} cannot be written ({error.strerror}). "
                "Name another file in `private.ledger_file`."
            ) from error

    def _runs_with(self, content: Content, run: str, releases: Sequence[Release]) -> Runs:
        """Return the file's runs together with `run` and its releases.

        Raises BudgetExceeded if the cap does not allow them.
        """
        runs = {**content["runs"], run: [release.to_dict() for release in releases]}
        if content["cap"] is not None:
            budget = Budget(**content["cap"])
            total = total_epsilon(runs, budget.delta)
            if math.isinf(total):
                raise BudgetExceeded(
                    "No ε holds for the data set, because this run or an earlier one adds no noise "
                    f"(`privacy: none`), but {self.path} has a cap of ε = {budget.epsilon:g} at δ "
                    f"= {budget.delta:g}. Nothing was released."
                )
            if total > budget.epsilon:
                raise BudgetExceeded(
                    f"This run would bring the data set's total to ε = {total:.6g} at δ = "
                    f"{budget.delta:g}, above the cap of ε = {budget.epsilon:g} in {self.path}. "
                    "Nothing was released."
                )
        return runs

    def _parse(self, text: bytes) -> Content:
        empty: Content = {"deltas": {}, "drawn": {}}  # which files of earlier versions may lack
        if not text:
            return {"format": FORMAT, "cap": None, "runs": {}, **empty}
        try:
            content = empty | json_object(text.decode())
            if content["format"] != FORMAT:
                raise ValueError("another format")
            for releases in content["runs"].values():
                for release in releases:
                    Release.from_dict(release)
            for delta in content["deltas"].values():
                check_delta(delta)
            sum(content["drawn"].values())  # fails unless all are numbers
            if content["cap"] is not None:
                Budget(**content["cap"])
        except (ValueError, KeyError, TypeError, AttributeError, PrivacyError) as error:
            raise PrivacyError(
                f"{self.path} is not a ledger file of this software. Restore it from a copy."
            ) from error
        return content


def total_epsilon(runs: Runs, delta: float) -> float:
    """Return ε of all runs together at `delta`, for the neighbours that `whom` names.

    It is infinite if a run added no noise. docs/proofs.md proves it ("All runs over one data set").
    """
    releases = [Release.from_dict(values) for run in runs.values() for values in run]
    if len({release.unit for release in releases}) > 1:
        releases = list(map(for_a_record, releases))
    elif whom(runs):
        releases = list(map(_for_a_replacement, releases))
    return epsilon(releases, delta)


def whom(runs: Runs) -> str:
    """Return the neighbours for which a total over several relations or units holds.

    The result is empty if the runs share one relation and one unit.
    """
    releases = [values for run in runs.values() for values in run]
    units = sorted({values["unit"] for values in releases})
    if len(units) > 1:
        reason = f"since the runs protect different units ({', '.join(units)})"
        return f"for one record replaced by another, of the same unit or not, {reason}"
    if len({values["relation"] for values in releases}) > 1:
        return f"for one {units[0]} replaced by another, since the runs protect different relations"
    return ""


def for_a_record(release: Release) -> Release:
    """Return the release as it protects one record that is replaced by another.

    This holds for any relation and unit of the release. Where the unit is larger than a record, two
    units change if the new record is somebody else's, so the sensitivity doubles once more. If
    units are sampled by coins, the release counts as two instead, each with half the noise
    variance.
    """
    double = replace(_for_a_replacement(release), unit="record")
    if release.unit == "record":
        return double
    if release.sampling is not None:
        return replace(
            double, noise_multiplier=double.noise_multiplier / math.sqrt(2), count=2 * double.count
        )
    return replace(
        double, sensitivity=double.sensitivity * 2, noise_multiplier=double.noise_multiplier / 2
    )


def _for_a_replacement(release: Release) -> Release:
    """Return the release as it protects a unit replaced by another.

    Its sensitivity doubles unless it is for replace_one.
    """
    times = 1 if release.relation is Relation.REPLACE_ONE else 2
    return replace(
        release,
        relation=Relation.REPLACE_ONE,
        sensitivity=release.sensitivity * times,
        noise_multiplier=release.noise_multiplier / times,
    )


def _total(runs: Runs, delta: float) -> dict[str, Any]:
    epsilon = finite(total_epsilon(runs, delta))
    total = {"epsilon": epsilon, "delta": None if epsilon is None else delta, "runs": len(runs)}
    neighbours = whom(runs)
    return total | {"for": neighbours} if neighbours else total


@contextmanager
def _locked_file(path: Path) -> Iterator[tuple[bytes, Callable[[str], None]]]:
    """Yield the file's content (b"" if new) and a function that replaces it durably.

    Other processes are locked out. A new file has mode 0600, and is deleted again if nothing is
    written. An existing file keeps its mode, and a link to it stays a link. After an OSError,
    except in the last sync, the file is as it was.
    """
    while True:
        is_new = not path.exists()
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not _is_at(file, path):
                continue  # another process, which held the lock before, has replaced it
            status = os.fstat(file.fileno())
            try:
                yield file.read(), partial(_replace, path.resolve(), status.st_mode & 0o777)
            finally:
                if is_new and status.st_size == 0 and _is_at(file, path):
                    path.resolve().unlink()
            return


def _is_at(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _replace(path: Path, mode: int, text: str) -> None:
    new = path.with_name(f"{path.name}.part")
    new.unlink(missing_ok=True)
    with new.open("x", encoding="utf-8") as whole:
        os.fchmod(whole.fileno(), mode)
        whole.write(text)
        whole.flush()
        os.fsync(whole.fileno())
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the name, too
    finally:
        os.close(folder)
