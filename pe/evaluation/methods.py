"""The methods of evaluation for images, texts and tables.

Other modalities are compared by an embedding alone.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import blake2b
from itertools import chain
from math import ceil
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from pe.data.arrays import BoolArray, Float64Array, UInt64Array
from pe.data.columns import Codes, Column, Columns
from pe.data.constraints import Constraints
from pe.data.display import png
from pe.data.images import Images
from pe.data.rows import Rows
from pe.data.samples import Samples, distinct
from pe.data.structure import Structure
from pe.data.texts import RUN, plain
from pe.errors import RecipeError
from pe.evaluation.tables import compare_tables
from pe.judgement.classifiers import strings_of, words
from pe.judgement.labelled import Labelled, Labels, Values
from pe.private.dataset import sample_digest
from pe.private.look import kind_at, text_kind_at
from pe.private.modalities import RowSource, TextSource
from pe.private.npz import DIGITS
from pe.private.source import RECORD, PrivateSource, read_source
from pe.private.tables import ImageParquet, RowTable, TextTable
from pe.private.webdataset import WebDataset

Hashes = UInt64Array
File = tuple[str, bytes]
"""A file: its suffix and its content."""
MNIST = "mnist"
LEVEL = 0.01
"""Rate of false alarms of `beyond_chance`."""
LEAST_WORDS = 3
"""A text of fewer words shows nothing of a record: too many texts equal it."""
_FORM = "not of the declared form"
LEVELS = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)

_LABEL_COLUMN = "label"  # of a table, if the run's own source names none
_WITH_LABEL_COLUMN = (ImageParquet.kind, WebDataset.kind, TextTable.kind, RowTable.kind)
_MIXED = np.uint64(0x9E3779B97F4A7C15)
_SIDE = 96
_SEAM = 3
_GAP = 16
_TOP = 34
_CAPTION = 20
_COLUMNS = 4
_PAIR = 2 * _SIDE + _SEAM
_PAPER = (255, 255, 255)
_INK = (40, 40, 40)
_RED = (170, 0, 0)


class Methods:
    """Evaluate samples of any modality. Results are confidential."""

    equality: str = "value by value"  # what makes two samples equal, as words within a sentence
    equal_by_chance: bool = False  # whether samples of two people may well be equal
    # where real samples may lie, in words; empty: wherever the run's own kind of source reads them
    places: str = ""
    common: tuple[
        str, ...
    ] = ()  # settings of the run's source that a source of another kind has, too

    def shows(self, samples: Samples) -> BoolArray:
        """Mark the samples that show something of a record, bool (n,).

        The others never count as copies.
        """
        return np.ones(len(samples), bool)

    def comparable(self, ours: Samples, theirs: Samples) -> bool:
        """True if a sample of one set can equal one of the other."""
        return ours.shape == theirs.shape

    def pairs(self, synthetic: Samples, private: Samples, distances: Float64Array) -> File:
        """Return suffix and content of a file that shows generated samples and nearest records.

        There are n ≥ 1 samples, and distances (n,).

        By default a picture with the generated sample on the left, the private one on the right,
        the distance below.
        """
        rows = ceil(len(distances) / _COLUMNS)
        width = _GAP + min(len(distances), _COLUMNS) * (_PAIR + _GAP)
        sheet = Image.new("RGB", (max(width, 480), _TOP + rows * (_SIDE + _CAPTION + _GAP)), _PAPER)
        pen = ImageDraw.Draw(sheet)
        font = ImageFont.load_default(size=13)
        title = "CONFIDENTIAL. Generated | its nearest private record; their distance"
        pen.text((_GAP, 10), title, fill=_RED, font=font)
        for i, pair in enumerate(zip(synthetic.pictures(), private.pictures(), strict=True)):
            x = _GAP + i % _COLUMNS * (_PAIR + _GAP)
            y = _TOP + i // _COLUMNS * (_SIDE + _CAPTION + _GAP)
            for j, picture in enumerate(pair):
                tile = picture.resize((_SIDE, _SIDE), Image.Resampling.NEAREST)
                sheet.paste(tile, (x + j * (_SIDE + _SEAM), y))
            pen.text((x, y + _SIDE + 3), f"{distances[i]:.4g}", fill=_INK, font=font)
        return "png", png(sheet)

    def source_at(
        self, place: str, private: PrivateSource, has_labels: bool = True
    ) -> PrivateSource:
        """Return a source for the real samples at `place`, read as the run's records are.

        Raises RecipeError if none exist.

        A source of the run's kind has the run's declarations, a source of another kind the defaults
        of that kind (columns of tables: image, text, label). Units and budgets do not matter in an
        evaluation.
        """
        path = Path(place)
        if not path.exists():
            what = self.places or f"what a source of the kind '{private.kind}' reads"
            raise RecipeError(
                f"There are no real samples at {path}, because it does not exist. Name {what}."
            )
        kind = self._kind_at(path, private)
        classes = _classes(private, has_labels)
        if kind == private.kind:
            settings = asdict(private) | {
                "privacy_unit": RECORD,
                "declared_size": None,
                "ledger_file": None,
            }
        else:
            settings = {name: getattr(private, name) for name in self.common}
        if kind in _WITH_LABEL_COLUMN and (not classes or kind != private.kind):
            settings["label_column"] = _LABEL_COLUMN if classes else None
        return read_source(settings | {"kind": kind, "path": path, "classes": classes}, place)

    def _kind_at(self, path: Path, private: PrivateSource) -> str:
        """Return the kind of source that reads what lies at `path`."""
        return private.kind

    def contents(
        self, sets: Mapping[str, Labelled], reference: Labelled, private: PrivateSource
    ) -> Values:
        """Return measures of the sets and the reference set that only this modality has.

        They stand beside fidelity.
        """
        return {}

    def traces(
        self, synthetic: Samples, private: Samples, heldout: Samples, canaries: Sequence[str]
    ) -> Values:
        """Look in generated samples for traces of private records, and for planted strings.

        The user planted these in records.

        Return the values for metrics.json; `warnings` among them are printed.
        """
        return {}


def _classes(private: PrivateSource, has_labels: bool) -> tuple[str, ...]:
    return (private.class_names or ()) if has_labels else ()


class ImageMethods(Methods):
    """Evaluate images, also by classifiers on their pixels."""

    equality = "pixel by pixel"
    places = f"a folder, an .npz, .parquet, .arrow or .tar file, or {MNIST}"
    common = ("size", "resize", "channels")

    def shows(self, samples: Samples) -> BoolArray:
        """Mark images of more than one colour."""
        return np.array([Images.is_unique(one) for one in samples.array], bool)

    def source_at(
        self, place: str, private: PrivateSource, has_labels: bool = True
    ) -> PrivateSource:
        """As `Methods.source_at`. Size, channels, resize rule and classes are the run's."""
        if place != MNIST:
            return super().source_at(place, private, has_labels)
        settings = {name: getattr(private, name) for name in self.common}
        classes = _classes(private, has_labels) or DIGITS
        return read_source(settings | {"kind": MNIST, "split": "test", "classes": classes}, place)

    def _kind_at(self, path: Path, private: PrivateSource) -> str:
        kind = kind_at(path)
        return private.kind if (kind, private.kind) == ("folder", "dicom") else kind


