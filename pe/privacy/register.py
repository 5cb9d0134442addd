"""The register of data sets: in which ledger file the runs over which records stand, for all data sets of one user.

A data set's ledger file lies beside the data, so a copy of the same records elsewhere would begin a file of its own.
The register remembers a sample of each data set's records, under a key of its own, and the file in which runs over them
were entered. It is confidential: whoever can read it can test a guess at a record.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pe.errors import PrivacyError, RecipeError
from pe.privacy.data_set import DataSetLedger
from pe.privacy.locked_file import locked_file

FORMAT = 1
SAMPLE = 1024
"""Most records of a data set that are remembered: those of the smallest keyed digests, which are a random sample."""
ENOUGH = 0.1
"""The share of the smaller one's records that two data sets have in common, from which on they count as one."""

STATE_HOME = "XDG_STATE_HOME"
"""The environment variable below whose folder the register lies."""

_BYTES = 8
"""Of a keyed digest that are kept: a million records meet a wrong one of a register of 10^5 once in 10^8 times."""
_PIECE = 2**16
"""Digests that are keyed together."""

Sample = Sequence[str]
"""Keyed digests, hexadecimal, ascending."""


def register_path() -> Path:
    """`$XDG_STATE_HOME/private-evolution-toolkit/data-sets.json`; by default below `~/.local/state`.

    Raises:
        PrivacyError: neither is known.
    """
    state = os.environ.get(STATE_HOME, "")
    try:
        home = Path(state) if Path(state).is_absolute() else Path("~/.local/state").expanduser()
    except RuntimeError as error:
        raise PrivacyError(
            f"There is no home directory for the register of data sets: set {STATE_HOME} to a folder of yours."
        ) from error
    return home / "private-evolution-toolkit" / "data-sets.json"


@dataclass(frozen=True)
class _Known:
    """A data set over which a run was entered.

    Attributes:
        file: the ledger file.
        run: the last run over these records that was entered in it.
        records: their sample.
    """

    file: str
    run: str
    records: Sample

    def stands_in(self, ledger: DataSetLedger) -> bool:
        """Whether a ledger file holds that run, wherever the file lies by now."""
        return ledger.knows(self.run)

    @property
    def lost(self) -> bool:
        """Whether the ledger file is gone, or is an older one that lacks the run."""
        return not self.stands_in(DataSetLedger(Path(self.file)))


class Remembered:
    """The records of a data set as a register remembers them; under one key they are hashed once.

    Args:
        digests: of the records, 32 bytes each; of equal ones, one counts.
    """

    def __init__(self, digests: npt.NDArray[np.uint8]) -> None:
        self._digests = digests
        self._samples: dict[bytes, Sample] = {}

    def sample(self, key: bytes) -> Sample:
        """The SAMPLE smallest digests under the key."""
        if key not in self._samples:
            keyed = hmac.new(key, digestmod="sha256")  # copied, so that the key is hashed once

            def under_key(digest: npt.NDArray[np.uint8]) -> bytes:
                one = keyed.copy()
                one.update(digest.data)
                return one.digest()[:_BYTES]

            smallest = np.empty(0, np.uint64)
            for at in range(0, len(self._digests), _PIECE):
                piece = np.frombuffer(b"".join(map(under_key, self._digests[at : at + _PIECE])), ">u8")
                smallest = np.unique(np.concatenate([smallest, piece.astype(np.uint64)]))[:SAMPLE]
            self._samples[key] = [f"{digest:0{2 * _BYTES}x}" for digest in smallest.tolist()]
        return self._samples[key]


