"""The certificate's sentences, plain and no stronger than the mathematics, and its page."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from pe.errors import printable
from pe.privacy.release import Relation

if TYPE_CHECKING:
    from jinja2 import Environment

Certificate = Mapping[str, Any]
"""A certificate's JSON values, as `build_certificate` makes them or as somebody else wrote them."""

NOT_COVERED = (
    "Everything under confidential/: it holds what touched the private data without noise "
    "(embeddings, clean measurements, durations, logs). It must not be shared, and is not part of "
    "what this certificate speaks of.",
    "Other runs over the same data, abandoned and copied ones included: what each released adds "
    "up.",
    "Choices of settings made by looking at private measurements (fidelity, utility) of earlier "
    "runs: such looking releases something that no run's ledger sees.",
    "The data on which the generator itself was trained beforehand: if private records were among "
    "them, this certificate does not protect them.",
)

WOULD_VOID = (
    "Noise from a seed, or from any source but the operating system's entropy.",
    "Modified software: the declared sensitivities hold for the code of the versions named here.",
    "Publishing anything from confidential/.",
    "Private records that reach the generator or its provider by any way but the releases listed "
    "here.",
)

EXACT_NOISE = (
    "All noise is drawn exactly, as integers, from the operating system's entropy, and added to "
    "sums of integers; ε is computed for these discrete mechanisms, so attacks on floating-point "
    "noise do not apply. The recipe's seed has no part in it."
)

NOT_DECLARED = "not declared"
"""Stands for what an embedding or a generator does not declare: its hosts, or other runs' models
that it uses."""

POOL_OVERLAPS = (
    "The public samples that the run reads may be private records: the recipe declares these "
    "published (privacy.pool_overlaps). Such records may stand in the synthetic data as they are, "
    "and ε says nothing about them."
)

WEAK = 10.0
"""The ε above which Ponomareva et al. (How to DP-fy ML, 2023, §5.2.1: tier 3) see weak or no formal
protection."""

UNSAFE = (
    "Unsafe, seeded noise was used (a test switch). NO GUARANTEE: whoever knows the seed removes "
    "the noise."
)

NO_NOISE = (
    "No noise is added to the votes, because the recipe says `privacy: none`, which is for "
    "studies. NO GUARANTEE: what the private records said stands in the results as it is, so "
    "handle these like the records themselves."
)

NO_EPSILON = "none: no guarantee"
"""Stands in the place of a guarantee where no ε holds."""


_UNIT = "One {name}: all records of the same '{name}' together, however many, over all classes."
_RECORD = (
    "One record: a single item of the private data. A person with several records is protected "
    "less."
)
_WORLDS = {
    Relation.ADD_REMOVE: (
        "The world as it is, and the world in which any one {name} had never been in the data, or "
        "one more had been. How many there are is protected as well."
    ),
    Relation.REPLACE_ONE: (
        "The world as it is, and the world in which any one {name}'s data had been other data. How "
        "many there are is public."
    ),
    Relation.ZERO_OUT: (
        "The world as it is, and the world in which any one {name}'s data had been blank and "
        "without influence. How many there are is public."
    ),
}


def wording(numbers: Certificate, reasons: list[str]) -> Certificate:
    """Return the sentences that follow from a certificate's other values, by its keys.

    `reasons` say why nothing is promised; see `voided_by`.
    """
    kind = Relation(numbers["relation"]["name"])
    name = numbers["unit"]["name"]
    epsilon = numbers["epsilon"]
    delta = numbers["delta"]
    return {
        "relation": {"name": str(kind), "words": _WORLDS[kind].format(name=name)},
        "unit": {
            "name": name,
            "words": _RECORD if name == "record" else _UNIT.format(name=name),
        },
        "statement": statement(epsilon, delta, kind, name, reasons, numbers["gdp_mu"]),
        "not_covered": _not_covered(numbers),
        "voided_by": reasons,
    }


