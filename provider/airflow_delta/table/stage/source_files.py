"""The files of a source that a table has not loaded yet: which there are, and that they stay as they are while they are read."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_delta.contract.staging_directory import is_hidden
from airflow_delta.exceptions import (
    DeltaFileNotFoundException,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    SchemaMismatchException,
    StagingException,
)
from airflow_delta.log.storage.file_names import LOG_DIRECTORY
from airflow_delta.log.storage.options import canonical_options
from airflow_delta.log.storage.place import spelled_place, store_place
from airflow_delta.table.files.inside_table import table_above
from airflow_delta.table.stage.file_globs import part_expression
from airflow_delta.table.stage.file_loads import LoadedFile, loaded_before, new_record, other_loads, pinned_load
from airflow_delta.table.stage.loaded_places import Places, default_consumer, loads_from
from airflow_delta.table.stage.source_positions import check_no_replacement

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import FileLoad
    from airflow_delta.exceptions import DeltaError
    from airflow_delta.log.storage.base import FileStatus, LogStore
    from airflow_delta.table.stage.stage_view import StageView
    from airflow_delta.table.stage.view import TransactionView

_THREADS = 8
_AVRO_MAGIC = b"Obj\x01"
_AVRO_HEAD = 64 << 10
_HEADS = 32
"""Files that are looked up one by one; more are listed."""

_WILDCARD = re.compile(r"(?<!\\)[*?\[{]")
_AUTHORITY = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/]*")


@dataclass(frozen=True, slots=True)
class SourcePattern:
    """Where files to load are.

    :ivar base: location of the directory before the first wildcard.
    :ivar names: glob of their paths below it; empty: all files directly in it.
    :ivar recursive: also those in directories below.
    """

    base: str
    names: str
    recursive: bool = False

    @classmethod
    def parse(cls, source: str, pattern: str | None = None, *, recursive: bool = False) -> SourcePattern:
        r"""Return the pattern of a source: its directories up to the first wildcard, and the rest.

        In one part of a path ``*`` is any text, ``?`` one character, ``[abc]``, ``[a-z]`` and ``[!abc]`` one of some, ``{a,b}``
        one of several strings; a backslash takes the next character literally.

        :param pattern: a glob below the source, which then is a directory.
        :raises DeltaIllegalArgumentException: if a glob is not valid, or the bucket has a wildcard.
        """
        for name, value in (("source", source), ("pattern", pattern)):
            if value is not None and (not isinstance(value, str) or not value.strip() or value == "None"):
                raise DeltaIllegalArgumentException(f"{name} must be a non-empty string, got {value!r}.")
        whole = source if pattern is None else f"{source.rstrip('/')}/{pattern.lstrip('/')}"
        authority = found[0] if (found := _AUTHORITY.match(whole)) else ""
        rest = whole[len(authority) :]
        if _WILDCARD.search(authority):
            raise DeltaIllegalArgumentException(f"The source {source!r} has a wildcard in its bucket. Name one bucket.")
        wildcard = _WILDCARD.search(rest)
        if wildcard is None and (rest.endswith("/") or not rest):
            base, names = rest.rstrip("/"), ""
        elif wildcard is None and "/" not in rest:  # a name below the connection's base path
            base, names = rest, ""
        else:
            slash = rest.rfind("/", 0, len(rest) if wildcard is None else wildcard.start())
            base, names = rest[: max(slash, 0)], rest[slash + 1 :]
        if not authority and not base:
            base = "/" if rest.startswith("/") else ""
        if not authority and not base:
            raise DeltaIllegalArgumentException(f"The source {source!r} has no directory before its first wildcard. Name one.")
        base = authority + base
        parsed = cls(re.sub(r"\\(.)", r"\1", base), names, recursive)
        parsed.matcher()
        return parsed

    def matcher(self) -> re.Pattern[str]:
        """Return the expression that the paths below the base match.

        :raises DeltaIllegalArgumentException: if the glob is not valid.
        """
        *directories, name = (self.names or "*").split("/")
        if "**" in self.names:
            raise DeltaIllegalArgumentException(f"The pattern {self.names!r} has **. Use recursive=True.")
        parts = "".join(f"{part_expression(part, self.names)}/" for part in directories)
        deeper = "(?:[^/]+/)*" if self.recursive else ""
        return re.compile(f"{parts}{deeper}{part_expression(name, self.names)}", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyIntoOptions:
    """What is loaded.

    :param consumer: who loads; ``None``: whoever loads from this directory.
    :param force: load files that were loaded already, too.
    :param modified_after: only files that were modified later, in milliseconds since the epoch.
    :param assume_new: a consumer of which the table knows nothing has loaded nothing.
    """

    consumer: str | None = None
    force: bool = False
    modified_after: int | None = None
    assume_new: bool = False

    def __post_init__(self) -> None:
        name = self.consumer
        if name is not None and (not isinstance(name, str) or not name.strip() or name in ("None", "nan") or "#" in name):
            raise DeltaIllegalArgumentException(f"consumer must be a non-empty string without '#', got {name!r}.")


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """The files that a transaction loads.

    :ivar store: of the directory that they are below.
    :ivar load: what the commit records; ``None`` if there is nothing to load.
    :ivar files: as they were when the first attempt found them, with paths in the store.
    :ivar directory: in the store, that they are below.
    """

    store: LogStore
    source: str
    load: FileLoad | None
    files: tuple[LoadedFile, ...]
    directory: str = ""

    def open(self, file: LoadedFile) -> Any:
        """Open a file of ``files`` for random access."""
        return self.store.open_input(file.path, file.size)

    def check(self) -> None:
        """Check that all files are as they were found.

        :raises DeltaFileNotFoundException: if one is gone.
        :raises DeltaIllegalStateException: if one was changed.
        """
        if len(self.files) <= _HEADS:
            now = {file.path: self.store.head(file.path) for file in self.files}
        else:
            listed = {status.path: status for status in self.store.list_readable(self.directory)}
            now = {file.path: listed.get(file.path) or self.store.head(file.path) for file in self.files}
        gone = [file.path for file in self.files if now[file.path] is None]
        if gone:
            raise self.store.error(
                DeltaFileNotFoundException,
                f"{len(gone)} of {len(self.files)} files of {self.source} that are being loaded are gone, such as {gone[0]}. "
                "Nothing was staged. Bring them back, or clear the start task with everything downstream: the next transaction "
                "loads what is there.",
            )
        changed = [file.path for file in self.files if (status := now[file.path]) and not file.is_same(_of(status, file.path))]
        if changed:
            raise self.store.error(
                DeltaIllegalStateException,
                f"{len(changed)} of {len(self.files)} files of {self.source} have changed since they were found, such as "
                f"{changed[0]}. Nothing was staged. Clear the start task with everything downstream, when they are complete. "
                "Writers should put whole files, under names of their own.",
            )

    def check_one_avro_schema(self) -> None:
        """Check that all files were written with one schema: Spark reads those of Avro with the one of any of them.

        :raises SchemaMismatchException: if there are several, or a file is not Avro.
        """
        with ThreadPoolExecutor(_THREADS) as pool:
            schemas = list(pool.map(self._avro_schema, self.files))
        for file, schema in zip(self.files, schemas, strict=True):
            if schema is None or schema != schemas[0]:
                raise self.store.error(
                    SchemaMismatchException,
                    f"The file {file.path} of {self.source} is not Avro. Nothing was staged."
                    if schema is None
                    else f"The files {self.files[0].path} and {file.path} of {self.source} have different Avro schemas, and "
                    "Spark would read both with that of one. Nothing was staged. Load them apart from each other, by pattern.",
                )

    def _avro_schema(self, file: LoadedFile) -> Any:
        length = _AVRO_HEAD
        while True:
            data = self.store.read_range(file.path, 0, length)
            try:
                return _avro_schema(data)
            except IndexError:
                if len(data) < length:
                    return None
                length *= 8
            except ValueError:
                return None


class _AvroHeader:
    """Reads the values of an Avro file's header; an :class:`IndexError` means that there is more of it."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = len(_AVRO_MAGIC)

    def number(self) -> int:
        """Read a number: seven bits in each byte, lowest first, the sign in the lowest bit."""
        value = 0
        for shift in range(0, 64, 7):
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return (value >> 1) ^ -(value & 1)
        raise ValueError("not a number of Avro")

    def content(self) -> bytes:
        """Read bytes: their number, and as many."""
        length = self.number()
        if length < 0:
            raise ValueError("not a length")
        self._at += length
        if self._at > len(self._data):
            raise IndexError
        return self._data[self._at - length : self._at]


