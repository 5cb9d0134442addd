"""Several generators in one run."""

from adapters.portfolio.adapter import Portfolio as Portfolio
