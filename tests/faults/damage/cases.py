"""What is damaged, and who judges: logs by what a reader finds in them, staged files and markers by what a commit makes of them.

A case is built in a folder of its own; ``judge`` looks at the folder after a damage. It returns how the damage went, raises the
typed error of the provider, or an ``AssertionError`` where rows are wrong.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.contract.request import StageReport
from airflow_delta.contract.sealed import sealed
from airflow_delta.contract.staging_directory import REPORT_DIRECTORY
from airflow_delta.exceptions import CommitStateUnknownException, DeltaError
from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.actions import SetTransaction
from airflow_delta.log.actions.deletion_vectors import read_deletion_vectors, write_deletion_vectors
from airflow_delta.log.checkpoint_write.writer import write_checkpoint
from airflow_delta.table.stage import stage_view
from airflow_delta.table.stage.write.collect import collect_stage
from airflow_delta.table.stage.write.job_runs import put_request, read_report, read_request
from airflow_delta.table.stage.write.plan import plan_stage
from airflow_delta.transaction import CommitPolicy, Operation
from faults.damage.logs import LATEST, LOGS, OLDER, compact, make, state
from support import tables
from support.table import Table

EARLIER = (OLDER, 3)
"""Versions that are read beside the latest: that of the checkpoint, and one before it."""
RIGHT, TOLD, OLDER_VERSION, UNTOLD = "right", "told by the checksum", "an older version", "in no checksum"


class Case(Protocol):
    """A folder, the files in it that are damaged, and the judge."""

    targets: list[Path]

    def judge(self) -> str: ...


def below(folder: Path, *patterns: str) -> list[Path]:
    return sorted({path.relative_to(folder) for pattern in patterns for path in folder.rglob(pattern) if path.is_file()})


class DamagedLog:
    """A log, read at the latest version and at earlier ones."""

    def __init__(self, folder: Path, *, build: Callable[[Path], None]) -> None:
        self.table = folder / "table"
        build(self.table)
        self.expected = {version: state(self.table, version, checked=True) for version in (None, LATEST - 1, *EARLIER)}
        self.targets = below(folder, "_delta_log/**/*", "*.bin")

    def judge(self) -> str:
        return max((self._judge(version) for version in (None, *EARLIER)), key=lambda outcome: outcome != RIGHT)

    def _judge(self, version: int | None) -> str:
        careless: Any = None
        try:
            careless = state(self.table, version, checked=False)
        except DeltaError:
            pass
        else:
            if careless == self.expected[version]:
                return RIGHT
        try:
            found = state(self.table, version, checked=True)
        except DeltaError:
            if careless is None:
                raise
            return TOLD
        if found == self.expected[version]:
            return RIGHT
        # Nothing tells that a version was there whose commit is gone.
        newest = self.table / "_delta_log" / f"{LATEST:020d}.json"
        if version is None and not newest.exists() and found == self.expected[LATEST - 1]:
            return OLDER_VERSION
        wrong = {key: (value, found[key]) for key, value in self.expected[version].items() if found[key] != value}
        raise AssertionError(f"version {version}: {wrong}")


class LargeLog:
    """A log whose files have about a megabyte each, for what a damaged one costs."""

    def __init__(self, folder: Path) -> None:
        self.table = folder / "table"
        log = make(self.table, files=2)
        chance = random.Random(1)
        for number in range(2):
            stats = [f'{{"numRecords":1,"tag":"{chance.randbytes(90).hex()}"}}' for _ in range(2_500)]
            adds = [tables.add(f"{number}/{chance.randbytes(16).hex()}", part="x", stats=text) for text in stats]
            log.start_transaction().commit(adds, Operation.write("Append", ["part"]))
            if number == 0:
                write_checkpoint(log.update())
        keys = [SetTransaction(app_id=f"{chance.randbytes(40).hex()}", version=1) for _ in range(6_000)]
        log.start_transaction().commit(keys, Operation.write("Append", ["part"]))
        compact(log, LATEST + 2, LATEST + 3)
        self.vectors = write_deletion_vectors(log.store, "", [BitMap64(chance.sample(range(1 << 26), 400_000))])
        self.targets = [path for path in below(folder, "_delta_log/*", "*.bin") if (folder / path).stat().st_size > 300_000]
        self.expected = self._read(checked=True)

    def _read(self, *, checked: bool) -> tuple[Any, ...]:
        log = DeltaLog.for_table(str(self.table))
        if checked:
            log.snapshot.validate_checksum()
        files = log.snapshot.files(columns=["path", "size", "stats"]).sort_by("path")
        rows = [len(bitmap) for bitmap in read_deletion_vectors(log.store, self.vectors)]
        return log.snapshot.version, len(log.snapshot.transactions), files, rows

    def judge(self) -> str:
        found = self._read(checked=False)
        if found == self.expected:
            return RIGHT
        if found[0] < self.expected[0]:
            return OLDER_VERSION
        # Checksums list few files and few keys. Of more files they know number and bytes.
        version, keys, files, rows = self._read(checked=True)
        sums = [(len(table), pc.sum(table["size"])) for table in (files, self.expected[2])]
        assert (version, sums[0], rows) == (self.expected[0], sums[1], self.expected[3]), "other files"
        return RIGHT if (keys, files) == self.expected[1:3] else UNTOLD


def rows_of(table: Path) -> list[tuple[Any, ...]]:
    """Return the files of a table with all that the rows depend on; every one must be there."""
    snapshot = DeltaLog.for_table(str(table)).snapshot
    adds = snapshot.add_files()
    missing = [add.path for add in adds if not (table / add.path).is_file() or (table / add.path).stat().st_size != add.size]
    assert not missing, f"live files are gone: {missing}"
    return sorted((add.path, sorted(add.partition_values.items()), add.size, add.stats) for add in adds)


def write_rows(directory: Path, *ids: int) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), directory / "part-0.parquet")
    return directory / "part-0.parquet"


def started(folder: Path) -> tuple[Table, TransactionHandle]:
    """Return a table of one commit, and the transaction that wrote it."""
    table = Table(folder / "table")
    handle = table.begin(partition_by=["p"])
    table.publish(handle, staged(table, handle, 1))
    return table, handle


def staged(table: Table, handle: TransactionHandle, *ids: int, name: str = "rows") -> StagedWrite:
    write_rows(Path(handle.staging_path) / name / "p=a", *ids)
    return table.stage_files(handle, task_id=name, path=name)


class DamagedManifests:
    """Staged writes whose actions travel in manifests: published as they were, or refused."""

    def __init__(self, folder: Path) -> None:
        self.table, _ = started(folder)
        limit, stage_view.INLINE_LIMIT = stage_view.INLINE_LIMIT, 10
        try:
            self.handle = self.table.begin()
            self.staged = [staged(self.table, self.handle, number, name=f"rows{number}") for number in (2, 3)]
        finally:
            stage_view.INLINE_LIMIT = limit
        self.targets = below(folder, "_manifest.json")
        self.before = rows_of(self.table.path)
        self.paths = {f"staged/{self.handle.transaction_id}/rows{number}/p=a/part-0.parquet" for number in (2, 3)}

    def judge(self) -> str:
        try:
            self.table.publish(self.handle, *self.staged)
        except DeltaError:
            assert rows_of(self.table.path) == self.before, "a refused commit has changed the table"
            raise
        found = {row[0] for row in rows_of(self.table.path)} - {row[0] for row in self.before}
        assert found == self.paths, found
        return RIGHT


class DamagedReports:
    """What a job on a cluster is told and what it leaves: collected and published as it was, or refused."""

    def __init__(self, folder: Path) -> None:
        self.table, _ = started(folder)
        self.handle = self.table.begin()
        view = self._view()
        request = plan_stage(view, mode="overwrite", replace_where="p = 'b'")
        put_request(view.log, request)
        self.directory = request.directory
        self.request = request
        attempt = self.table.path / request.directory
        file = write_rows(attempt / "run" / "p=b", 7, 8)
        report = StageReport(
            transaction_id=request.transaction_id,
            stage=request.stage,
            attempt=request.attempt,
            directories=("run",),
            path=request.path,
            written={"run": {"numFiles": 1, "numRows": 2, "numBytes": file.stat().st_size}},
            schema_string=str(self.handle.schema_string),
            partition_columns=("p",),
        )
        (attempt / REPORT_DIRECTORY).mkdir()
        (attempt / REPORT_DIRECTORY / "part-00000.txt").write_text(sealed(report) + "\n")
        self.targets = below(folder, "request.json", "part-00000.txt")
        self.before = rows_of(self.table.path)
        row = (f"{request.directory}/run/p=b/part-0.parquet", [("p", "b")], file.stat().st_size)
        self.expected = row

    def _view(self) -> Any:
        from airflow_delta.table.stage.stage_view import open_stage

        return open_stage(self.table.log(), self.handle, task_id="rows", attempt="1-12345678")

    def judge(self) -> str:
        view = self._view()
        try:
            request = read_request(view.log, self.directory)
            write = collect_stage(view, request, read_report(view.log, request))
            assert request == self.request, "the job is told something else"
            self.table.publish(self.handle, StagedWrite.from_dict(json.loads(json.dumps(write.to_dict()))))
        except DeltaError:
            assert rows_of(self.table.path) == self.before, "a refused commit has changed the table"
            raise
        new = [row for row in rows_of(self.table.path) if row not in self.before]
        assert [row[:3] for row in new] == [self.expected], new
        stats = json.loads(new[0][3])
        assert (stats["numRecords"], stats["minValues"], stats["maxValues"]) == (2, {"id": 7}, {"id": 8}), stats
        return RIGHT


class DamagedMarkers:
    """Markers of transactions in every state; afterwards each is aborted, committed again and vacuumed."""

    def __init__(self, folder: Path) -> None:
        self.table, self.committed = started(folder)
        self.forgotten = self.table.begin()
        self.table.publish(self.forgotten, staged(self.table, self.forgotten, 2))
        self._forget()
        self.aborted, self.unknown, self.failed = (self.table.begin() for _ in range(3))
        self.writes = {}
        for number, handle in enumerate((self.aborted, self.unknown, self.failed), 3):
            self.writes[handle.transaction_id] = (handle, staged(self.table, handle, number))
        self._lose_the_answer(self.unknown)
        self._lose_the_answer(self.aborted)
        assert self.table.abort(self.aborted).outcome == "marked"
        self._fail(self.failed)
        self.targets = below(folder, "_commit-*", "_aborted")
        assert len(self.targets) == 7, self.targets  # one of each attempt, two of the abort
        self.before = rows_of(self.table.path)

    def _forget(self) -> None:
        """Have log cleanup remove the commits so far, which a checkpoint holds."""
        log = self.table.log()
        log.checkpoint()
        for name in (self.table.path / "_delta_log").iterdir():
            if name.suffix in (".json", ".crc") and name.stem.isdigit():
                name.unlink()

    def _lose_the_answer(self, handle: TransactionHandle) -> None:
        """Leave an attempt of the commit that does not know how it ended."""
        _, write = self.writes[handle.transaction_id]

        def no_answer(*_: Any) -> bool:
            raise CommitStateUnknownException("no answer", table=self.table.uri)

        self._attempt(handle, write, CommitStateUnknownException, CommitPolicy(cancelled=no_answer))

    def _fail(self, handle: TransactionHandle) -> None:
        _, write = self.writes[handle.transaction_id]
        self._attempt(handle, write, DeltaError, CommitPolicy(cancelled=lambda: True))

    def _attempt(self, handle: TransactionHandle, write: StagedWrite, error: type[DeltaError], policy: CommitPolicy) -> None:
        try:
            self.table.publish(handle, write, policy=policy)
        except error:
            return
        raise AssertionError("the attempt has committed")

    def judge(self) -> str:
        from airflow_delta.table.operations.vacuum.run import vacuum

        for handle in (self.committed, self.forgotten):
            assert self.table.abort(handle).outcome == "committed"
            self._intact(self.before)
            result = self.table.publish(handle, replace_ids(handle))
            assert result.committed_before
        live = self.before
        for handle, write in self.writes.values():
            outcome = self.table.abort(handle).outcome
            assert outcome != "committed", handle
            self._intact(live)
            try:
                self.table.publish(handle, write)
            except DeltaError:
                self._intact(live)
                continue
            raise AssertionError(f"{handle.transaction_id} was committed after its abort ({outcome})")
        vacuum(self.table.log())
        self._intact(live)
        return RIGHT

    def _intact(self, expected: list[tuple[Any, ...]]) -> None:
        found = rows_of(self.table.path)
        assert found == expected, (found, expected)


def replace_ids(handle: TransactionHandle) -> StagedWrite:
    """Return a report of no files: a transaction that is committed is recognised before its reports are looked at."""
    return StagedWrite(
        transaction_id=handle.transaction_id, stage="rows", task_id="rows", attempt="1-0", mode="append", schema_string="{}"
    )


CASES: dict[str, Callable[[Path], Case]] = {
    **{name: functools.partial(DamagedLog, build=build) for name, build in LOGS.items()},
    "large files": LargeLog,
    "manifests": DamagedManifests,
    "requests and reports": DamagedReports,
    "markers": DamagedMarkers,
}
