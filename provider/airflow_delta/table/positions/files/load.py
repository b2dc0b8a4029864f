"""The files that a transaction loads: what its stages have pinned, and what its commit records.

The first attempt of a stage pins them as the record of the load, with the task that loads it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from airflow_delta.contract.payloads import FileLoad
from airflow_delta.exceptions import StageConflictException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.table.positions.files.places import Places
from airflow_delta.table.positions.files.records import LoadRecord, keep_record, loads_in, read_head
from airflow_delta.table.positions.pin import Pin, pin_path
from airflow_delta.table.positions.position import moved_by_others

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.stage.stage_view import StageView
    from airflow_delta.table.stage.view import TransactionView

LOADED_BY_OTHERS = moved_by_others(
    "loaded files of the same consumer ({app_ids}) since this transaction looked for new ones", "loads"
)


@dataclass(frozen=True, slots=True)
class PinnedLoad:
    """What a transaction loads as one consumer.

    :ivar task_id: of the task that loads it.
    :ivar data: the record as it was written.
    """

    task_id: str
    data: bytes
    record: LoadRecord

    def reported(self, source: str) -> FileLoad:
        """Return what the stage reports.

        :param source: where the files are, for messages.
        """
        record, digest = self.record, hashlib.sha256(self.data).hexdigest()
        return FileLoad(source=source, consumer=record.consumer, number=record.number, record=digest, num_files=record.num_new)


def pinned_load(view: StageView, record: LoadRecord, source: str) -> tuple[FileLoad, LoadRecord] | None:
    """Pin what the transaction loads, unless it is pinned already; return what is.

    A record without files is not pinned: what comes later may be loaded.

    :return: ``None`` if nothing is pinned.
    :raises StageConflictException: if another task of the transaction loads as the same consumer.
    """
    pin = _pin(view, record.consumer)
    if not record.num_new and not pin.exists():
        return None
    own = PinnedLoad(view.own.task_id, msgspec.json.encode(record), record)
    if record.num_new and pin.place(_sealed(own.task_id, own.data)):
        return own.reported(source), record
    found = pin.read(
        f"The files that transaction {view.handle.transaction_id} loads",
        lambda found: (found.record.consumer, found.record.number) == (record.consumer, record.number),
    )
    if found.task_id != view.own.task_id:  # of one that is mapped, the values may have moved
        raise view.handle.error(
            StageConflictException,
            f"The task {found.task_id!r} loads files as {record.consumer!r} in transaction {view.handle.transaction_id} on "
            f"table {view.log.uri}, so {view.own.task_id!r} cannot: their rows would be in the table twice. Nothing was staged. "
            "Give each a consumer of its own, and files of its own.",
        )
    return found.reported(source), found.record


def load_path(transaction_id: str, consumer: str) -> str:
    """Return the path of the file that pins what a consumer loads."""
    return pin_path(transaction_id, "copy-into", consumer)


def _pin(view: TransactionView, consumer: str) -> Pin[PinnedLoad]:
    return Pin(view.log, view.handle, load_path(view.handle.transaction_id, consumer), _decoded)


def _sealed(task_id: str, data: bytes) -> bytes:
    content = task_id.encode() + b"\n" + data
    return hashlib.sha256(content).hexdigest().encode() + b"\n" + content


def _decoded(content: bytes) -> PinnedLoad | None:
    _, _, sealed = content.partition(b"\n")
    task_id, _, data = sealed.partition(b"\n")
    try:
        if _sealed(task_id.decode(), data) != content:
            return None
        return PinnedLoad(task_id.decode(), data, msgspec.json.decode(data, type=LoadRecord))
    except (UnicodeDecodeError, msgspec.MsgspecError):
        return None


# -- the commit ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReportedLoads:
    """The loads that a commit records.

    :ivar pinned: each as it was pinned.
    :ivar unshared: places of the files that no other consumer may have loaded.
    """

    log: DeltaLog
    loads: tuple[FileLoad, ...] = ()
    pinned: tuple[PinnedLoad, ...] = ()
    unshared: frozenset[str] = frozenset()

    def keep(self) -> None:
        """Put the records of the loads into the log's directory, for good: the commit that follows names them."""
        for load in self.pinned:
            keep_record(self.log, load.record.consumer, load.record.number, load.data)

    def loaded_by_another(self, versions: Mapping[str, int]) -> str | None:
        """Return why another commit conflicts: another consumer has loaded one of the files in it.

        :param versions: that it sets, by application id.
        """
        own = {load.consumer for load in self.loads}
        for consumer, number, digits in loads_in(versions) if self.unshared else ():
            if consumer in own:
                continue
            record, _ = read_head(self.log, consumer, number, digits)
            if twice := sorted(self.unshared.intersection(Places().of(file.path) for file in record.new)):
                return f"Files that this transaction loads, such as {twice[0]}, have been loaded by {consumer!r}"
        return None


def reported_loads(view: TransactionView) -> ReportedLoads:
    """Return the loads of the stages.

    :raises StageConflictException: if two stages have loaded files as one consumer, or the same file: its rows would be there
        twice.
    :raises StagingException: if a load is not the pinned one.
    """
    loads: dict[str, FileLoad] = {}
    found: list[PinnedLoad] = []
    files: set[str] = set()
    unshared: set[str] = set()
    places = Places()
    for load in [load for stage in view.stages for load in stage.write.loads]:
        if load.consumer in loads:
            raise view.handle.error(
                StageConflictException,
                f"Two stages of transaction {view.handle.transaction_id} on table {view.log.uri} have loaded files as "
                f"{load.consumer!r}: their rows would be in the table twice. Nothing is committed. Give each a consumer of "
                "its own, and files of its own.",
            )
        loads[load.consumer] = load
        found.append(_pinned_as(view, load))
        record = found[-1].record
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
    return ReportedLoads(view.log, tuple(loads.values()), tuple(found), frozenset(unshared))


def _pinned_as(view: TransactionView, load: FileLoad) -> PinnedLoad:
    """Return a load as it was pinned."""
    says = f"loaded {load.num_files} files of {load.source} as load {load.number} of {load.consumer!r}"
    return _pin(view, load.consumer).confirmed(says, lambda found: found.reported(load.source) == load)