def _not_covered(numbers: Certificate) -> list[str]:
    """Return one sentence for each thing that the certificate does not cover."""
    sentences = [] if numbers.get("pool_overlaps") is None else [POOL_OVERLAPS]
    private_data_sent_to = numbers.get("private_data_sent_to")
    # whoever received the records is outside of what noise can protect
    if private_data_sent_to == NOT_DECLARED:
        sentences.append(
            "Whether the private records themselves were sent anywhere to be embedded, un-noised: "
            "the embedding of this run does not declare it. Whoever received them saw them; this "
            "certificate does not protect them from it."
        )
    elif private_data_sent_to is not None:
        sentences.append(
            f"The private records themselves were sent to {private_data_sent_to}, un-noised, to be "
            "embedded, as the recipe allows: whoever runs that endpoint saw them, and this "
            "certificate does not protect them from it."
        )
    if numbers.get("fitted_on_others") == NOT_DECLARED:
        sentences.append(
            "Models or data of other runs over the same private records that the generator may "
            "take: the generator of this run is an object that does not declare any, nor that "
            "there are none."
        )
    return [*sentences, *NOT_COVERED]


def voided_by(noiseless: bool, unsafe: bool) -> list[str]:
    """Return the reasons why nothing is promised, or an empty list."""
    if noiseless:
        return [NO_NOISE]
    return [UNSAFE] if unsafe else []


def guarantee(
    epsilon: float | None, delta: float | None, digits: int = 6, between: str = " at "
) -> str:
    """Return the guarantee as text, such as `ε = 4 at δ = 1e-06`.

    It is NO_EPSILON where no ε holds (None, or infinite).
    """
    if epsilon is None or delta is None or math.isinf(epsilon):
        return NO_EPSILON
    return f"ε = {round_up(epsilon, digits)}{between}δ = {delta:g}"


def finite(epsilon: float) -> float | None:
    """Return ε for JSON: None, which is null there, in place of an infinite ε."""
    return epsilon if math.isfinite(epsilon) else None


def statement(
    epsilon: float | None,
    delta: float | None,
    kind: Relation,
    name: str,
    reasons: Sequence[str],
    mu: float | None = None,
) -> str:
    """Return the promise in one paragraph, or the `reasons` why there is none.

    `mu` is the μ of all releases (`gdp_mu`).
    """
    if reasons or epsilon is None or delta is None:
        return f"NO GUARANTEE. {' '.join(reasons)}"
    return (
        f"All covered files together are (ε = {round_up(epsilon)}, δ = {delta:g})-differentially "
        f"private under {kind} for one {name}. Whatever anybody concludes from them, and whatever "
        "else is known to that person: the probability of that conclusion is at most "
        f"{factor(epsilon)} times what it would be in the neighbouring world, plus {delta:g}. A "
        f"test for whether a given {name} was used that wrongly accuses 1 in 100 finds at most "
        f"{found_at_most(epsilon, delta, mu)}."
    )


def factor(epsilon: float) -> str:
    """Return e^ε, rounded up, as text. Where it has no use as a number, it stays `e^ε`."""
    return round_up(math.exp(epsilon), 4) if epsilon < 500 else "e^ε"


def found_at_most(epsilon: float, delta: float, mu: float | None) -> str:
    """Return, in words, the most hits in 100 of a test that wrongly accuses 1 in 100.

    Where μ-GDP holds the number is Φ(Φ⁻¹(0.01) + μ) (Dong, Roth and Su 2022). Otherwise `power`
    computes it from ε and δ alone.
    """
    alone = round_up(100 * power(epsilon, delta, 0.01), 3)
    if mu is None:
        return f"{alone} in 100"
    normal = NormalDist()
    gaussian = round_up(100 * normal.cdf(normal.inv_cdf(0.01) + mu), 3)
    return (
        f"{gaussian} in 100, as all noise is Gaussian (from ε and δ alone one could promise "
        f"{alone} in 100 only)"
    )


