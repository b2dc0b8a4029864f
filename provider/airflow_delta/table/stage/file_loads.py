"""Which files a table has loaded, as records beside its log that its commits name.

A load is numbered by the version of an application id, ``airflow.copyInto/<consumer>``. Which record of that number counts is the
version of another id (``FileLoad.record_app_id``): the first bits of the record's digest. Both move in the commit that adds the
rows, so a record whose commit did not land never counts. A record is put before its commit, in a directory of the log that
neither VACUUM nor the cleanup of the log looks into.

The record of load 12 lists the files of load 12. Every sixteenth lists those of the sixteen up to it, every 256th those of 256,
and so on, and each names the digests of the ones before it that together go back to load 1. So a load is written a few times in
all, a few dozen records say what ten thousand loads have loaded, and one that is missing is noticed.

The first attempt of a stage pins what its transaction loads: the record, in a file of the transaction.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from airflow_delta.contract.payloads import COPY_APP, RECORD_SUFFIX, FileLoad, record_digits
from airflow_delta.contract.staging_directory import SCAN_DIRECTORY, transaction_directory
from airflow_delta.exceptions import (
    ConcurrentTransactionException,
    DeltaFileNotFoundException,
    DeltaIllegalStateException,
    StageConflictException,
    StagingException,
    TransactionExpiredException,
)
from airflow_delta.log.storage.errors import AmbiguousPutError
from airflow_delta.log.storage.file_names import LOG_DIRECTORY
from airflow_delta.log.storage.puts import creates, read_until_found
from airflow_delta.table.stage.loaded_places import Places
from airflow_delta.table.stage.source_positions import check_not_cloned
from airflow_delta.table.state.transaction_retention import last_txn_version
from airflow_delta.transaction.conflicts.errors import creator_of
from airflow_delta.transaction.reads.app_ids import START_OVER, AppIdConflict

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import TransactionHandle
    from airflow_delta.log import Snapshot
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.stage.stage_view import StageView
    from airflow_delta.table.stage.view import TransactionView

logger = logging.getLogger(__name__)

LOADED_BY_OTHERS = AppIdConflict(
    "A concurrent update has loaded files of the same consumer ({app_ids}) since this transaction looked for new ones",
    f"{START_OVER} loads what is new then. To have no such conflicts, set max_active_runs=1.",
)

RECORD_DIRECTORY = f"{LOG_DIRECTORY}/_copy_into"
"""Where records are, relative to the table root."""

_FORMAT = 1
_BASE = 16
"""Every record whose number this divides replaces the ones before it."""

_PAUSES = (0.1, 0.4, 1.0, 3.0, 6.0)
"""Seconds between attempts to read a file that must be there: a look-up may be stale."""


class LoadedFile(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A file as it was when it was loaded.

    :param path: URI of the file, links of its directory followed. Records of earlier releases have it as the author spelled it.
    :param etag: what the store called its content, if it did.
    :param spelled: the URI as the author spelled it, if it differs: a link may lead elsewhere later.
    """

    path: str
    size: int
    modification_time: int
    etag: str | None = None
    spelled: str | None = None

    def is_same(self, other: LoadedFile) -> bool:
        """Return whether the file has not changed: by its etag if the store has given one both times, else by its time."""
        if self.size != other.size:
            return False
        if self.etag is not None and other.etag is not None:
            return self.etag == other.etag
        return self.modification_time == other.modification_time


