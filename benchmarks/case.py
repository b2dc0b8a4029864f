"""One measurement in one fresh process: prints JSON with seconds and the process's peak memory. Called by run.py.

python benchmarks/case.py ENGINE CASE TABLE [ARGUMENT]
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

ENGINE, CASE, TABLE = sys.argv[1:4]
# Of a whole process run.py takes the time from outside: then nothing is loaded before its time.
WHOLE, CASE = CASE.startswith("whole-"), CASE.removeprefix("whole-")
ARGUMENT = sys.argv[4] if len(sys.argv) > 4 else None
DATE = "2024-01-05"
OPTIONS: dict[str, str] | None = json.loads(os.environ.get("STORAGE_OPTIONS", "null"))


def peak_mb() -> float:
    """Peak resident memory: VmHWM, because ru_maxrss survives exec."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0.0


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    value = work()
    return time.perf_counter() - start, value


def new_path() -> str:
    return f"date={DATE}/country=AT/part-00000-{uuid.uuid4()}.c000.snappy.parquet"


class Ours:
    def __init__(self) -> None:
        from airflow_delta.log import AddFile, DeltaLog
        from airflow_delta.transaction import Operation, OptimisticTransaction

        OptimisticTransaction.get_active()
        if not WHOLE:
            self.load_modules()
        self.DeltaLog, self.AddFile, self.Operation = DeltaLog, AddFile, Operation

    def load_modules(self) -> None:
        """Imports are not counted, but those of a few milliseconds each that a case comes to on its way."""
        reads_checkpoint = CASE in ("open", "start", "load") and "foreign" in TABLE
        if reads_checkpoint or CASE in ("count", "partition", "statistics", "app_id", "checkpoint", "winners_reading"):
            import airflow_delta.log.checkpoint.reader
            import airflow_delta.log.replay.live_files
        if CASE in ("partition", "statistics", "winners_reading"):
            import airflow_delta.log.expressions.predicate
            import airflow_delta.log.replay.filter
        if CASE == "checkpoint":
            import airflow_delta.log.checkpoint_write.writer  # noqa: F401

    def open(self) -> Any:
        log = self.DeltaLog.for_table(TABLE, OPTIONS)
        snapshot = log.snapshot
        return log, (snapshot.version, snapshot.protocol, snapshot.metadata)[0]

    def start(self) -> int:
        log, version = self.open()
        log.snapshot.transaction_version("some-application")
        return version

    def load(self) -> int:
        snapshot = self.DeltaLog.for_table(TABLE, OPTIONS).snapshot
        return (snapshot.num_files, snapshot.size_in_bytes)[0]

    def count(self) -> int:
        return self.DeltaLog.for_table(TABLE, OPTIONS).snapshot.files(columns=["path", "size"]).num_rows

    def partition(self) -> int:
        return self.DeltaLog.for_table(TABLE, OPTIONS).snapshot.files(f"date = '{DATE}'", columns=["path", "size"]).num_rows

    def statistics(self) -> int:
        return (
            self.DeltaLog.for_table(TABLE, OPTIONS)
            .snapshot.files("id >= 100000 AND id < 199999", columns=["path", "size"])
            .num_rows
        )

    def app_id(self) -> int | None:
        return self.DeltaLog.for_table(TABLE, OPTIONS).snapshot.transaction_version("app-7")

    def handle(self) -> Any:
        return self.DeltaLog.for_table(TABLE, OPTIONS)

    def commit(self, log: Any) -> None:
        add = self.AddFile(
            path=new_path(),
            partition_values={"date": DATE, "country": "AT"},
            size=1,
            modification_time=1,
            data_change=True,
            stats='{"numRecords":1}',
        )
        log.start_transaction().commit([add], self.Operation.write("Append"))

    def commit_from(self, log: Any, transaction: Any) -> None:
        add = self.AddFile(
            path=new_path(), partition_values={"date": DATE, "country": "AT"}, size=1, modification_time=1, data_change=True
        )
        transaction.commit([add], self.Operation.write("Append"))

    def begin(self, log: Any, *, reads: bool) -> Any:
        transaction = log.start_transaction()
        if reads:
            transaction.filter_files("date = '2023-01-01'")
        return transaction

    def checkpoint(self, log: Any) -> None:
        log.checkpoint()

    def preview(self, only: str) -> float:
        """Stage one file of 1,000 rows, and write what is staged as a preview."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        import airflow_delta.table.preview.preview as previews
        from airflow_delta.contract.staging_directory import new_attempt
        from airflow_delta.table.stage.stage_view import open_stage
        from airflow_delta.table.stage.write.collect import collect_files
        from airflow_delta.table.start.begin import begin

        handle = begin(self.handle(), transaction_key="preview")
        directory = Path(handle.staging_path.removeprefix("file://")) / "rows" / f"date={DATE}" / "country=AT"
        directory.mkdir(parents=True)
        columns = {name: pa.array(range(1000), pa.int64()) for name in ["id", *(f"c{number}" for number in range(9))]}
        pq.write_table(pa.table(columns), directory / "part-0.parquet")
        staged = collect_files(open_stage(self.handle(), handle, task_id="rows", attempt=new_attempt()), path="rows")
        log = self.handle()
        try:
            return timed(lambda: previews.write_preview(log, handle, [staged], only=only))[0]
        finally:
            log.store.delete_tree(f"staged/{handle.transaction_id}")


class DeltaRs:
    def __init__(self) -> None:
        import deltalake
        from deltalake.transaction import AddAction

        self.deltalake, self.AddAction = deltalake, AddAction

    def open(self) -> Any:
        table = self.deltalake.DeltaTable(TABLE, storage_options=OPTIONS)
        return table, table.version()

    def start(self) -> int:
        table, version = self.open()
        table.transaction_version("some-application")
        return version

    def load(self) -> int:
        return self.deltalake.DeltaTable(TABLE, storage_options=OPTIONS).get_add_actions().num_rows

    def count(self) -> int:
        return len(self.deltalake.DeltaTable(TABLE, storage_options=OPTIONS).file_uris())

    def partition(self) -> int:
        return len(self.deltalake.DeltaTable(TABLE, storage_options=OPTIONS).file_uris([("date", "=", DATE)]))

    def statistics(self) -> int:
        import pyarrow as pa
        import pyarrow.compute as pc

        adds = pa.table(self.deltalake.DeltaTable(TABLE, storage_options=OPTIONS).get_add_actions(flatten=True))
        return adds.filter((pc.field("max.id") >= 100000) & (pc.field("min.id") < 199999)).num_rows

    def app_id(self) -> int | None:
        return self.deltalake.DeltaTable(TABLE, storage_options=OPTIONS).transaction_version("app-7")

    def handle(self) -> Any:
        return self.deltalake.DeltaTable(TABLE, storage_options=OPTIONS)

    def _commit(self, table: Any) -> None:
        table.create_write_transaction(
            [self.AddAction(new_path(), 1, {"date": DATE, "country": "AT"}, 1, True, '{"numRecords":1}')],
            mode="append",
            schema=table.schema(),
            partition_by=["date", "country"],
        )

    def commit(self, table: Any) -> None:
        self._commit(table)
        table.update_incremental()

    def begin(self, table: Any, *, reads: bool) -> Any:
        return table

    def commit_from(self, table: Any, transaction: Any) -> None:
        self._commit(table)

    def checkpoint(self, table: Any) -> None:
        table.create_checkpoint()

    def preview(self, only: str) -> float:  # it has none: the table's files are read and written as well
        return timed(lambda: self.checkpoint(self.handle()))[0]


def wait_for_start(at: float) -> None:
    time.sleep(max(0.0, at - time.time()))


def main() -> dict[str, Any]:
    engine: Any = Ours() if ENGINE == "ours" else DeltaRs()
    if CASE in ("open", "start", "load", "count", "partition", "statistics", "app_id"):
        seconds, value = timed(getattr(engine, CASE))
        if CASE == "open":
            value = value[1]
        return {"seconds": [seconds], "value": value}
    if CASE == "commit":  # warm: the handle is open and stays up to date
        handle = engine.handle()
        engine.commit(handle)
        return {"seconds": [timed(lambda: engine.commit(handle))[0] for _ in range(int(ARGUMENT or 50))]}
    if CASE == "commit_cold":  # a handle opened anew before the commit
        return {"seconds": [timed(lambda: engine.commit(engine.handle()))[0]]}
    if CASE == "append":  # the whole process is timed by run.py
        engine.commit(engine.handle())
        return {"seconds": [0.0]}
    if CASE in ("winners", "winners_reading"):
        handle = engine.handle()
        transaction = engine.begin(handle, reads=CASE == "winners_reading")
        print("ready", flush=True)
        sys.stdin.readline()
        return {"seconds": [timed(lambda: engine.commit_from(handle, transaction))[0]]}
    if CASE == "contention":  # COUNT:START
        count, at = (ARGUMENT or "").split(":")
        handle = engine.handle()
        wait_for_start(float(at))
        seconds, failed = [], 0
        begin, cpu = time.time(), time.process_time()
        for _ in range(int(count)):
            try:
                seconds.append(timed(lambda: engine.commit(handle))[0])
            except Exception:
                failed += 1
                handle = engine.handle()
        return {"seconds": seconds, "failed": failed, "begin": begin, "end": time.time(), "cpu": time.process_time() - cpu}
    if CASE == "checkpoint":  # opening included: ours reads the table only when it writes it down
        return {"seconds": [timed(lambda: engine.checkpoint(engine.handle()))[0]]}
    if CASE == "preview":
        return {"seconds": [engine.preview(ARGUMENT or "table")]}
    raise SystemExit(f"unknown case {CASE}")


if __name__ == "__main__":
    result = main()
    print(json.dumps({**result, "peak_mb": round(peak_mb(), 1)}), flush=True)