class TextMethods(Methods):
    """Evaluate texts, also by their words, lengths, and the parts of private records in them."""

    equality = "character by character"
    places = "a folder of .txt files, a table, or a folder of tables"
    common = ("longest", "cut", "encoding")

    def shows(self, samples: Samples) -> BoolArray:
        """Mark texts of LEAST_WORDS words or more."""
        return np.array([len(words(text)) >= LEAST_WORDS for text in strings_of(samples)], bool)

    def comparable(self, ours: Samples, theirs: Samples) -> bool:
        """Return True: texts under different length limits can be equal."""
        return True

    def pairs(self, synthetic: Samples, private: Samples, distances: Float64Array) -> File:
        """Return JSON: a list of pairs.

        Each has the generated text, the private one and their distance.
        """
        return _pairs_in_json(strings_of(synthetic), strings_of(private), distances)

    def _kind_at(self, path: Path, private: PrivateSource) -> str:
        return text_kind_at(path)

    def contents(
        self, sets: Mapping[str, Labelled], reference: Labelled, private: PrivateSource
    ) -> Values:
        """Measure lengths and words of each set, and of the reference set beside them.

        Confidential.

        `words` and `bytes` are quantiles, at LEVELS, of a text's length; `vocabulary` counts the
        different words; `covered` is the share of the reference's words, each counted as often as
        it occurs, that the set has, too; `divergence` is Jensen and Shannon's, between the word
        frequencies of set and reference, in bits, 0 to 1.
        """
        real = _counts(reference.samples)
        every = {**sets, "reference": reference}
        contents = {name: _content(one.samples, real) for name, one in every.items()}
        values: Values = {"texts": {"levels": list(LEVELS), "sets": contents}}
        if isinstance(private, TextSource) and private.structure is not None:
            values |= _structure(every, private.structure)
        return values

    def traces(
        self, synthetic: Samples, private: Samples, heldout: Samples, canaries: Sequence[str]
    ) -> Values:
        """Count texts that share RUN words in a row with a record, and canaries in generated texts.

        Confidential.
        """
        # equal texts count once, else one text that is repeated would look like many trials
        first, _ = distinct(synthetic)
        ours, unseen = (_common_runs(each, private) for each in (synthetic.take(first), heldout))
        with_run = int((ours > 0).sum())
        unseen_with_run = int((unseen > 0).sum())
        beyond = beyond_chance(with_run, len(ours), unseen_with_run, len(unseen))
        overlap = {
            "run": RUN,
            "generated": len(ours),
            "with_a_run": with_run,
            "share_of_runs": float(ours.mean()),
            "heldout": len(unseen),
            "heldout_with_a_run": unseen_with_run,
            "heldout_share_of_runs": float(unseen.mean()),
            "beyond_chance": beyond,
        }
        values: Values = {"overlap": overlap}
        warnings = []
        if beyond:
            warnings.append(
                f"{with_run:,} of {len(ours):,} different generated texts share {RUN} words in a "
                f"row with a private record, more than chance brings ({unseen_with_run:,} of "
                f"{len(unseen):,} held-out texts do): look at the nearest pairs before you share "
                "them."
            )
        if canaries:
            values["canaries"] = [_canary(each, synthetic, private) for each in canaries]
            leaks = sum(one["generated"] > 0 for one in values["canaries"])
            if leaks:
                warnings.append(
                    f"{leaks:,} of {len(canaries):,} canaries stand in generated texts: do not "
                    "share this run."
                )
        return values | {"warnings": warnings}