def round_up(value: float, digits: int = 6) -> str:
    """Return a number as text, rounded up to `digits` significant digits.

    Used for numbers that must not be understated.
    """
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    step = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return f"{math.ceil(value / step - 1e-9) * step:.{digits}g}"


def power(epsilon: float, delta: float, false_alarms: float) -> float:
    """Return the highest true positive rate of any test with this rate of `false_alarms`.

    Wasserman and Zhou 2010.
    """
    above = math.exp(min(epsilon, 700)) * false_alarms + delta
    below = 1 - math.exp(-epsilon) * (1 - delta - false_alarms)
    return min(1.0, above, below)


def warnings(
    epsilon: float | None,
    delta: float | None,
    declared_size: int | None,
    declared_units: int | None = None,
) -> list[str]:
    """Return warnings that a guarantee is weak although it holds, from a certificate's numbers."""
    sentences: list[str] = []
    if epsilon is None or delta is None:
        return sentences
    size = declared_size
    noun = "record"
    if declared_units is not None:
        size = declared_units
        noun = "privacy unit"
    # such a δ lets a mechanism give one of them away entirely
    if size is not None and delta * size >= 1:
        sentences.append(
            f"δ = {delta:g} is not below 1/{size}, one over the declared number of {noun}s: at "
            f"such a δ even publishing a whole {noun} at random is allowed. Choose a smaller δ."
        )
    if epsilon > WEAK:
        sentences.append(
            f"ε = {round_up(epsilon, 4)} is above {WEAK:g}, where a guarantee protects hardly "
            "anybody: a test for whether somebody's data were used that wrongly accuses 1 in 100 "
            f"may find {round_up(100 * power(epsilon, delta, 0.01), 3)} in 100. Choose a smaller ε."
        )
    return sentences


def certificate_files(certificate: Certificate) -> dict[str, bytes]:
    """Return the certificate as the files that a run holds: name → content."""
    text = json.dumps(certificate, indent=2, ensure_ascii=False) + "\n"
    return {
        "certificate.json": text.encode(),
        "certificate.md": certificate_markdown(certificate).encode(),
    }


def certificate_markdown(certificate: Certificate, files: int | None = None) -> str:
    """Return the certificate as a page for people.

    If it covers more than `files` files, the page tells only their number.

    Raises:
        KeyError, TypeError, ValueError: the certificate is damaged.
    """
    from jinja2 import UndefinedError

    pages = text_pages("pe.privacy", "")
    pages.filters["cell"] = _cell
    values = {"pool_overlaps": None, "declared_units": None, **certificate}  # which older ones lack
    more = {"files": files, "pool_sentence": POOL_OVERLAPS}
    try:
        return pages.get_template("certificate.md.jinja").render(values | more)
    except UndefinedError as error:
        raise KeyError(str(error)) from error


def text_pages(package: str, folder: str = "templates") -> Environment:
    """Return a package's templates of plain text or Markdown. A missing value is an error.

    Jinja2 is imported only to print a page.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    # HTML's escapes would be text here; in Markdown names of others pass `code` or `sentence`
    pages = Environment(  # noqa: S701
        loader=PackageLoader(package, folder),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    pages.filters |= {"code": code, "round_up": round_up, "sentence": sentence}
    pages.globals |= {"guarantee": guarantee, "no_epsilon": NO_EPSILON}
    return pages


def code(text: str) -> str:
    """Return a name in a Markdown code span that no backtick in the name can end."""
    text = printable(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if len(fence) > 1 or not text.strip() else ""
    return f"{fence}{space}{text}{space}{fence}"


def sentence(text: str) -> str:
    """Return a sentence in which links, pictures and HTML become plain text.

    It may hold names given by others.
    """
    return re.sub(r"[<\[\]]", r"\\\g<0>", printable(text))


def _cell(value: object) -> str:
    """Return a value as text whose bars are escaped, so that they do not end a table's cell."""
    return str(value).replace("|", "\\|")
