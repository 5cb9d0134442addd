"""The price of a generator, as a recipe states it, and the cost of usage at such a price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from operator import mul
from typing import Annotated, Any

from pydantic import Field

from pe.errors import RecipeError
from pe.plugins.protocols import KINDS, Usage
from pe.plugins.settings import Settings

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class Price:
    """The price of a generator in `currency`, each amount ≥ 0.

    Tokens of each kind by the million (see `Usage`).
    """

    call: float = 0.0  # price of a request
    image: float = 0.0  # price of an image
    megapixel: float = 0.0  # price of a million pixels of images as they are drawn
    text_in: float = 0.0
    image_in: float = 0.0
    text_out: float = 0.0
    image_out: float = 0.0
    currency: str = "USD"
    # empty if there is one price; else the prices of several generators, any of which may make the
    # next samples. Then each amount above is the largest in these prices, and `Usage.cost` holds
    # what was billed
    each: tuple[Price, ...] = ()

    @classmethod
    def of_several(cls, prices: Sequence[Price]) -> Price:
        """The price of a run in which any of several generators makes a sample.

        RecipeError for several currencies.
        """
        dearest = {name: max(getattr(price, name) for price in prices) for name in _AMOUNTS}
        return cls(**dearest, currency=_currency(prices), each=tuple(prices))

    @classmethod
    def of_parts(cls, prices: Sequence[Price]) -> Price:
        """Return the price of samples that several generators make together, one call of each."""
        total = {name: sum(getattr(price, name) for price in prices) for name in _AMOUNTS}
        total["image"] += total.pop("call")
        whole = cls(**total, currency=_currency(prices))
        return replace(whole, each=(whole,))

    @property
    def has_tokens(self) -> bool:
        """True if tokens cost something."""
        return any(getattr(self, kind) for kind in KINDS)

    @property
    def free(self) -> bool:
        """True if nothing costs anything."""
        return not any(getattr(self, name) for name in _AMOUNTS)

    def of(self, usage: Usage) -> float:
        """The cost of billed usage.

        Tokens whose kind is not stated cost as much as those of the dearest kind.
        """
        if self.each:
            return usage.cost
        tokens, prices = ([getattr(each, kind) for kind in KINDS] for each in (usage, self))
        million: float = sum(map(mul, prices, tokens)) + max(prices) * max(
            0, usage.tokens - sum(tokens)
        )
        return (
            self.call * usage.calls
            + self.image * usage.images
            + self.megapixel * usage.megapixels
            + million / 1e6
        )

    def most_of(self, usage: Usage) -> float:
        """The cost of usage that is not billed yet, if the dearest generator makes all of it."""
        return max(price.of(usage) for price in self.each or (self,))

    def of_next(self, usage: Usage, calls: int, images: int) -> float:
        """Return the most that `calls` more requests for `images` images cost.

        Each has tokens and pixels as in `usage`.
        """
        size = replace(usage, calls=0, images=0)
        return self.most_of(Usage(calls, images)) + self.most_of(size) * images / max(
            usage.images, 1
        )


_AMOUNTS = tuple(field.name for field in fields(Price) if field.name not in ("currency", "each"))


def _currency(prices: Sequence[Price]) -> str:
    currencies = sorted({price.currency for price in prices if not price.free})
    if len(currencies) > 1:
        raise RecipeError(
            f"api: prices are in {' and '.join(currencies)}: state all of them in one currency."
        )
    return currencies[0] if currencies else "USD"


class TokenPrices(Settings):
    """The price of a million tokens of each kind.

    A kind that is left out costs as much as the dearest.
    """

    text_in: Amount | None = Field(None, description="of prompts")
    image_in: Amount | None = Field(None, description="of parents")
    text_out: Amount | None = Field(None, description="of text that the model writes")
    image_out: Amount | None = Field(None, description="of images")


class PriceSection(Settings):
    """The prices of the generator's provider."""

    call: Amount = Field(0.0, description="of a request")
    image: Amount = Field(0.0, description="of a sample (an image, a text) that is made")
    megapixel: Amount = Field(
        0.0, description="of a million pixels of images, as the generator draws them"
    )
    million_tokens: Amount | TokenPrices = Field(
        0.0, description="of a million tokens; or, by kind: text_in, image_in, text_out, image_out"
    )
    currency: str = Field("USD", description="of all amounts, limits.max_cost included")

    @property
    def is_stated(self) -> bool:
        """True if an amount is given, even if it is 0."""
        return bool(self.model_fields_set - {"currency"})

    @property
    def price(self) -> Price:
        """These prices, one for each kind of token.

        A kind left out costs as much as the dearest.
        """
        tokens = self.million_tokens
        if isinstance(tokens, TokenPrices):
            stated: dict[str, float] = tokens.model_dump(exclude_none=True)
            kinds: dict[str, Any] = dict.fromkeys(KINDS, max(stated.values(), default=0.0)) | stated
        else:
            kinds = dict.fromkeys(KINDS, tokens)
        return Price(self.call, self.image, self.megapixel, currency=self.currency, **kinds)