def _structure(every: Mapping[str, Labelled], structure: Structure) -> Values:
    """Return the share of texts without the declared form, and the other texts' field values.

    Each field's values are given as a distribution.
    """
    whole = {
        name: [text for text in strings_of(one.samples) if structure.holds(text)]
        for name, one in every.items()
    }
    breaks = {name: {_FORM: 1 - len(texts) / len(every[name])} for name, texts in whole.items()}
    columns = structure.columns
    bins = {
        name: columns.bins(columns.codes(Rows(np.array([text.encode() for text in texts]))))
        for name, texts in whole.items()
        if texts and structure.fields
    }
    reference = bins.pop("reference", None)
    compared = (
        {"sets": {}}
        if reference is None or not bins
        else compare_tables(bins, reference, [*columns])
    )
    return {"table": compared | {"breaks": breaks}}


def _pairs_in_json(synthetic: list[str], private: list[str], distances: Float64Array) -> File:
    texts = zip(synthetic, private, distances.tolist(), strict=True)
    pairs = [
        {"generated": text, "private": record, "distance": distance}
        for text, record, distance in texts
    ]
    return "json", json.dumps(pairs, ensure_ascii=False, indent=1).encode()


def _content(samples: Samples, real: Counter[str]) -> Values:
    counts = _counts(samples)
    lengths = [len(words(text)) for text in strings_of(samples)]
    total = sum(real.values())
    own = sum(counts.values())
    common = sum(count for word, count in real.items() if word in counts)
    return {
        "samples": len(samples),
        "words": np.quantile(lengths, LEVELS).tolist(),
        "bytes": np.quantile(np.strings.str_len(samples.array), LEVELS).tolist(),
        "vocabulary": len(counts),
        "covered": common / total if total else None,
        "divergence": _divergence(counts, real) if total and own else None,
    }


