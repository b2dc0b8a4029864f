"""Partition values from the directories that a job wrote, and the paths of files as the log spells them.

Paths are absolute in a log that lies elsewhere: that of a shallow clone, or of a preview.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote_to_bytes
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from airflow_delta.exceptions import DeltaAnalysisException, DeltaIllegalArgumentException, StagedFileException
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.log.actions.actions import DeletionVectorDescriptor
from airflow_delta.log.actions.deletion_vectors import ABSOLUTE, UUID_RELATIVE, vector_path
from airflow_delta.log.actions.reconciliation import MARKS
from airflow_delta.log.schema.partition_directories import parse_partition_directory
from airflow_delta.log.schema.partition_values import is_zoneless, parse_partition_value, serialize_partition_value
from airflow_delta.log.schema.types import TIMESTAMP, DataType

if TYPE_CHECKING:
    from airflow_delta.log.storage.base import LogStore


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


ELSEWHERE = r"^(/|[A-Za-z][A-Za-z0-9+.-]*:)"
"""What a path of the log that is not relative to its table begins with."""

_ELSEWHERE = lazy_pattern(ELSEWHERE)


def is_elsewhere(path: str) -> bool:
    """Return whether a path of the log is not relative to its table, as in a shallow clone."""
    return _ELSEWHERE.match(path) is not None


def qualified(store: LogStore) -> str:
    """Return the URI of a table's root as Hadoop shows it: ``file:/tmp/a b``, not URL-encoded."""
    return store.root if store.local_root is None else f"file:{store.local_root}"


def url_encoded(uri: str) -> str:
    """Return a URI as the log has it; the bucket stays as it is."""
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return f"file:{url_encode(uri.removeprefix('file:'))}"
    authority, _, path = rest.partition("/")
    return f"{scheme}://{authority}/{url_encode(path)}".rstrip("/")


_SPELLED_ALIKE = lazy_pattern(r"[A-Za-z][A-Za-z0-9+.-]*:(?:[A-Za-z0-9_\-!.~'(),;:$&+=@/]|%2[05])*")


def spelled_by_java(uri: str) -> str:
    """Return a URL-encoded URI as Java's class ``URI`` makes it of a decoded path, which leaves most letters beyond ASCII.

    Delta Spark compares absolute paths of the log, as they are, with those that Spark tells of its files: a DELETE with deletion
    vectors fails at any other spelling. Paths relative to the table it decodes first.
    """
    if _SPELLED_ALIKE.fullmatch(uri) is not None:  # most are, and clones have as many as their source
        return uri
    scheme, separator, path = uri.partition(":")
    prefix = ""
    if path.startswith("//"):
        authority, slash, path = path[2:].partition("/")
        prefix, path = f"//{authority}", slash + path
    text = unquote_to_bytes(path.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogateescape")
    return scheme + separator + prefix + "".join(char if _is_left_by_java(char) else _escaped(char) for char in text)


def _is_left_by_java(char: str) -> bool:
    if char.isascii():
        return char.isalnum() or char in MARKS or char == "*"
    return not "\udc80" <= char <= "\udcff" and unicodedata.category(char) not in ("Cc", "Zl", "Zp", "Zs")


def _escaped(char: str) -> str:
    return quote(char.encode("utf-8", "surrogateescape"), safe="")


def absolute_file_path(path: str, root: str) -> str:
    """Return a path of a table's log as one of another log.

    :param path: URL-encoded; one that begins with a slash is on the table's own file system or bucket.
    :param root: of the table, URL-encoded: a URI, or an absolute path, which the result is then as well.
    """
    if path.startswith("/"):
        if root.startswith("/"):
            return path
        scheme, separator, rest = root.partition("://")
        return f"{scheme}://{rest.partition('/')[0]}{path}" if separator else f"file:{path}"
    return path if is_elsewhere(path) else f"{root}/{path}"


def absolute_vector(vector: DeletionVectorDescriptor | None, root: str, store: LogStore) -> DeletionVectorDescriptor | None:
    """Return a deletion vector with an absolute path, unless it is in the log itself or already has one.

    :param root: as for :func:`absolute_file_path`.
    :param store: storage of the table.
    """
    if vector is None or vector.storage_type != UUID_RELATIVE:
        return vector
    path = f"{root}/{url_encode(vector_path(store, vector))}"
    return msgspec.structs.replace(vector, storage_type=ABSOLUTE, path_or_inline_dv=path)