def _avro_schema(data: bytes) -> Any:
    """Return the schema in the header of an Avro file.

    :raises IndexError: if the header is longer than this.
    :raises ValueError: if it is not an Avro header.
    """
    if not data.startswith(_AVRO_MAGIC):
        raise ValueError("not Avro")
    header = _AvroHeader(data)
    while (count := header.number()) != 0:
        if count < 0:  # the bytes of the block follow
            header.number()
        for _ in range(abs(count)):
            key, value = header.content(), header.content()
            if key == b"avro.schema":
                return json.loads(value)
    raise ValueError("no schema")


def find_source_files(view: StageView, store: LogStore, pattern: SourcePattern, options: CopyIntoOptions) -> SourceFiles:
    """Return the files that the table does not have yet, as the first attempt of the transaction found them.

    :param store: of ``pattern.base``.
    :raises DeltaIllegalArgumentException: if a file is in the directory of a Delta table.
    :raises DeltaIllegalStateException: if a file was changed after it was loaded; if another consumer has loaded one; if a record
        of loads is damaged; or if the transaction would replace rows of an earlier run.
    :raises DeltaFileNotFoundException: if a record of loads is gone.
    :raises StageConflictException: if another task of the transaction loads as the same consumer.
    :raises TransactionExpiredException: if it cannot be known whether there were loads.
    """
    check_no_replacement(view, f"files below {store.root}")
    directory, statuses = matching(store, pattern)
    where, spelled = (place(store, directory).key.rstrip("/") for place in (store_place, spelled_place))
    source = f"{where}/{pattern.names}" if pattern.names and not directory else where
    if (outer := table_above(store, directory)) is not None:
        raise _of_a_table(store, source, outer)
    names = [(status, status.path[len(directory) + 1 if directory else 0 :]) for status in statuses]
    found = [_of(status, f"{where}/{name}", None if where == spelled else f"{spelled}/{name}") for status, name in names]
    _check_not_of_the_table(view, [file.path for file in found])
    consumer = options.consumer or default_consumer(where)
    before = loaded_before(view, consumer, assume_new=options.assume_new)
    after = options.modified_after
    found = [file for file in found if after is None or file.modification_time > after]
    unshared = options.consumer is None and not options.force
    places = Places(canonical_options(store.options, store.root))
    if not options.force:
        found = _new(view, consumer, source, found, places.known(before.files))
        if unshared:
            found = _new_to_others(view, consumer, (source, where, spelled), found, places)
    record = new_record(before, consumer, sorted(found, key=lambda file: file.path), unshared=unshared)
    pinned = pinned_load(view, record, source)  # even if nothing is left to load: what the first attempt found may be gone
    if pinned is None:
        return SourceFiles(store, source, None, (), directory)
    load, record = pinned
    paths = [places.of(file.path) for file in record.new]
    if outside := [path for path in paths if not path.startswith(f"{where}/")]:
        raise view.handle.error(
            StagingException,
            f"The first attempt of transaction {view.handle.transaction_id} loads {outside[0]}, which is not below {where}: the "
            "source was changed since. Nothing was staged. Clear the start task with everything downstream.",
        )
    inside = f"{directory}/" if directory else ""
    files = tuple(
        msgspec.structs.replace(file, path=f"{inside}{path[len(where) + 1 :]}", spelled=None)
        for path, file in zip(paths, record.new, strict=True)
    )
    return SourceFiles(store, source, load, files, directory)