def _divergence(one: Counter[str], other: Counter[str]) -> float:
    """Return Jensen and Shannon's divergence of two distributions of words, in bits."""
    names = [*one.keys() | other.keys()]
    p, q = (
        np.array([counts[name] for name in names]) / sum(counts.values()) for counts in (one, other)
    )
    middle = (p + q) / 2
    parts = [
        float((each[each > 0] * np.log2(each[each > 0] / middle[each > 0])).sum())
        for each in (p, q)
    ]
    return sum(parts) / 2


def _counts(samples: Samples) -> Counter[str]:
    return Counter(word for text in strings_of(samples) for word in words(text))


def _common_runs(samples: Samples, private: Samples) -> Float64Array:
    """Return for each text the share of its runs of RUN words that stand in a private record.

    The shares are float64 (n,).
    """
    ours, theirs = (
        runs([words(text) for text in strings_of(each)], RUN) for each in (samples, private)
    )
    in_records = np.unique(np.concatenate([*theirs, np.zeros(1, np.uint64)]))

    def share(
        each: Hashes,
    ) -> float:  # np.isin would sort all runs of the records anew for each text
        places = np.minimum(np.searchsorted(in_records, each), len(in_records) - 1)
        return float((in_records[places] == each).mean()) if len(each) else 0.0

    return np.array([share(each) for each in ours])


def runs(texts: list[list[str]], length: int) -> list[Hashes]:
    """Return for each text the hashes of all its runs of `length` words, uint64.

    No hash for a shorter text.
    """
    index: dict[str, int] = {}
    flat = np.fromiter((index.setdefault(word, len(index)) for word in chain(*texts)), np.uint64)
    with np.errstate(over="ignore"):
        digests = b"".join(blake2b(word.encode(), digest_size=8).digest() for word in index)
        codes = np.frombuffer(digests, "<u8")[flat.astype(np.int64)]
        hashes = np.zeros(max(len(codes) - length + 1, 0), np.uint64)
        for i in range(length):
            hashes = (hashes ^ codes[i : len(codes) - length + 1 + i]) * _MIXED
            hashes ^= hashes >> np.uint64(29)
    ends = np.cumsum([len(each) for each in texts])
    starts = ends - [len(each) for each in texts]
    return [
        hashes[start : max(end - length + 1, start)]
        for start, end in zip(starts, ends, strict=True)
    ]


def _canary(canary: str, synthetic: Samples, private: Samples) -> Values:
    """Count texts with a canary, in any case and spacing.

    Return the longest part in a generated one, as a share.
    """
    tokens = words(plain(canary))
    texts = [_join(words(text)) for text in strings_of(synthetic)]
    longest = 0
    for start in range(len(tokens)):
        while start + longest < len(tokens):
            part = _join(tokens[start : start + longest + 1])
            if not any(part in text for text in texts):
                break
            longest += 1
    whole = _join(tokens)
    return {
        "canary": canary,
        "private": sum(whole in _join(words(text)) for text in strings_of(private)),
        "generated": sum(whole in text for text in texts),
        "longest_part": longest / len(tokens) if tokens else None,
    }


def _join(tokens: Sequence[str]) -> str:
    return f" {' '.join(tokens)} "


