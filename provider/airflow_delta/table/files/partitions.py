"""Partition values from the directories that a job wrote, and the paths of files as the log spells them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, tzinfo
from urllib.parse import quote
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from airflow_delta.exceptions import DeltaAnalysisException, DeltaIllegalArgumentException, StagedFileException
from airflow_delta.log.actions.reconciliation import MARKS
from airflow_delta.log.schema.partition_values import (
    is_zoneless,
    parse_partition_directory,
    parse_partition_value,
    serialize_partition_value,
)
from airflow_delta.log.schema.types import TIMESTAMP, DataType


def url_encode(path: str) -> str:
    """Return a storage key as the log has it: a URI of ASCII characters (RFC 2396).

    Delta Spark leaves letters beyond ASCII as they are. It removes a file by the spelling that it finds, but delta-rs by this one
    whatever it finds, and each compares spellings.
    """
    return quote(path, safe=MARKS)


def time_zone_of(name: str) -> tzinfo:
    """Return a time zone by name.

    :raises DeltaIllegalArgumentException: if there is no such time zone.
    """
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise DeltaIllegalArgumentException(f"There is no time zone {name!r}") from error


def partition_values(
    directories: str, types: Mapping[str, DataType], zone: tzinfo | None, *, table: str
) -> dict[str, str | None]:
    """Return the partition values in the directories of a file, as the log spells them.

    :param directories: ``month=1/day=2``; parts without ``=`` are not partitions.
    :param types: type of each partition column, in order, by name.
    :param zone: time zone of timestamps in directory names; ``None``: keep those without one as they are.
    :raises StagedFileException: if a partition column is missing, or its value is not of its type.
    """
    try:
        found = {name.lower(): text for name, text in parse_partition_directory(directories).items()}
    except DeltaAnalysisException as error:
        raise StagedFileException(f"{error.message} (table {table})", table=table) from error
    values: dict[str, str | None] = {}
    for name, data_type in types.items():
        if name.lower() not in found:
            raise StagedFileException(
                f"The files under {directories or 'the staging directory'!r} for table {table} are not in a directory of the "
                f"partition column {name}. Partition them by ({', '.join(types)}).",
                table=table,
            )
        text = found[name.lower()]
        try:
            values[name] = _serialised(text, data_type, zone)
        except (DeltaAnalysisException, ValueError) as error:
            raise StagedFileException(
                f"Directory {directories!r} for table {table} has {name}={text!r}, which is not a valid {data_type}.", table=table
            ) from error
    return values


def _serialised(text: str | None, data_type: DataType, zone: tzinfo | None) -> str | None:
    value = parse_partition_value(text, data_type)
    if text is not None and data_type == TIMESTAMP and is_zoneless(text):
        if zone is None:
            return text
        value = value.replace(tzinfo=zone).astimezone(UTC)
    return serialize_partition_value(value, data_type)


def common_directory(paths: Sequence[str], depth: int) -> dict[str, list[str]]:
    """Group paths by their first directories, at most ``depth`` of them."""
    groups: dict[str, list[str]] = {}
    for path in paths:
        parts = path.split("/")[:-1]
        groups.setdefault("/".join(parts[:depth]), []).append(path)
    return groups