class RecordName(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A record: it has the files of loads ``first`` to ``number``."""

    number: int
    first: int
    sha256: str


class LoadRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What one or more loads of a consumer have loaded.

    :param earlier: the records of all loads before ``first``, in order.
    :param files: those of the load ``number`` come last.
    :param num_new: how many these are.
    :param unshared: whether no other consumer of the table may have loaded one of these.
    """

    consumer: str
    number: int
    first: int
    earlier: tuple[RecordName, ...]
    files: tuple[LoadedFile, ...]
    num_new: int
    unshared: bool = False
    format: int = _FORMAT

    @property
    def new(self) -> tuple[LoadedFile, ...]:
        """The files of this load."""
        return self.files[len(self.files) - self.num_new :]


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a consumer has loaded into a table so far.

    :ivar number: of loads.
    :ivar records: with the files of each, oldest first.
    """

    number: int = 0
    records: tuple[tuple[RecordName, tuple[LoadedFile, ...]], ...] = ()
    files: dict[str, LoadedFile] = field(default_factory=dict)

    @classmethod
    def of(cls, number: int, records: Sequence[tuple[RecordName, tuple[LoadedFile, ...]]]) -> Loaded:
        """Return what records say; of a file that was loaded again, the last one counts."""
        return cls(number, tuple(records), {file.path: file for _, files in records for file in files})


# -- what was loaded before ---------------------------------------------------------------------------------------------------


def loaded_before(view: TransactionView, consumer: str, *, assume_new: bool) -> Loaded:
    """Return what a consumer has loaded, at the version that the transaction reads.

    :param assume_new: the author says that a consumer of which the table knows nothing has loaded nothing.
    :raises TransactionExpiredException: if the table may have forgotten the number of the last load.
    :raises DeltaFileNotFoundException: if a record is gone.
    :raises DeltaIllegalStateException: if one is damaged, or the table is a clone that does not say what was loaded.
    """
    if view.handle.read_version < 0:
        return Loaded()
    snapshot, app_id = view.snapshot, f"{COPY_APP}{consumer}"

    def since() -> int | None:
        """When the oldest record was put: no load is older, and without a record there was no load."""
        found = view.log.store.list_from(_directory(consumer), "")
        return min((status.modification_time for status in found), default=int(time.time() * 1000))

    try:
        number = last_txn_version(view.log, snapshot, app_id, since)
        digits = last_txn_version(view.log, snapshot, f"{app_id}{RECORD_SUFFIX}", since)
    except TransactionExpiredException as error:
        if assume_new:
            return Loaded()
        raise view.handle.error(
            TransactionExpiredException,
            f"It can no longer be known which files {consumer!r} has loaded into table {view.log.uri}: the number of its last "
            "load has expired there (delta.setTransactionRetentionDuration), and the log no longer reaches back far enough. "
            "Nothing was staged. Look at the table, then run once with assume_new=True, and with modified_after=<time> if it has "
            "the files up to then. Unset delta.setTransactionRetentionDuration, or load more often.",
        ) from error
    if number is None and not assume_new:
        check_not_cloned(view, f"{consumer!r} has loaded files", "modified_after=<time>")
    if number is None or number == 0:
        return Loaded()
    return _read_records(view.log, consumer, number, digits)


def other_loads(view: TransactionView, consumer: str) -> Iterable[tuple[str, Loaded]]:
    """Yield the other consumers of the table with what they have loaded."""
    if view.handle.read_version < 0:
        return
    transactions, known = view.snapshot.transactions, {_directory(consumer)}
    for app_id, number in transactions.items():
        name = app_id.removeprefix(COPY_APP)
        if name != app_id and name != consumer and not app_id.endswith(RECORD_SUFFIX) and number:
            known.add(_directory(name))
            yield name, _read_records(view.log, name, number, transactions.get(f"{app_id}{RECORD_SUFFIX}"))
    if view.snapshot.properties.set_transaction_retention is not None:
        yield from _forgotten_loads(view.log, known)


def _forgotten_loads(log: DeltaLog, known: set[str]) -> Iterable[tuple[str, Loaded]]:
    """Yield consumers whose numbers have expired, with all that their records list: which of them count is unknown."""
    for name in log.store.list_directories(RECORD_DIRECTORY):
        directory = f"{RECORD_DIRECTORY}/{name}"
        paths = [status.path for status in log.store.list_from(directory, "")] if directory not in known else []
        loads: dict[str, Loaded] = {}
        for path, data in zip(paths, log.store.read_many(paths) if paths else [], strict=True):
            try:
                record = msgspec.json.decode(data, type=LoadRecord)
            except msgspec.MsgspecError as error:
                raise _damaged(log, path, str(error)) from error
            loads.setdefault(record.consumer, Loaded()).files.update((file.path, file) for file in record.files)
        yield from loads.items()


def _read_records(log: DeltaLog, consumer: str, number: int, digits: int | None) -> Loaded:
    head, sha256 = _read_head(log, consumer, number, digits)
    found: list[tuple[RecordName, tuple[LoadedFile, ...]]] = []
    paths = [_path(consumer, name.number, name.sha256) for name in head.earlier]
    for name, path, data in zip(head.earlier, paths, _read_all(log, consumer, paths), strict=True):
        record, _ = _checked(log, consumer, path, data, name.sha256)
        if (record.number, record.first) != (name.number, name.first):
            raise _lost(log, consumer, name.number, f"{path} is the record of loads {record.first} to {record.number}")
        found.append((name, record.files))
    found.append((RecordName(number=head.number, first=head.first, sha256=sha256), head.files))
    expected = 1
    for name, _ in found:
        if name.first != expected:
            raise _lost(log, consumer, expected, "no record has it")
        expected = name.number + 1
    if expected != number + 1:
        raise _lost(log, consumer, number, "no record has it")
    return Loaded.of(number, found)


def _read_head(log: DeltaLog, consumer: str, number: int, digits: int | None) -> tuple[LoadRecord, str]:
    """Return the record of a load, and its digest."""
    if digits is None:
        raise _lost(log, consumer, number, "the table does not say which record is its")
    start = record_digits(digits)
    path = _path(consumer, number, start)
    return _checked(log, consumer, path, _read_all(log, consumer, [path])[0], start)


def _read_all(log: DeltaLog, consumer: str, paths: Sequence[str]) -> list[bytes]:
    for pause in (*_PAUSES[:3], None):
        try:
            return log.store.read_many(paths) if paths else []
        except FileNotFoundError:
            if pause is not None:
                time.sleep(pause)
    gone = [path for path in paths if log.store.head(path) is None]
    raise log.error(
        DeltaFileNotFoundException,
        f"{len(gone) or 'Some'} of the records of what {consumer!r} has loaded into table {log.uri} are gone, such as "
        f"{gone[0] if gone else paths[0]}: which files are new is unknown. Nothing was staged. {_WAY_OUT}",
    )


_WAY_OUT = (
    "Bring the file back from a copy; or load as another consumer (consumer=...), once with modified_after=<time> if the table "
    "has the files up to then."
)


def _checked(log: DeltaLog, consumer: str, path: str, data: bytes, sha256: str) -> tuple[LoadRecord, str]:
    """Return a record that has the given digest, or begins with these digits of it."""
    found = hashlib.sha256(data).hexdigest()
    if not found.startswith(sha256):
        raise _damaged(log, path, "its checksum does not match")
    try:
        record = msgspec.json.decode(data, type=LoadRecord)
    except msgspec.MsgspecError as error:
        raise _damaged(log, path, str(error)) from error
    if record.format != _FORMAT or record.consumer != consumer or not 0 <= record.num_new <= len(record.files):
        raise _damaged(log, path, f"it has the format {record.format} and is of {record.consumer!r}")
    return record, found


def _damaged(log: DeltaLog, path: str, why: str) -> DeltaIllegalStateException:
    return log.error(
        DeltaIllegalStateException,
        f"The record {path} of files that table {log.uri} has loaded cannot be used: {why}. Nothing was staged. {_WAY_OUT}",
    )


def _lost(log: DeltaLog, consumer: str, number: int, why: str) -> DeltaIllegalStateException:
    return log.error(
        DeltaIllegalStateException,
        f"What {consumer!r} loaded into table {log.uri} by its load {number} is not known: {why}. Nothing was staged. {_WAY_OUT}",
    )


def _directory(consumer: str) -> str:
    digest = hashlib.sha256(consumer.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{RECORD_DIRECTORY}/{digest[:16]}"


def _path(consumer: str, number: int, sha256: str) -> str:
    return f"{_directory(consumer)}/{number:020d}.{sha256[: len(record_digits(0))]}.json"


# -- what this transaction loads ----------------------------------------------------------------------------------------------


def new_record(before: Loaded, consumer: str, files: Sequence[LoadedFile], *, unshared: bool = False) -> LoadRecord:
    """Return the record of the next load.

    :param files: that it loads.
    :param unshared: no other consumer may have loaded them.
    """
    number = before.number + 1
    covers = 1
    while number % (covers * _BASE) == 0:
        covers *= _BASE
    first = number - covers + 1
    again = {file.path for file in files}
    replaced = {file.path: file for name, old in before.records if name.first >= first for file in old if file.path not in again}
    return LoadRecord(
        consumer=consumer,
        number=number,
        first=first,
        earlier=tuple(name for name, _ in before.records if name.number < first),
        files=(*replaced.values(), *files),
        num_new=len(files),
        unshared=unshared,
    )


def pinned_load(view: StageView, record: LoadRecord, source: str) -> tuple[FileLoad, LoadRecord] | None:
    """Pin what the transaction loads, unless it is pinned already; return what is.

    A record without files is not pinned: what comes later may be loaded.

    :return: ``None`` if nothing is pinned.
    :raises StageConflictException: if another task of the transaction loads as the same consumer.
    :raises StagingException: if there is a pin that cannot be read.
    """
    path = load_pin_path(view.handle, record.consumer)
    data = msgspec.json.encode(record)
    sha256 = hashlib.sha256(data).hexdigest()
    if not record.num_new and view.log.store.head(path) is None:
        return None
    if not record.num_new or not creates(view.log.store, path, _sealed(view.task_id, data)):
        found = read_until_found(lambda: _read_pin(view.log, path))
        if found is None or (found.record.consumer, found.record.number) != (record.consumer, record.number):
            raise view.handle.error(
                StagingException,
                f"The files that transaction {view.handle.transaction_id} loads cannot be read back ({path} of table "
                f"{view.log.uri}). Nothing was staged. Clear the start task with everything downstream.",
            )
        if found.task_id != view.task_id:  # of one that is mapped, the values may have moved
            raise view.handle.error(
                StageConflictException,
                f"The task {found.task_id!r} loads files as {record.consumer!r} in transaction {view.handle.transaction_id} on "
                f"table {view.log.uri}, so {view.task_id!r} cannot: their rows would be in the table twice. Nothing was staged. "
                "Give each a consumer of its own, and files of its own.",
            )
        data, record = found.data, found.record
        sha256 = hashlib.sha256(data).hexdigest()
    load = FileLoad(source=source, consumer=record.consumer, number=record.number, record=sha256, num_files=record.num_new)
    return load, record


def load_pin_path(handle: TransactionHandle, consumer: str) -> str:
    """Return the path of the file that pins what a consumer loads."""
    name = hashlib.sha256(consumer.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{transaction_directory(handle.transaction_id)}/{SCAN_DIRECTORY}/copy-into-{name}.json"


@dataclass(frozen=True, slots=True)
class _Pin:
    """What a transaction loads as one consumer.

    :ivar task_id: of the task that loads it.
    :ivar data: the record as it was written.
    """

    task_id: str
    data: bytes
    record: LoadRecord


def _sealed(task_id: str, data: bytes) -> bytes:
    content = task_id.encode() + b"\n" + data
    return hashlib.sha256(content).hexdigest().encode() + b"\n" + content


def _read_pin(log: DeltaLog, path: str) -> _Pin | None:
    """Return what is pinned; ``None`` if there is nothing, or it is damaged."""
    try:
        content = log.store.read(path)
    except FileNotFoundError:
        return None
    _, _, sealed = content.partition(b"\n")
    task_id, _, data = sealed.partition(b"\n")
    try:
        if _sealed(task_id.decode(), data) != content:
            return None
        return _Pin(task_id.decode(), data, msgspec.json.decode(data, type=LoadRecord))
    except (UnicodeDecodeError, msgspec.MsgspecError):
        return None


# -- the commit ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoadsToCommit:
    """The loads that a commit records.

    :ivar versions: that it sets, by application id.
    :ivar unshared: places of the files that no other consumer may have loaded.
    """

    log: DeltaLog
    versions: dict[str, int]
    unshared: frozenset[str]

    def conflict_with(self, versions: Mapping[str, int]) -> str | None:
        """Return why another commit conflicts: another consumer has loaded one of the files in it.

        :param versions: that it sets, by application id.
        """
        for app_id, number in versions.items() if self.unshared else ():
            consumer = app_id.removeprefix(COPY_APP)
            if consumer == app_id or app_id.endswith(RECORD_SUFFIX) or app_id in self.versions:
                continue
            record, _ = _read_head(self.log, consumer, number, versions.get(f"{app_id}{RECORD_SUFFIX}"))
            if twice := sorted(self.unshared.intersection(Places().of(file.path) for file in record.new)):
                return f"Files that this transaction loads, such as {twice[0]}, have been loaded by {consumer!r}"
        return None


def loads_to_commit(view: TransactionView, *, created: bool) -> LoadsToCommit:
    """Return the loads that the commit of the stages records.

    What the stages report comes as XCom, so it must be what the transaction has pinned.

    :param created: another transaction created the table since this one began.
    :raises StageConflictException: if two stages have loaded files as one consumer, or the same file: its rows would be there
        twice.
    :raises StagingException: if a load is not the pinned one.
    :raises ConcurrentTransactionException: if the consumer has loaded files since the transaction began, or another one has
        created the table with one of them.
    """
    versions: dict[str, int] = {}
    files: set[str] = set()
    unshared: set[str] = set()
    places = Places()
    for stage in view.stages:
        for load in stage.write.loads:
            if load.app_id in versions:
                raise view.handle.error(
                    StageConflictException,
                    f"Two stages of transaction {view.handle.transaction_id} on table {view.log.uri} have loaded files as "
                    f"{load.consumer!r}: their rows would be in the table twice. Nothing is committed. Give each a consumer of "
                    "its own, and files of its own.",
                )
            versions |= {load.app_id: load.number, load.record_app_id: load.record_version}
            _check_number(view, load)
            record = _pinned_as(view, load).record
            paths = {places.of(file.path) for file in record.new}
            if twice := sorted(paths & files):
                raise view.handle.error(
                    StageConflictException,
                    f"Two stages of transaction {view.handle.transaction_id} on table {view.log.uri} have loaded {len(twice)} "
                    f"files, such as {twice[0]}: their rows would be in the table twice. Nothing is committed. Give each stage "
                    "files of its own.",
                )
            files |= paths
            if record.unshared:
                unshared |= paths
    loads = LoadsToCommit(view.log, versions, frozenset(unshared))
    if created and (why := loads.conflict_with(view.snapshot.transactions)) is not None:
        who, info = creator_of(view.log)
        raise ConcurrentTransactionException(
            f"{why}: the table {view.log.uri} was created with them since this transaction began ({who}). Nothing is committed. "
            "Clear the start task: the new transaction sees what the table has by then.",
            table=view.log.uri,
            winning_version=0,
            winning_commit=info,
        )
    return loads


def _check_number(view: TransactionView, load: FileLoad) -> None:
    snapshot: Snapshot | None = view.snapshot if view.handle.read_version >= 0 else None
    txn = snapshot.set_transaction(load.app_id, expired=True) if snapshot is not None else None
    if snapshot is not None and txn is not None and txn.version != load.number - 1:
        raise ConcurrentTransactionException(
            f"Another commit has loaded files into table {view.log.uri} as {load.consumer!r} since this transaction looked for "
            f"new ones: it is at load {txn.version}, not {load.number - 1}. Nothing is committed. Clear the start task: the next "
            "transaction loads what is new then.",
            table=view.log.uri,
            winning_version=snapshot.version,
        )


def _pinned_as(view: TransactionView, load: FileLoad) -> _Pin:
    """Return a load as it was pinned."""
    path = load_pin_path(view.handle, load.consumer)
    found = _read_pin(view.log, path)
    if found is not None:
        record = found.record
        told = (load.consumer, load.number, load.num_files, load.record)
        if told == (record.consumer, record.number, record.num_new, hashlib.sha256(found.data).hexdigest()):
            return found
    raise view.handle.error(
        StagingException,
        f"A stage of transaction {view.handle.transaction_id} on table {view.log.uri} says that it has loaded {load.num_files} "
        f"files of {load.source} as load {load.number} of {load.consumer!r}, which is not what the transaction has pinned "
        f"({path}). Nothing is committed. Clear the start task with everything downstream.",
    )


def keep_records(view: TransactionView) -> None:
    """Put the records of the loads into the log's directory, for good: the commit that follows names them."""
    for stage in view.stages:
        for load in stage.write.loads:
            _put(view.log, _path(load.consumer, load.number, load.record), _pinned_as(view, load).data)


def copy_records(log: DeltaLog, source: DeltaLog, changed: Mapping[str, int], versions: Mapping[str, int]) -> None:
    """Put the records of another table's loads into a log that is to have them, too.

    One that is gone or damaged there stays so: whoever looks for it gets an error.

    :param changed: versions by application id; the loads among them are copied.
    :param versions: all of the other table, which say what the records are.
    """
    for app_id, digits in changed.items():
        consumer = app_id.removeprefix(COPY_APP).removesuffix(RECORD_SUFFIX)
        number = versions.get(f"{COPY_APP}{consumer}")
        if not app_id.startswith(COPY_APP) or not app_id.endswith(RECORD_SUFFIX) or number is None:
            continue
        try:
            head, sha256 = _read_head(source, consumer, number, digits)
        except (DeltaFileNotFoundException, DeltaIllegalStateException) as error:
            logger.warning("Not copied to table %s: %s", log.uri, error.message)
            continue
        for name in (*head.earlier, RecordName(number=number, first=head.first, sha256=sha256)):
            path = _path(consumer, name.number, name.sha256)
            try:
                _put(log, path, source.store.read(path))
            except FileNotFoundError:
                logger.warning("Not copied to table %s: %s of table %s is gone", log.uri, path, source.uri)


def _put(log: DeltaLog, path: str, data: bytes) -> None:
    """Put a file that is named by its content, so that it may be there already."""
    for pause in (*_PAUSES, None):
        try:
            log.store.put_if_absent(path, data)
        except FileExistsError:
            if log.store.read(path) != data:
                raise _damaged(log, path, "it is there already, with other content") from None
        except AmbiguousPutError:
            if pause is None:
                raise
            time.sleep(pause)
            continue
        return