@dataclass(frozen=True)
class Register:
    """The register of one user.

    Attributes:
        path: the file; it need not exist yet.
    """

    path: Path = field(default_factory=register_path)

    def check(self, records: Remembered, ledger: DataSetLedger, named: bool) -> None:
        """Refuse a ledger file that lacks earlier runs over the same records; nothing is noted.

        So a run over several data sets together goes where the runs over each are counted (`DataSetLedger.add`).

        Two data sets count as the same when they share a tenth, or more, of the smaller one's records. That is told
        from at most SAMPLE records of each, so a set below a hundredth of the other's size may be missed.

        Guarantee: none. Whether it refuses depends on the records: the message is for their owner, and no run goes on
        beside it.

        Args:
            records: the records.
            ledger: the ledger file that the run would be entered in.
            named: whether the recipe names it, so that it may follow one that is lost.

        Raises:
            RecipeError: runs over these records stand in another ledger file, or in one that is lost.
            PrivacyError: the register, or a ledger file, cannot be read.
        """
        with self._open() as (key, known, _):
            _check(known, records.sample(key), ledger, named)

    @contextmanager
    def entering(self, records: Remembered, ledger: DataSetLedger, named: bool, run: str) -> Iterator[None]:
        """Check as `check` does; once the block has entered `run` in `ledger`, note that it stands there, durably.

        Raises:
            RecipeError: as `check`.
            PrivacyError: as `check`.
        """
        with self._open() as (key, known, save):
            sample = records.sample(key)
            _check(known, sample, ledger, named)
            yield
            others = [one for one in known if one.records != sample or not (one.stands_in(ledger) or one.lost)]
            save([*others, _Known(str(ledger.path.resolve()), run, sample)])

    @contextmanager
    def _open(self) -> Iterator[tuple[bytes, list[_Known], Callable[[list[_Known]], None]]]:
        """The key, what is known, and a function that replaces that; no other process comes between."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked_file(self.path) as (content, write):
                key, known = self._parse(content) if content else (secrets.token_bytes(32), [])

                def save(now: list[_Known]) -> None:
                    write(json.dumps({"format": FORMAT, "key": key.hex(), "known": [asdict(one) for one in now]}))

                yield key, known, save
        except OSError as error:
            raise PrivacyError(
                f"The register of data sets {self.path} cannot be written ({error.strerror}): "
                "set XDG_STATE_HOME to a folder of yours."
            ) from error

    def _parse(self, written: bytes) -> tuple[bytes, list[_Known]]:
        try:
            content: dict[str, Any] = json.loads(written.decode())
            if content["format"] != FORMAT:
                raise ValueError("another format")
            known = [(str(one["file"]), str(one["run"]), list(map(str, one["records"]))) for one in content["known"]]
            return bytes.fromhex(content["key"]), [_Known(*one) for one in known]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise PrivacyError(
                f"{self.path} is no register of data sets: restore it from a copy; if there is none, delete it: then "
                "copies of data sets that were used before are not recognised."
            ) from error


def _check(known: Sequence[_Known], sample: Sample, ledger: DataSetLedger, named: bool) -> None:
    """Refuse, if runs over these records are known that do not stand in `ledger`."""
    elsewhere = [one for one in known if _same(one.records, sample) and not one.stands_in(ledger)]
    for one in elsewhere:
        if not one.lost:
            remedy = f"set private.ledger_file: {one.file}, so that they add up"
            if ledger.read()["runs"].keys() - DataSetLedger(Path(one.file)).read()["runs"].keys():
                remedy = f"count them together by `pe ledger --file {ledger.path} --add {one.file}`"
            raise RecipeError(
                f"Runs over these records, or a tenth of them or more, stand in {one.file}, and this one would be "
                f"entered in {ledger.path}: {remedy}."
            )
    if elsewhere and not named:
        raise RecipeError(
            f"Runs over these records, or a tenth of them or more, stood in {elsewhere[0].file}, which is gone or "
            f"older: restore it, or set private.ledger_file to where it lies now (if it is lost, to {ledger.path}, "
            "and those runs count no more)."
        )


def _same(one: Sample, other: Sample) -> bool:
    """Whether two data sets share ENOUGH: counted up to the digest to which both samples are complete."""
    reach = min((each[-1] for each in (one, other) if len(each) == SAMPLE), default="g")
    ours, theirs = ({digest for digest in each if digest <= reach} for each in (one, other))
    shared = len(ours & theirs)
    return shared > 0 and shared >= ENOUGH * min(len(ours), len(theirs))