class TableMethods(Methods):
    """Evaluate rows of tables by trees, and by shares of values in one or several columns."""

    places = "a table, or a folder of tables"
    common = ("columns",)
    equal_by_chance = True

    def pairs(self, synthetic: Samples, private: Samples, distances: Float64Array) -> File:
        """As `TextMethods.pairs`, each row with spaces between its columns."""
        ours, theirs = (
            [json.dumps(row, ensure_ascii=False) for row in _rows(one).records]
            for one in (synthetic, private)
        )
        return _pairs_in_json(ours, theirs, distances)

    def _kind_at(self, path: Path, private: PrivateSource) -> str:
        return RowTable.kind

    def contents(
        self, sets: Mapping[str, Labelled], reference: Labelled, private: PrivateSource
    ) -> Values:
        """Return what `compare_tables` says of columns and, if the reference has several, labels.

        Confidential.

        `reference` says of the reference what the report's page says of a population: see
        pe/report/columns.py.
        """
        columns = _columns(private)
        label = (
            Column(kind="category", values=private.labels)
            if len(np.unique(reference.labels)) > 1
            else None
        )
        every = {**sets, "reference": reference}
        codes = {name: columns.codes(_rows(one.samples)) for name, one in every.items()}

        def bins(own: Codes, labels: Labels) -> Codes:
            ours = columns.bins(own)
            return (
                ours
                if label is None
                else np.column_stack([ours, label.bins(labels.astype(np.int64))])
            )

        measures = {name: bins(codes[name], one.labels) for name, one in every.items()}
        real = measures.pop("reference")
        own = codes["reference"]
        shares = {
            name: column.shares(each)
            for (name, column), each in zip(columns.items(), own.T, strict=True)
        }
        page = {"shares": shares, "associations": columns.associations(own, reference.labels)}
        heads = [*columns, *([] if label is None else ["(label)"])]
        compared = compare_tables(measures, real, heads) | {"reference": page}
        assert isinstance(private, RowSource)
        if private.constraints:
            constraints = Constraints(columns, private.constraints)
            compared["breaks"] = {
                name: constraints.break_shares(each) for name, each in codes.items()
            }
        return {"table": compared}


def _columns(private: PrivateSource) -> Columns:
    assert isinstance(private, RowSource)
    return private.declared


def _rows(samples: Samples) -> Rows:
    assert isinstance(samples, Rows)
    return samples


_METHODS = {"images": ImageMethods(), "texts": TextMethods(), "table": TableMethods()}


def methods_of(samples: Samples | type[Samples]) -> Methods:
    """Return the methods of a modality."""
    return _METHODS.get(samples.kind, Methods())


def are_among(samples: Samples, others: Samples) -> BoolArray:
    """Mark the samples that equal one of `others`, bool (n,).

    A sample that shows nothing of a record never counts.
    """
    digests = set(map(sample_digest, others.array))
    equal = np.array([sample_digest(sample) in digests for sample in samples.array], dtype=bool)
    return equal & methods_of(samples).shows(samples)


def are_repeated(samples: Samples, others: Samples) -> BoolArray:
    """Mark the samples that equal one of `others` for another reason than chance, bool (n,).

    Where samples may be equal by chance, none is marked unless they equal `others` more often than
    these each other.
    """
    among = are_among(samples, others)
    if methods_of(samples).equal_by_chance:
        _, place = distinct(others)
        repeated = int((np.bincount(place)[place] > 1).sum())
        among &= beyond_chance(int(among.sum()), len(samples), repeated, len(others))
    return among


def beyond_chance(with_trait: int, synthetic: int, unseen_with_trait: int, unseen: int) -> bool:
    """True if a trait is more frequent among generated than among held-out samples.

    Fisher's one-sided exact test decides.
    """
    from scipy.stats import hypergeom

    tail = hypergeom.sf(
        with_trait - 1, synthetic + unseen, with_trait + unseen_with_trait, synthetic
    )
    return with_trait > 0 and bool(tail < LEVEL)
