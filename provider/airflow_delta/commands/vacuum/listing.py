"""What lies in a table's directory, as VACUUM looks at it (Delta's ``isHiddenDirectory``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_delta.log.file_names import LOG_DIRECTORY
from airflow_delta.staging.paths import STAGING_DIRECTORY

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.store import FileStatus, LogStore

_COLLECTED = ("_delta_index", "_change_data")
"""Hidden names that are VACUUM's all the same."""

_STAGED = f"{STAGING_DIRECTORY}/"


@dataclass
class Listing:
    """Files and directories of a table that VACUUM may look at.

    :ivar directories: modification time by path; none on an object store.
    """

    files: list[FileStatus] = field(default_factory=list)
    directories: dict[str, int] = field(default_factory=dict)


def hidden_names(snapshot: Snapshot) -> Callable[[str], bool]:
    """Return the test for names that VACUUM leaves alone, whatever is below them."""
    from airflow_delta.log.column_mapping import physical_partition_columns

    names = {*snapshot.metadata.partition_columns, *physical_partition_columns(snapshot.metadata)}
    partitions = tuple(f"{name}=" for name in sorted(names))
    formats = snapshot.metadata.configuration.get("delta.universalFormat.enabledFormats", "")
    iceberg = "iceberg" in formats.lower()

    def hidden(name: str) -> bool:
        if iceberg and name == "metadata":
            return True
        return name.startswith((".", "_")) and not name.startswith((*_COLLECTED, *partitions))

    return hidden


def list_table(store: LogStore, hidden: Callable[[str], bool]) -> Listing:
    """List a table's directory: everything that is not hidden, and all that is below ``staged/``.

    Links to directories are neither followed nor listed, nor is what belongs to another table in a directory of this one.
    """
    listing = Listing()
    if store.local_root is not None:
        _walk(store.local_root, hidden, listing)
        return listing
    tables = set()
    for status in store.list_recursive(""):
        directory, inner, _ = status.path.partition(f"/{LOG_DIRECTORY}/")
        if inner:
            tables.add(directory)
        if status.path.startswith(_STAGED) or not any(map(hidden, status.path.split("/"))):
            listing.files.append(status)
    if tables:
        listing.files = [status for status in listing.files if tables.isdisjoint(parents(status.path))]
    return listing


def parents(path: str) -> Iterator[str]:
    """Yield the directories that a file is in, innermost first, without the table root."""
    while path := path.rpartition("/")[0]:
        yield path


def all_parents(paths: Collection[str]) -> set[str]:
    """Return every directory that holds one of the files, at any depth."""
    found: set[str] = set()
    for path in paths:
        for directory in parents(path):
            if directory in found:
                break
            found.add(directory)
    return found


def _walk(root: str, hidden: Callable[[str], bool], listing: Listing) -> None:
    from airflow_delta.log.store import FileStatus

    pending = [""]
    while pending:
        directory = pending.pop()
        staged = f"{directory}/".startswith(_STAGED)
        try:
            with os.scandir(f"{root}/{directory}") as entries:
                children = list(entries)
        except (FileNotFoundError, NotADirectoryError):  # gone while we list
            continue
        names = {entry.name for entry in children}
        if directory and LOG_DIRECTORY in names:  # another table
            listing.directories.pop(directory, None)
            continue
        for entry in children:
            if not staged and hidden(entry.name):
                continue
            if staged and _checksum_of(entry.name) in names:  # goes with its file
                continue
            path = f"{directory}/{entry.name}" if directory else entry.name
            try:
                if entry.is_dir(follow_symlinks=False):
                    listing.directories[path] = entry.stat().st_mtime_ns // 1_000_000
                    pending.append(path)
                elif not entry.is_dir():
                    status = entry.stat()
                    listing.files.append(FileStatus(path, status.st_size, status.st_mtime_ns // 1_000_000))
            except FileNotFoundError:  # gone while we list, or a dangling link
                continue


def _checksum_of(name: str) -> str | None:
    """Return the file that one of Hadoop's local checksum files belongs to."""
    return name[1:-4] if name.startswith(".") and name.endswith(".crc") else None
