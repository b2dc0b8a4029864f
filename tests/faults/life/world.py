"""A table, runs of the Dags on it, and the model of both: what the rules of the machine do, one step at a time."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

from deltalake import DeltaTable

from airflow_delta.log import AddFile, DeltaLog
from airflow_delta.log.checkpoint.file_columns import to_add_files
from airflow_delta.log.cleanup import clean_up_expired_logs
from airflow_delta.transaction import Operation
from faults.life.airflow_tasks import Key, Outcome, Run
from faults.life.clock import Clock
from faults.life.dags import CONNECTION, PARTS, connect, dags, report_of, write_rows
from faults.life.model import Event, Execution, Model, Report, Rows, Wrong, expect
from faults.life.operations import operated, restored, without

FAST = "/dev/shm"


class World:
    """One sequence's world, made in a directory of its own."""

    def __init__(self) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="life-", dir=FAST if os.access(FAST, os.W_OK) else None))
        self.table = self.base / "t"
        connect(self.base)
        self.clock = Clock(self.table)
        self.began = self.clock.now
        self.model = Model()
        self.runs: list[Run] = []
        self.reports: dict[tuple[Run, Key], Report] = {}
        self.targets: dict[Run, int] = {}
        self._ids = 0

    def close(self) -> None:
        self.clock.stop()
        os.environ.pop(f"AIRFLOW_CONN_{CONNECTION.upper()}", None)
        shutil.rmtree(self.base, ignore_errors=True)

    def log(self) -> DeltaLog:
        return DeltaLog.for_table(str(self.table))

    def new_rows(self, part: str, count: int = 1) -> Rows:
        self._ids += count
        return dict.fromkeys(range(self._ids - count, self._ids), part)

    # -- after each step --------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Compare the table with the model, as another engine reads it."""
        self.clock.date_new_files()
        names = sorted(path.name for path in (self.table / "_delta_log").glob("0*.json")) if self.table.exists() else []
        versions = [int(name.removesuffix(".json")) for name in names if name.removesuffix(".json").isdecimal()]
        self.model.settle(versions, min(versions, default=0), self.clock.now)
        found: list[tuple[int, str]] = []
        if self.model.version >= 0:
            try:
                read = DeltaTable(str(self.table)).to_pyarrow_table(columns=["id", "p"])
            except Exception as error:
                raise Wrong(f"the table cannot be read: {error}") from error
            found = sorted(zip(*(read.column(name).to_pylist() for name in ("id", "p")), strict=True))
        wanted = sorted(self.model.rows.items())
        if found != wanted:
            lost, more = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
            raise Wrong(f"lost: {lost}, not to be there: {more}, doubled: {len(found) - len(set(found))} rows")

    # -- runs -------------------------------------------------------------------------------------------------------------------

    def begin_run(self, dag_id: str, values: list[int], *, skips: bool, slot: int, target: int) -> Run:
        run = Run(dags()[dag_id], f"run{len(self.runs)}-{slot}", self.clock, values, skips=skips, interval_end=self.began)
        self.runs.append(run)
        self.targets[run] = target % (self.model.version + 1) if self.model.version >= 0 else 0
        return run

    def step(self, run: Run, key: Key, fate: str = "ok") -> Outcome | None:
        """Run a task instance that is ready, and judge it."""
        task = key[0].rpartition(".")[2]
        if task == "values":
            run.succeed(key, list(run.values))
        elif task == "watcher":  # the scheduler itself
            run.succeed(key)
        elif task == "choose":
            run.succeed(key)
            run.skipped = run.skips
        else:
            judged: Callable[..., Outcome] = {
                "start": self._start,
                "commit": self._commit,
                "abort": self._abort,
                "restore": self._operate,
                "delete": self._operate,
            }.get(task, self._stage)
            return judged(run, key, fate)
        return None

    def _of(self, run: Run, key: Key) -> Key:
        """Return the start task that an instance belongs to."""
        start = f"{key[0].rpartition('.')[0]}.start"
        return start, key[1] if run.is_mapped(start) else -1

    def _execution(self, run: Run, key: Key) -> tuple[Any, Execution | None]:
        handle = run.xcoms.get(self._of(run, key))
        return handle, None if handle is None else self.model.executions[handle["transactionId"]]

    def _start(self, run: Run, key: Key, fate: str) -> Outcome:
        outcome = run.execute(key, {}, fate)
        policy = run.dag.dag_id.rpartition("_")[2]
        name, since = f"{run!r}", run.created
        if run.dag.dag_id.startswith("slot"):
            name, since = f"slot-{run.run_id[-1]}", self.began
        elif key[1] >= 0:
            values = run.xcoms["values", -1]
            name += f"/{values[key[1]]}/{values[: key[1]].count(values[key[1]])}"
        if outcome.ran and not (fate == "lost" and outcome.refused()):
            wide = run.dag.dag_id.startswith("wide")
            self.model.started(outcome, key=name, policy=policy, since=since, now=self.clock.now, wide=wide)
        return outcome

    def _stage(self, run: Run, key: Key, fate: str) -> Outcome:
        handle, execution = self._execution(run, key)
        assert execution is not None
        rows, part = self.new_rows(PARTS[self._ids % 2], 2), None
        path = f"{key[0]}-{key[1]}/try-{run.instances[key].try_number + 1}"
        arguments: dict[str, Any] = {"transaction": handle, "path": path}

        def job(operator: Any, _ti: Any) -> None:
            if part is None:
                column = "extra" if execution.wide else None
                write_rows(Path(handle["stagingPath"], path), rows, column=column)
            else:
                place = self.base / "elsewhere" if fate == "killed" else self.table
                operator.job = lambda request: report_of(request, rows, place)
            self.clock.date_new_files()

        if key[0].endswith("slice"):
            part = "1"
            rows = dict.fromkeys(rows, part)
            del arguments["path"]
        outcome = run.execute(key, arguments, "ok" if fate == "killed" else fate, job)
        if outcome.ran and fate == "killed" and part is not None and not execution.found:
            expect(outcome.refused(), "rows that the worker cannot find are staged", outcome)
        elif outcome.ran:
            self.model.staged(outcome, execution, self.clock.now)
        if run.instances[key].state == "success":
            self.reports[run, key] = Report(execution.id, rows, part)
        return outcome

    def _commit(self, run: Run, key: Key, fate: str) -> Outcome:
        handle, execution = self._execution(run, key)
        assert execution is not None
        stages = [name for name in run.dag.task_ids if name.rpartition(".")[2] in ("part", "extra", "slice", "one", "wide")]
        staged, reports = [], []
        for name in stages:
            mapped = key[1] >= 0
            staged.append(run.xcoms.get((name, key[1])) if mapped else run.results(name))
            for at, instance in run.of_task(name):
                if instance.state == "success" and (not mapped or at[1] == key[1]):
                    reports.append(self.reports[run, at])
        outcome = run.execute(key, {"transaction": handle, "staged": staged}, fate)
        if outcome.ran and type(outcome.error).__name__ != "Killed":
            self.model.committed(outcome, execution, reports, self.clock.now)
        return outcome

    def _abort(self, run: Run, key: Key, fate: str) -> Outcome:
        handle, execution = self._execution(run, key)
        outcome = run.execute(key, {"transaction": handle}, fate)
        if outcome.ran and execution is not None:
            self.model.given_up(outcome, execution, self.clock.now)
        return outcome

    def _operate(self, run: Run, key: Key, fate: str) -> Outcome:
        target, restores = self.targets[run], key[0] == "restore"
        outcome = run.execute(key, {"version": target} if restores else {}, fate)
        if not outcome.ran or type(outcome.error).__name__ == "Killed":
            return outcome
        rows = restored(self.model, target) if restores else without(self.model, "1")
        assert outcome.instance is not None
        operated(
            self.model,
            outcome,
            key=f"{run!r}/{key[0]}",
            policy=run.dag.dag_id.rpartition("_")[2],
            chain=(run.run_id, key, outcome.instance.max_tries),
            since=run.created,
            now=self.clock.now,
            rows=rows,
            target=target if restores else -1,
        )
        return outcome

    # -- others -----------------------------------------------------------------------------------------------------------------

    def other_appends(self, part: str) -> None:
        rows = self.new_rows(part)
        write_rows(self.table / f"other-{self._ids}", rows)
        path = f"other-{self._ids}/p={part}/part-0.parquet"
        size = (self.table / path).stat().st_size
        add = AddFile(path=path, partition_values={"p": part}, size=size, modification_time=1, data_change=True)
        version = self.log().start_transaction().commit([add], Operation.write("Append"))
        self.model.change(Event(version, added=frozenset(part)), self.model.rows | rows)

    def other_deletes(self, part: str) -> None:
        txn = self.log().start_transaction()
        removes = [file.remove(int(self.clock.now * 1000)) for file in to_add_files(txn.filter_files(f"p = '{part}'"))]
        version = txn.commit(removes, Operation.delete([f"p = '{part}'"]))
        removed = frozenset(part if removes else "")
        self.model.change(Event(version, removed=removed), without(self.model, part))

    def vacuum(self, hours: float | None, meanwhile: Callable[[], object] | None) -> None:
        """Delete what VACUUM may; something else may happen between its decision and the deletion."""
        from airflow_delta.table.operations.vacuum import run as run_vacuum

        deletes = run_vacuum.delete
        block: AbstractContextManager[Any] = nullcontext()
        if meanwhile is not None:

            def later(*arguments: Any) -> Any:
                self.settle()  # VACUUM has noted its start
                meanwhile()
                self.settle()
                return deletes(*arguments)

            block = patch.object(run_vacuum, "delete", later)
        self.model.vacuumed(self.clock.now)
        with block:
            run_vacuum.vacuum(self.log(), retention_hours=hours, retention_check=False)

    def clean_up(self) -> None:
        """Write a checkpoint and delete what has expired of the log."""
        log = self.log()
        log.checkpoint()
        self.clock.date_new_files()
        clean_up_expired_logs(log.update())

    def put_other_files(self) -> None:
        self.table.mkdir()
        (self.table / "raw.json").write_text("{}")
        self.model.is_foreign = True
