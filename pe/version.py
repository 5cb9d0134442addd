"""The version number, and the message for an installation mixed with another library."""

__version__ = "0.1.0"

MIXED = (
    "The package `pe` is mixed with that of private-evolution, the PE authors' library, which has "
    "the same name: pip uninstall private-evolution private-evolution-toolkit, and install each "
    "into an environment of its own."
)
"""The message if both packages were installed into one environment, where each overwrites files of
the other."""
