"""Partition values as the log spells them, for the worker and for Spark: which of them are null."""

from __future__ import annotations

from collections.abc import Mapping


def partition_text(values: Mapping[str, str | None] | None, name: str) -> str | None:
    """Return the text of a partition value; ``None`` if it is null: missing, or empty, whatever the column's type.

    Protocol, "Partition Value Serialization".

    :param values: of a file, by physical name.
    """
    return (values or {}).get(name) or None


def partition_texts_of(values: Mapping[str, str | None] | None) -> dict[str, str | None]:
    """Return the partition values of a file with every null as ``None``, to compare files by."""
    return {name: text or None for name, text in (values or {}).items()}
