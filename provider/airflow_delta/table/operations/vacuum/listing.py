"""What is in a table's directory, as VACUUM sees it (Delta's ``isHiddenDirectory``).

The same rules decide what VACUUM may touch in a listing and in the log (VACUUM LITE): no hidden names, except below ``staged/``;
nothing of a table inside this one; nothing behind a link to a directory.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from typing import TYPE_CHECKING
from urllib.parse import unquote

from airflow_delta.contract.delta_names import UNIVERSAL_FORMAT
from airflow_delta.contract.staging_directory import STAGING_DIRECTORY, is_preview
from airflow_delta.exceptions import DeltaLogCorruptedException, PathOutsideTableException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.features.column_mapping import physical_partition_columns
from airflow_delta.log.storage.base import FileStatus
from airflow_delta.log.storage.file_names import LOG_DIRECTORY
from airflow_delta.log.storage.folders import is_there
from airflow_delta.log.storage.local import LocalStore
from airflow_delta.log.storage.progress import Progress, tracked
from airflow_delta.log.storage.table_paths import relative_key

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.storage.base import LogStore

_COLLECTED = ("_delta_index", "_change_data")
"""Hidden names that VACUUM deletes nevertheless."""

_STAGED = f"{STAGING_DIRECTORY}/"
_THREADS = 8
_PIECES = 32
_PIECE = 5_000
"""Files of a table for which another piece of its listing pays."""


@dataclass
class Listing:
    """Files and directories of a table that VACUUM may look at.

    :ivar directories: modification time by path; none on an object store.
    :ivar staged: all that lies below ``staged/<transactionId>`` of the transactions that files belong to, where ``files`` is only
        a selection.
    """

    files: list[FileStatus] = field(default_factory=list)
    directories: dict[str, int] = field(default_factory=dict)
    staged: Listing | None = None


def hidden_names(snapshot: Snapshot) -> Callable[[str], bool]:
    """Return a test for names that VACUUM leaves alone, with everything below."""
    names = {*snapshot.metadata.partition_columns, *physical_partition_columns(snapshot.metadata)}
    partitions = tuple(f"{name}=" for name in sorted(names))
    formats = snapshot.metadata.configuration.get(UNIVERSAL_FORMAT, "")
    iceberg = "iceberg" in formats.lower()

    def hidden(name: str) -> bool:
        if iceberg and name == "metadata":
            return True
        return name.startswith((".", "_")) and not name.startswith((*_COLLECTED, *partitions))

    return hidden


def list_table(store: LogStore, hidden: Callable[[str], bool], *, cuts: Sequence[str] = ()) -> Listing:
    """List a table's directory: everything that is not hidden, and everything below ``staged/``.

    Links to directories are neither followed nor listed, nor is a table inside this one.

    :param cuts: paths that split it evenly (:func:`even_cuts`).
    """
    listing = Listing()
    _list_below(store, "", hidden, listing, cuts)
    return listing


def even_cuts(snapshot: Snapshot) -> list[str]:
    """Return paths that split the table's files about evenly, from a sample; none if the table is small, or nobody uses them."""
    store = snapshot.log.store
    reader = snapshot.checkpoint_reader() if store.lists_in_pieces else None
    if reader is None:
        return []
    try:
        pieces = min(_PIECES, reader.num_rows // _PIECE)
        if pieces < 2:
            return []
        sample = [key for path in reader.sample_paths(_PIECES) if (key := relative_key(store, unquote(path))) is not None]
    except DeltaLogCorruptedException:  # whoever needs the content finds out
        return []
    return sorted({sorted(sample)[len(sample) * i // pieces] for i in range(1, pieces)}) if sample else []


def select_listed(store: LogStore, hidden: Callable[[str], bool], named: Iterable[FileStatus]) -> Listing:
    """Return those of the files that the log names which :func:`list_table` would have found, without listing the table.

    :param named: with sizes and times of the log; a newer local file keeps its own time.
    """
    visible = [status for status in named if _visible(hidden, status.path)]
    foreign = _foreign_directories(store, all_parents([status.path for status in visible]))
    own = (_status(store, status) for status in visible if foreign.isdisjoint(parents(status.path)))
    found = [status for status in own if status is not None]
    staged = Listing()
    for transaction in sorted({status.path.split("/")[1] for status in found if status.path.startswith(_STAGED)}):
        _list_below(store, f"{_STAGED}{transaction}", hidden, staged)
    return Listing(found, staged=staged)


def _visible(hidden: Callable[[str], bool], path: str) -> bool:
    return path.startswith(_STAGED) or not any(map(hidden, path.split("/")))


def _list_below(store: LogStore, start: str, hidden: Callable[[str], bool], listing: Listing, cuts: Sequence[str] = ()) -> None:
    if isinstance(store, LocalStore):
        _walk(store, start, hidden, listing)
        return
    tables = set()
    files = []
    for status in tracked(store.list_recursive(start, cuts=cuts), f"Listing {store.root}"):
        directory, inner, _ = status.path.partition(f"/{LOG_DIRECTORY}/")
        if inner and not is_preview(directory):
            tables.add(directory)
        if _visible(hidden, status.path):
            files.append(status)
    listing.files += [status for status in files if tables.isdisjoint(parents(status.path))] if tables else files


def _foreign_directories(store: LogStore, directories: Collection[str]) -> set[str]:
    """Return those directories that are links, or hold another table."""
    if isinstance(store, LocalStore):
        return {directory for directory in directories if not _is_own(store, directory)}
    wanted = list(directories)
    with ThreadPoolExecutor(_THREADS) as pool:
        logs = pool.map(lambda directory: store.list_from(f"{directory}/{LOG_DIRECTORY}", "", stat=False), wanted)
        what = f"Looking for other tables in {store.root}"
        looked = tracked(zip(wanted, logs, strict=True), what, len(wanted), "directories")
        return {directory for directory, log in looked if log}


def _is_own(store: LocalStore, directory: str) -> bool:
    parent, _, name = directory.rpartition("/")
    try:
        with store.folder(parent) as folder:
            if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                return False
        with store.folder(directory) as folder:
            return not is_there(folder, LOG_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError, PathOutsideTableException):
        return False


def _status(store: LogStore, named: FileStatus) -> FileStatus | None:
    """Return a file with the time that counts for VACUUM, ``None`` if it is gone or a directory."""
    if not isinstance(store, LocalStore):
        return named
    directory, _, name = named.path.rpartition("/")
    try:
        with store.folder(directory) as folder:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode) or (stat.S_ISLNK(status.st_mode) and _is_directory(name, folder)):
                return None
    except (FileNotFoundError, NotADirectoryError):
        return None
    return FileStatus(named.path, named.size, max(named.modification_time, status.st_mtime_ns // 1_000_000))


def _is_directory(name: str, folder: int) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=folder).st_mode)
    except OSError:  # a dangling link
        return False


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


def _walk(store: LocalStore, start: str, hidden: Callable[[str], bool], listing: Listing) -> None:
    with Progress(f"Listing {store.root}") as progress:
        _walk_below(store, start, hidden, listing, progress)


def _walk_below(store: LocalStore, start: str, hidden: Callable[[str], bool], listing: Listing, progress: Progress) -> None:
    pending = [start]
    while pending:
        directory = pending.pop()
        staged = f"{directory}/".startswith(_STAGED)
        try:
            with store.folder(directory) as folder, os.scandir(folder) as entries:
                children = list(entries)
                pending += _list_one(directory, staged, children, hidden, listing)
                progress.advance(len(children))
        except (FileNotFoundError, NotADirectoryError, PathOutsideTableException):  # gone, or a link by now
            continue


def _list_one(
    directory: str, staged: bool, children: Sequence[os.DirEntry[str]], hidden: Callable[[str], bool], listing: Listing
) -> list[str]:
    """Add the files of a directory to a listing, and return its directories."""
    found: list[str] = []
    names = {entry.name for entry in children}
    if directory and LOG_DIRECTORY in names and not is_preview(directory):  # another table
        listing.directories.pop(directory, None)
        return found
    for entry in children:
        if not staged and hidden(entry.name):
            continue
        if staged and _checksum_of(entry.name) in names:  # goes with its file
            continue
        path = f"{directory}/{entry.name}" if directory else entry.name
        try:
            if entry.is_dir(follow_symlinks=False):
                listing.directories[path] = entry.stat().st_mtime_ns // 1_000_000
                found.append(path)
            elif not entry.is_dir():
                status = entry.stat()
                listing.files.append(FileStatus(path, status.st_size, status.st_mtime_ns // 1_000_000))
        except FileNotFoundError:  # gone while we list, or a dangling link
            continue
    return found


def _checksum_of(name: str) -> str | None:
    """Return the file that a local checksum file of Hadoop belongs to."""
    return name[1:-4] if name.startswith(".") and name.endswith(".crc") else None
