"""Which files a table has loaded, as records beside its log that its commits name.

A load is numbered by the version of an application id, ``airflow.copyInto/<consumer>``. Which record of that number counts is the
version of another id: the first bits of the record's digest (``FileLoad.versions``). Both move in the commit that adds the rows,
so a record whose commit did not land never counts. A record is put before its commit, in a directory of the log that neither
VACUUM nor the cleanup of the log looks into.

The record of load 12 lists the files of load 12. Every sixteenth lists those of the sixteen up to it, every 256th those of 256,
and so on, and each names the digests of the ones before it that together go back to load 1. So a load is written a few times in
all, a few dozen records say what ten thousand loads have loaded, and one that is missing is noticed.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

import msgspec

from airflow_delta.contract.payloads import COPY_APP, RECORD_SUFFIX, record_digits
from airflow_delta.exceptions import DeltaFileNotFoundException, DeltaIllegalStateException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.storage.errors import AmbiguousPutError
from airflow_delta.log.storage.file_names import LOG_DIRECTORY
from airflow_delta.table.positions.position import check_not_cloned, last_position

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.stage.view import TransactionView

logger = logging.getLogger(__name__)

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


def loads_in(versions: Mapping[str, int]) -> Iterator[tuple[str, int, int | None]]:
    """Yield the consumers that have loaded files, with the number of the last load, and what tells which record is its.

    :param versions: by application id.
    """
    for app_id, number in versions.items():
        consumer = app_id.removeprefix(COPY_APP)
        if consumer != app_id and not app_id.endswith(RECORD_SUFFIX) and number:
            yield consumer, number, versions.get(f"{app_id}{RECORD_SUFFIX}")


def loaded_before(view: TransactionView, consumer: str, *, assume_new: bool) -> Loaded:
    """Return what a consumer has loaded, at the version that the transaction reads.

    :param assume_new: the author says that a consumer of which the table knows nothing has loaded nothing.
    :raises TransactionExpiredException: if the table may have forgotten the number of the last load.
    :raises DeltaFileNotFoundException: if a record is gone.
    :raises DeltaIllegalStateException: if one is damaged, or the table is a clone that does not say what was loaded.
    """

    def since() -> int | None:
        """When the oldest record was put: no load is older, and without a record there was no load."""
        found = view.log.store.list_from(_directory(consumer), "")
        return min((status.modification_time for status in found), default=int(time.time() * 1000))

    app_id, words = f"{COPY_APP}{consumer}", {"what": f"{consumer!r} has loaded files", "beginning": "modified_after=<time>"}
    number, digits = (
        last_position(view, name, since, assume_new=assume_new, **words) for name in (app_id, f"{app_id}{RECORD_SUFFIX}")
    )
    if number is None and not assume_new and view.handle.read_version >= 0:
        check_not_cloned(view, **words)
    return _read_records(view.log, consumer, number, digits) if number else Loaded()


def other_loads(view: TransactionView, consumer: str) -> Iterable[tuple[str, Loaded]]:
    """Yield the other consumers of the table with what they have loaded."""
    if view.handle.read_version < 0:
        return
    known = {_directory(consumer)}
    for name, number, digits in loads_in(view.snapshot.transactions):
        if name != consumer:
            known.add(_directory(name))
            yield name, _read_records(view.log, name, number, digits)
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
    head, sha256 = read_head(log, consumer, number, digits)
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


def read_head(log: DeltaLog, consumer: str, number: int, digits: int | None) -> tuple[LoadRecord, str]:
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


def keep_record(log: DeltaLog, consumer: str, number: int, data: bytes) -> None:
    """Put the record of a load, for good."""
    _put(log, _path(consumer, number, hashlib.sha256(data).hexdigest()), data)


def copy_records(log: DeltaLog, source: DeltaLog, changed: Collection[str], versions: Mapping[str, int]) -> None:
    """Put the records of another table's loads into a log that is to have them, too.

    One that is gone or damaged there stays so: whoever looks for it gets an error.

    :param changed: application ids; the records of the loads among them are copied.
    :param versions: all of the other table, which say what the records are.
    """
    for consumer, number, digits in loads_in(versions):
        if f"{COPY_APP}{consumer}{RECORD_SUFFIX}" not in changed:
            continue
        try:
            head, sha256 = read_head(source, consumer, number, digits)
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
