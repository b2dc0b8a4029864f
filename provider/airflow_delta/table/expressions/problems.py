"""Why an expression, or its value for a row, is not computed here. Each message is the end of a sentence."""

from __future__ import annotations


class NotDecided(Exception):
    """TypedPart of an expression that only Spark evaluates; names it and says why."""


class RowError(Exception):
    """Spark raises an error for a row: an overflow, a division by zero, an invalid cast."""


class RowNotDecided(Exception):
    """The value of an expression for a row may differ from Spark's."""