def matching(store: LogStore, pattern: SourcePattern) -> tuple[str, list[FileStatus]]:
    """Return the files that a pattern selects, without hidden ones (``_`` and ``.``, of a directory, too).

    A source without wildcards is a file or a directory.

    :return: the directory in the store that the source is, and the files.
    """
    names = pattern.names
    if not names or _WILDCARD.search(names):
        return "", _selected(store, "", pattern)
    plain = re.sub(r"\\(.)", r"\1", names)
    if store.local_root is not None and os.path.islink(f"{store.local_root}/{plain}"):
        raise store.error(
            DeltaIllegalArgumentException,
            f"The source {plain} of {store.root} is a symbolic link. Nothing was staged. Name the file itself; a directory with "
            "a slash at its end.",
        )
    status = store.head(plain)
    if status is None or _is_directory(store, plain):
        return plain, _selected(store, plain, SourcePattern(pattern.base, "", pattern.recursive))
    if is_hidden(plain):
        raise store.error(
            DeltaIllegalArgumentException,
            f"The file {plain} of {store.root} is hidden (its name begins with '_' or '.'): Spark does not read it. Rename it.",
        )
    return "", [status]


def _selected(store: LogStore, directory: str, pattern: SourcePattern) -> list[FileStatus]:
    prefix = f"{directory}/" if directory else ""
    matches = pattern.matcher().fullmatch
    listed = ((status, status.path.removeprefix(prefix)) for status in store.list_readable(directory))
    found, tables = [], set()
    for status, path in listed:
        above, log, _ = f"/{path}".partition(f"/{LOG_DIRECTORY}/")
        if log:
            tables.add(f"{above[1:]}/".lstrip("/"))
        elif matches(path) and not is_hidden(path):
            found.append((status, path))
    inside = next((path for _, path in found if any(path.startswith(table) for table in tables)), None)
    if inside is not None:
        raise store.error(
            DeltaIllegalArgumentException,
            f"The file {prefix}{inside} below {store.root} is in the directory of a Delta table (there is a {LOG_DIRECTORY}): "
            "its log alone says which of its files count. Nothing was staged. Read new rows of a table with table.new_rows(), or "
            "leave its directory out by the pattern.",
        )
    link = next((status.path for status, _ in found if status.is_link), None)
    if link is not None:  # its target may be loaded under its own name, too
        raise store.error(
            DeltaIllegalArgumentException,
            f"The file {link} below {store.root} is a symbolic link. Nothing was staged. Put the file itself there, or leave the "
            "link out by the pattern.",
        )
    return [status for status, _ in found]


