"""The version number, in one place; and what to say where another library's files lie among ours."""

__version__ = "0.1.0"

MIXED = (
    "The package `pe` is mixed with that of private-evolution, the PE authors' library, which has the same name: "
    "pip uninstall private-evolution private-evolution-toolkit, and install each into an environment of its own."
)
"""The one sentence where both were installed into one environment, and overwrote each other's files."""
