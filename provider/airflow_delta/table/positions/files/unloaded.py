"""The files of a source that a table has not loaded yet: which there are, and that they stay as they are while they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_delta.exceptions import (
    DeltaFileNotFoundException,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    SchemaMismatchException,
    StagingException,
)
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.storage.file_names import LOG_DIRECTORY
from airflow_delta.log.storage.options import canonical_options
from airflow_delta.log.storage.place import spelled_place, store_place
from airflow_delta.table.files.inside_table import table_above
from airflow_delta.table.positions.files.avro import avro_schema
from airflow_delta.table.positions.files.load import pinned_load
from airflow_delta.table.positions.files.pattern import SourcePattern, file_of_a_table, matching
from airflow_delta.table.positions.files.places import Places, default_consumer, loads_from
from airflow_delta.table.positions.files.records import LoadedFile, loaded_before, new_record, other_loads
from airflow_delta.table.positions.position import check_no_replacement

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import FileLoad
    from airflow_delta.log.storage.base import FileStatus, LogStore
    from airflow_delta.table.stage.stage_view import StageView
    from airflow_delta.table.stage.view import TransactionView

_THREADS = 8
_HEADS = 32
"""Files that are looked up one by one; more are listed."""


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
            schemas = list(pool.map(lambda file: avro_schema(self.store, file.path), self.files))
        for file, schema in zip(self.files, schemas, strict=True):
            if schema is None or schema != schemas[0]:
                raise self.store.error(
                    SchemaMismatchException,
                    f"The file {file.path} of {self.source} is not Avro. Nothing was staged."
                    if schema is None
                    else f"The files {self.files[0].path} and {file.path} of {self.source} have different Avro schemas, and "
                    "Spark would read both with that of one. Nothing was staged. Load them apart from each other, by pattern.",
                )


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
        raise file_of_a_table(store, source, f"{outer} has a {LOG_DIRECTORY}")
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


def _of(status: FileStatus, path: str, spelled: str | None = None) -> LoadedFile:
    return LoadedFile(path=path, size=status.size, modification_time=status.modification_time, etag=status.etag, spelled=spelled)


def _known(known: Mapping[str, LoadedFile], file: LoadedFile) -> LoadedFile | None:
    return known.get(file.path) or known.get(file.spelled or "")


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