def _is_directory(store: LogStore, path: str) -> bool:
    """Return whether a path that a disk or HDFS knows is a directory; an object store has none."""
    directory, _, name = path.rpartition("/")
    return store.probes and name in store.list_directories(directory)


def _of(status: FileStatus, path: str, spelled: str | None = None) -> LoadedFile:
    return LoadedFile(path=path, size=status.size, modification_time=status.modification_time, etag=status.etag, spelled=spelled)


def _known(known: Mapping[str, LoadedFile], file: LoadedFile) -> LoadedFile | None:
    return known.get(file.path) or known.get(file.spelled or "")


def _of_a_table(store: LogStore, what: str, table: str) -> DeltaError:
    return store.error(
        DeltaIllegalArgumentException,
        f"{what} is in the directory of a Delta table ({table} has a {LOG_DIRECTORY}): its log alone says which of its files "
        "count. Nothing was staged. Read new rows of a table with table.new_rows(), or leave its directory out by the pattern.",
    )


def _new(
    view: TransactionView, consumer: str, source: str, files: Sequence[LoadedFile], known: Mapping[str, LoadedFile]
) -> list[LoadedFile]:
    """Return the files that a consumer has not loaded.

    :param known: those that it has (:meth:`Places.known`).
    """
    changed = [file.path for file in files if (old := _known(known, file)) is not None and not old.is_same(file)]
    if changed:
        raise view.handle.error(
            DeltaIllegalStateException,
            f"{len(changed)} of the files of {source} that {consumer!r} has loaded into table {view.log.uri} have changed since, "
            f"such as {changed[0]}: the table has their former rows. Nothing was staged. Delete these rows, and load all files "
            "again with force=True (and pattern= to select some); or put the file back, and new rows into files of other names.",
        )
    return [file for file in files if _known(known, file) is None]


def _new_to_others(
    view: TransactionView, consumer: str, source: tuple[str, str, str], files: list[LoadedFile], places: Places
) -> list[LoadedFile]:
    """Return the files without those that were loaded from this directory under another spelling of it.

    :param source: what is loaded; the place of its directory; and how that is spelled.
    :raises DeltaIllegalStateException: if one was loaded from another directory: that the source is named otherwise now is no
        reason to load it again.
    """
    what, where, spelled = source
    if not files:
        return files
    for name, loaded in other_loads(view, consumer):
        known = places.known(loaded.files)
        if loads_from(name, loaded.files, {where, spelled}, places):
            files = _new(view, name, what, files, known)
        elif twice := [file.path for file in files if _known(known, file) is not None]:
            raise view.handle.error(
                DeltaIllegalStateException,
                f"{len(twice)} of the files to load, such as {twice[0]}, are in table {view.log.uri} already: {name!r} has "
                f"loaded them. Nothing was staged. Go on as that one (consumer={name!r}); to load them again, give a consumer of "
                "another name.",
            )
    return files


def _check_not_of_the_table(view: TransactionView, paths: Sequence[str]) -> None:
    """Refuse files that are the table's own, or that VACUUM would delete."""
    root = store_place(view.log.store).key.rstrip("/")
    inside = next((path for path in paths if path.startswith(f"{root}/")), None)
    if inside is not None:
        raise view.handle.error(
            DeltaIllegalArgumentException,
            f"The file {inside} to load is in the directory of table {view.log.uri} itself. Nothing was staged. Name a source "
            "that has no file of the table.",
        )
