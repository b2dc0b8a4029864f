"""A table with a transaction that several attempts work on at a time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.contract.payloads import TransactionHandle
from airflow_delta.contract.staging_directory import new_attempt
from airflow_delta.log import DeltaLog
from airflow_delta.log.storage.base import LogStore
from airflow_delta.log.storage.local import LocalStore
from airflow_delta.table.abort import abort
from airflow_delta.table.commit.publish import publish
from airflow_delta.table.operations.vacuum.run import HOUR, vacuum
from airflow_delta.table.stage.stage_view import open_stage
from airflow_delta.table.stage.write.collect import collect_files
from airflow_delta.table.start.begin import begin
from faults.crash.attempts import Attempt
from faults.crash.cases import once
from faults.shared.layers import Remote
from support import readers
from support.actions import column, schema
from support.table import Table

SCHEMA = schema(column("id", "long"))
DAY = 24 * HOUR
COMMITTED, GONE = [0, 1, 2], [0, 1]
"""The ids of a table with the transaction, and without."""


class ContendedTable(Table):
    """A table of the ids 0 and 1.

    :ivar client: makes a client of its store for each attempt.
    """

    def __init__(self, path: Path, client: Callable[[LogStore], LogStore] = Remote) -> None:
        super().__init__(path)
        self.client = client
        self._numbers = itertools.count()
        for _ in range(2):
            self.publish(*self.staged(self.log()))

    def attempt(self, task: Callable[[DeltaLog], Any], *, stop_at: int | None = None) -> Attempt:
        return Attempt(self.client(LocalStore(self.uri)), task, stop_at=stop_at)

    def staged(self, log: DeltaLog, handle: TransactionHandle | None = None, **options: Any) -> tuple[TransactionHandle, Any]:
        """Begin a transaction, and stage one file with another id."""
        number = next(self._numbers)
        handle = handle or begin(log, transaction_key=f"key-{number}", schema=SCHEMA)
        return handle, self.stage_id(log, handle, number, **options)

    def stage_id(self, log: DeltaLog, handle: TransactionHandle, number: int, **options: Any) -> Any:
        attempt = new_attempt()
        place = self.path / f"staged/{handle.transaction_id}/job/{attempt}"
        place.mkdir(parents=True)
        pq.write_table(pa.table({"id": pa.array([number], pa.int64())}), place / "part-0.parquet")
        return collect_files(open_stage(log, handle, task_id="stage", attempt=attempt), path=f"job/{attempt}", **options)

    def ids(self) -> list[int]:
        """Return the ids that all readers see, and check that nothing is in the log twice."""
        once(self.path)
        return sorted(row["id"] for row in readers.rows(self.path))


def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have attempts, which are threads here, be like processes of different machines: they do not wait for each other."""
    monkeypatch.setattr("airflow_delta.transaction.commit.committer.lock_commit_if_enabled", lambda *_: nullcontext())


def commit(handle: TransactionHandle, *staged: Any) -> Callable[[DeltaLog], Any]:
    return lambda log: publish(log, handle, list(staged), attempt=new_attempt())


def give_up(handle: TransactionHandle) -> Callable[[DeltaLog], Any]:
    return lambda log: abort(log, handle)


def clean(days: int = 0) -> Callable[[DeltaLog], Any]:
    """VACUUM, as it is some days from now; a transaction is abandoned after a week."""
    later = int(time.time() * 1000) + days * DAY + HOUR

    return lambda log: vacuum(log, retention_hours=0, retention_check=False, clock=lambda: later)


def slept(seconds: float) -> Any:
    """Have the monotonic clock of the commit's fence run ahead: the attempt was halted for so long."""
    real = time.monotonic
    return mock.patch("airflow_delta.table.state.markers.time.monotonic", side_effect=lambda: real() + seconds)


class Transaction:
    """A transaction whose tasks may run at any time."""

    def __init__(self, path: Path) -> None:
        self.table = ContendedTable(path)
        self.handle, self.staged = self.table.staged(self.table.log())

    def start(self, log: Any) -> Any:
        return begin(log, transaction_key="key-2", schema=SCHEMA)

    def stage(self, log: Any) -> Any:
        return self.table.stage_id(log, self.handle, 2)

    def commit(self, log: Any) -> Any:
        return commit(self.handle, self.staged)(log)

    def abort(self, log: Any) -> Any:
        return give_up(self.handle)(log)

    def vacuum(self, log: Any) -> Any:
        return clean()(log)

    def vacuum_later(self, log: Any) -> Any:
        return clean(days=30)(log)

    def restart(self, log: Any) -> Any:
        """Abort, and have the tasks run again from start on."""
        self.abort(log)
        handle = self.start(log)
        staged = [] if handle.committed is not None else [self.table.stage_id(log, handle, 2)]
        return commit(handle, *staged)(log)

    def commit_and_vacuum(self, log: Any) -> Any:
        self.commit(log)
        return self.vacuum_later(log)

    def abort_and_vacuum(self, log: Any) -> Any:
        self.abort(log)
        return self.vacuum_later(log)
