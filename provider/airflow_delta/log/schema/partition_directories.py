"""Directory names of partitions (``country=NL/day=2026-01-31``), escaped as Hive and Spark escape them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from airflow_delta.contract.delta_names import HIVE_NULL
from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.lazy_patterns import lazy_pattern

# What Spark escapes in a directory name (ExternalCatalogUtils): control characters and characters that are special in Hive.
_ESCAPED = frozenset("\"#%'*/:=?\\\x7f{[]^") | {chr(code) for code in range(1, 32)}

_ESCAPE = lazy_pattern("[" + re.escape("".join(sorted(_ESCAPED))) + "]")

_UNESCAPE = lazy_pattern(r"(?:%[0-9A-Fa-f]{2})+")


def escape_path_name(name: str) -> str:
    """Return a column's name or value, escaped for a directory name as in Spark."""
    return _ESCAPE.sub(lambda match: f"%{ord(match[0]):02X}", name)


def unescape_path_name(name: str) -> str:
    """Return a column's name or value from its escaped form in a directory name.

    Spark escapes some ASCII characters and leaves all others as they are; PyArrow, pandas, Polars and DuckDB escape the bytes of
    UTF-8.

    :raises DeltaAnalysisException: if the escaped bytes are not UTF-8.
    """
    try:
        return _UNESCAPE.sub(lambda match: bytes.fromhex(match[0].replace("%", "")).decode(), name)
    except UnicodeDecodeError as error:
        raise DeltaAnalysisException(
            f"The directory name {name!r} escapes bytes that are not UTF-8, so the partition value is not known. Name partition "
            "directories as Spark, PyArrow, Polars or DuckDB do."
        ) from error


def partition_directory(values: Mapping[str, str | None], columns: list[str] | tuple[str, ...]) -> str:
    """Return the Hive directory of a partition, ``a=1/b=__HIVE_DEFAULT_PARTITION__``; empty for an unpartitioned table.

    The text ``__HIVE_DEFAULT_PARTITION__`` gets the same directory as null: writers of rows refuse it.
    """
    return joined_directory(directory_prefixes(columns), [values.get(column) for column in columns])


def directory_prefixes(columns: Iterable[str]) -> list[str]:
    """Return what the directories of partition columns begin with."""
    return [f"{escape_path_name(column)}=" for column in columns]


def joined_directory(prefixes: Sequence[str], values: Sequence[str | None]) -> str:
    """Return the directory of a partition, as :func:`partition_directory` does, from the prefixes of its columns."""
    return "/".join([prefix + escape_path_name(value or HIVE_NULL) for prefix, value in zip(prefixes, values, strict=True)])


def parse_partition_directory(directory: str) -> dict[str, str | None]:
    """Return the partition values in a path's directories; parts without ``=`` are ignored."""
    result: dict[str, str | None] = {}
    for part in directory.split("/"):
        name, equals, value = part.partition("=")
        if equals:
            text = unescape_path_name(value)
            result[unescape_path_name(name)] = None if text in (HIVE_NULL, "") else text
    return result
