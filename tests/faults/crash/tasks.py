"""The tasks that are killed, and what stands before them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from airflow_delta.contract.request import StageReport
from airflow_delta.contract.staging_directory import REPORT_DIRECTORY
from airflow_delta.exceptions import DeltaConcurrentModificationException, TransactionAbortedException
from airflow_delta.log import AddFile
from airflow_delta.log.checkpoint.file_columns import to_add_files
from airflow_delta.log.storage.factory import store_for
from airflow_delta.streaming import DeltaBatchSink
from airflow_delta.table.abort import abort
from airflow_delta.table.arrow.rewrite.run import run_in_worker
from airflow_delta.table.arrow.stage_rows import stage_arrow
from airflow_delta.table.changes.new_rows import NewRowsOptions, find_new_rows, read_new_rows
from airflow_delta.table.commit.publish import publish
from airflow_delta.table.operations.convert import convert_to_delta
from airflow_delta.table.operations.vacuum.run import HOUR, vacuum
from airflow_delta.table.positions.files.pattern import SourcePattern
from airflow_delta.table.positions.files.unloaded import CopyIntoOptions, find_source_files
from airflow_delta.table.run import run_transaction
from airflow_delta.table.stage.stage_view import SparkWork, open_stage
from airflow_delta.table.stage.write.collect import collect_files, collect_stage
from airflow_delta.table.stage.write.job_runs import put_request, read_report
from airflow_delta.table.stage.write.plan import plan_stage
from airflow_delta.table.start.begin import begin
from airflow_delta.transaction import CommitPolicy, Operation
from faults.crash.run import Run, manifests
from support.actions import column, schema
from support.source_files import csv_rows

Task = Callable[[Run], None]
Rows = Sequence[tuple[Any, ...]]
SCHEMA = schema(column("id", "long"), column("p", "long"))
OLD = 400 * 24 * HOUR


# -- what stands before -------------------------------------------------------------------------------------------------------


def append(run: Run, key: str, *rows: tuple[int, int], partition_by: Sequence[str] = (), **begun: Any) -> None:
    """Append rows of ``id`` and ``p``, a file each, as a transaction of its own."""
    handle = begin(run.log(), transaction_key=key, schema=SCHEMA, partition_by=partition_by, **begun)
    write_rows(run, handle, "by-hand/1", rows)
    staged = collect_files(open_stage(run.log(), handle, task_id="t", attempt="1"), path="by-hand/1")
    publish(run.log(), handle, [staged], attempt=run.attempt)


def write_rows(run: Run, handle: Any, directory: str, rows: Iterable[tuple[int, int]], partition_by: Sequence[str] = ()) -> None:
    """Write a file for each row below the transaction's directory."""
    for id_, p in rows:
        if handle.partition_columns or partition_by:
            run.write(f"staged/{handle.transaction_id}/{directory}/p={p}", {"id": [id_]})
        else:
            run.write(f"staged/{handle.transaction_id}/{directory}", {"id": [id_], "p": [p]})


def two_versions(configuration: dict[str, Any] | None = None, partition_by: tuple[str, ...] = ()) -> Callable[[Run], None]:
    """Versions 0 and 1 with the ids 1 to 4, in two files or partitions."""

    def prepare(run: Run) -> None:
        append(run, "a", *BEFORE[:2], partition_by=partition_by, configuration=configuration)
        append(run, "b", *BEFORE[2:])

    return prepare


def versions_of(configuration: dict[str, Any], *rows: tuple[int, int]) -> Callable[[Run], None]:
    """A version for each row."""

    def prepare(run: Run) -> None:
        for number, row in enumerate(rows):
            append(run, f"key-{number}", row, configuration=configuration)

    return prepare


BEFORE: Rows = [(1, 1), (2, 1), (3, 2), (4, 2)]
NEW: Rows = [*BEFORE, (5, 1), (6, 2)]


def aged(prepare: Callable[[Run], None], *, log_only: bool = False) -> Callable[[Run], None]:
    """Have everything happen over a year ago."""

    def then(run: Run) -> None:
        prepare(run)
        past = time.time() - OLD / 1000
        for path in run.table.rglob("*"):
            if not log_only or "_delta_log" in path.parts:
                os.utime(path, (past, past))

    return then


# -- tasks --------------------------------------------------------------------------------------------------------------------


def start(**options: Any) -> Task:
    return lambda run: run.push("handle", begin(run.log(), **{"transaction_key": "run", **options}))


def stage(*, manifest: bool = False, rows: Rows = ((5, 1), (6, 2)), **options: Any) -> Task:
    """Write files and stage them; another attempt writes its own."""

    def task(run: Run) -> None:
        handle, attempt = run.pulled("handle"), run.attempt
        write_rows(run, handle, f"job/{attempt}", rows, options.get("partition_by", ()))
        with manifests(manifest):
            view = open_stage(run.log(), handle, task_id="stage", attempt=attempt)
            run.push("staged", collect_files(view, path=f"job/{attempt}", **options))

    return task


def stage_on_cluster(run: Run) -> None:
    """A job elsewhere reads its request and leaves files and a report."""
    handle, log = run.pulled("handle"), run.log()
    view = open_stage(log, handle, task_id="stage", attempt=run.attempt)
    request = plan_stage(view)
    put_request(log, request)
    run.points.reach("Spark begins")
    written = run.write(f"{request.directory}/run", {"id": [5], "p": [1]}, {"id": [6], "p": [2]})
    report = StageReport(
        transaction_id=request.transaction_id, stage=request.stage, attempt=request.attempt, directories=("run",),
        written=written, schema_string=SCHEMA,
    )  # fmt: skip
    run.points.reach("Spark has written")
    place = run.table / request.directory / REPORT_DIRECTORY
    place.mkdir()
    (place / "part-00000.txt").write_text(json.dumps(report.to_dict()))
    run.points.reach("Spark has ended")
    run.push("staged", collect_stage(view, request, read_report(log, request)))


def stage_without_spark(run: Run) -> None:
    """The worker writes the rows itself."""
    view = open_stage(run.log(), run.pulled("handle"), task_id="stage", attempt=run.attempt)
    request = plan_stage(view)
    report = stage_arrow(view.log, pa.table({"id": pa.array([5, 6], pa.int64()), "p": pa.array([1, 2], pa.int64())}), request)
    run.push("staged", collect_stage(view, request, report))


def grow_source(key: str, *rows: tuple[int, int]) -> Task:
    """Another writer appends rows to another table."""

    def task(run: Run) -> None:
        log = run.log("source")
        handle = begin(log, transaction_key=key, schema=SCHEMA)
        if handle.committed is not None:
            return
        view = open_stage(log, handle, task_id="t", attempt=run.attempt)
        request = plan_stage(view)
        columns = {name: pa.array(values, pa.int64()) for name, values in zip(("id", "p"), zip(*rows, strict=True), strict=True)}
        publish(log, handle, [collect_stage(view, request, stage_arrow(log, pa.table(columns), request))], attempt=run.attempt)

    return task


def stage_new_rows(run: Run) -> None:
    """The worker writes the rows that another table has got since the last commit."""
    view = open_stage(run.log(), run.pulled("handle"), task_id="stage", attempt=run.attempt)
    found = find_new_rows(view, run.log("source"), NewRowsOptions(consumer="run"))
    request = plan_stage(view)
    staged = collect_stage(view, request, stage_arrow(view.log, read_new_rows(found).to_reader(), request))
    run.push("staged", replace(staged, sources=(found.position,)))


def put_file(name: str, *rows: tuple[int, int]) -> Task:
    """Somebody puts a file beside the table."""

    def task(run: Run) -> None:
        path = run.work / "raw" / name
        path.parent.mkdir(exist_ok=True)
        part = path.with_name(f".{name}")
        part.write_text("id,p\n" + "".join(f"{id_},{p}\n" for id_, p in rows))
        part.rename(path)

    return task


def stage_files(run: Run) -> None:
    """The worker loads the files that the table does not have."""
    view = open_stage(run.log(), run.pulled("handle"), task_id="stage", attempt=run.attempt)
    pattern = SourcePattern.parse(f"{run.work}/raw/*.csv")
    found = find_source_files(view, store_for(pattern.base), pattern, CopyIntoOptions())
    found.check()
    request = plan_stage(view)
    rows = csv_rows(found)
    staged = collect_stage(view, request, stage_arrow(view.log, rows, request))
    found.check()
    run.push("staged", replace(staged, loads=() if found.load is None else (found.load,)))


def commit(**options: Any) -> Task:
    def task(run: Run) -> None:
        handle = run.pulled("handle")
        staged = [] if handle.committed is not None else [run.pulled("staged")]
        run.push("result", publish(run.log(), handle, staged, attempt=run.attempt, **options))

    return task


def leave_something(run: Run) -> None:
    """A job of an author's own leaves files where no stage has them."""
    run.write(f"staged/{run.pulled('handle').transaction_id}", {"id": [99]}, {"id": [98]})


def give_up(run: Run) -> None:
    run.push("aborted", abort(run.log(), run.pulled("handle")))


def forget_the_commit(run: Run) -> None:
    """The log is cleaned up behind a checkpoint of a later version."""
    append(run, "later", (9, 9))
    log = run.log()
    log.checkpoint()
    for version in range(log.update().version):
        for path in (run.table / "_delta_log").glob(f"{version:020}.*"):
            path.unlink()


def commit_is_refused(run: Run) -> None:
    """The commit of an aborted transaction, or of one that was given up, publishes nothing."""
    try:
        publish(run.log(), run.pulled("handle"), [run.pulled("staged")], attempt=run.attempt)
    except TransactionAbortedException:
        return
    raise AssertionError("an aborted transaction was committed")


def other_writer(run: Run) -> None:
    """Replaces the rows that the transaction has read; once."""
    log = run.log()
    if log.update().version == 1:
        txn = log.start_transaction(policy=CommitPolicy(checkpoint="off"))
        removes = [file.remove(int(time.time() * 1000)) for file in to_add_files(txn.filter_files("p = 1"))]
        run.write("other", {"id": [7], "p": [1]})
        path = next((run.table / "other").iterdir())
        add = AddFile(
            path=f"other/{path.name}", partition_values={}, size=path.stat().st_size, modification_time=1, data_change=True
        )
        txn.commit([*removes, add], Operation.write("Append"))


def commit_or_restart(run: Run) -> None:
    """``on_conflict="restart"``: abort, then have Airflow clear the tasks."""
    log, handle = run.log(), run.pulled("handle")
    try:
        run.push("result", publish(log, handle, [run.pulled("staged")], attempt=run.attempt))
    except (DeltaConcurrentModificationException, TransactionAbortedException):
        abort(log, handle)
        run.points.reach("before the clear")
        run.push("cleared", True)


def operation(plan: Callable[..., Any], source: str | None = None, *, in_worker: bool = False, **arguments: Any) -> Task:
    """Begin, stage and commit one operation in one task.

    :param in_worker: the worker does the work on rows itself.
    """

    def task(run: Run) -> None:
        log = run.log()

        def staged(handle: Any) -> list[Any]:
            view = open_stage(log, handle, task_id="task", attempt=run.attempt)
            planned = plan(view, **arguments)
            if isinstance(planned, SparkWork):
                request = planned.request
                report = run_in_worker(log, request) if in_worker else run.on_spark(request, source)
                planned = planned.collect(request, report)
            return [planned]

        run.push("result", run_transaction(log, staged, attempt=run.attempt, transaction_key="run"))

    return task


def batch(run: Run) -> None:
    """A micro-batch of a streaming query; Spark runs it again if it does not know that it succeeded."""
    from airflow_delta.spark import stage as spark_stage

    def stage_dataframe(_spark: Any, _df: Any, request: Any) -> StageReport:
        run.points.reach("Spark begins")
        written = run.write(f"{request.directory}/run", {"id": [5], "p": [1]}, {"id": [6], "p": [2]})
        return StageReport(
            transaction_id=request.transaction_id, stage=request.stage, attempt=request.attempt, directories=("run",),
            written=written, schema_string=SCHEMA,
        )  # fmt: skip

    spark_stage.stage_dataframe = stage_dataframe  # type: ignore[assignment]
    sink = DeltaBatchSink(str(run.table), query_id="query")
    frame: Any = SimpleNamespace(schema=SimpleNamespace(jsonValue=lambda: {"fields": []}), sparkSession=SimpleNamespace())
    run.push("result", sink.commit(frame, 0))


def clean(**options: Any) -> Task:
    """VACUUM, a day from now."""
    later = int(time.time() * 1000) + 24 * HOUR

    def task(run: Run) -> None:
        given = {"retention_hours": 0, "retention_check": False, "transaction_timeout_hours": 0, **options}
        run.push("result", vacuum(run.log(), clock=lambda: later, **given).to_dict())

    return task


def with_orphans(prepare: Callable[[Run], None]) -> Callable[[Run], None]:
    """Files that nobody needs: beside the table, and of transactions that were aborted, abandoned and committed."""

    def then(run: Run) -> None:
        prepare(run)
        for number in range(4):
            run.write(f"orphans/{number % 2}", {"id": [90 + number], "p": [9]})
        for key in ("aborted", "abandoned"):
            handle = begin(run.log(), transaction_key=key)
            directory = f"staged/{handle.transaction_id}"
            run.write(f"{directory}/job/1", {"id": [80], "p": [8]})
            if key == "aborted":
                (run.table / directory / "_aborted").write_text("{}")

    return then


def without_a_file(prepare: Callable[[Run], None]) -> Callable[[Run], None]:
    """The file of the first row is gone."""

    def then(run: Run) -> None:
        prepare(run)
        [lost] = run.log().update().add_files("id = 1")
        (run.table / unquote(lost.path)).unlink()
        (run.work / "lost.json").write_text(json.dumps([lost.path]))

    return then


def of_pairs(configuration: dict[str, Any] | None = None) -> Callable[[Run], None]:
    """The ids 1 to 4 in two files of two rows."""

    def prepare(run: Run) -> None:
        for key, rows in (("a", BEFORE[:2]), ("b", BEFORE[2:])):
            handle = begin(run.log(), transaction_key=key, schema=SCHEMA, configuration=configuration)
            columns = {"id": [id_ for id_, _ in rows], "p": [p for _, p in rows]}
            run.write(f"staged/{handle.transaction_id}/by-hand/1", columns)
            staged = collect_files(open_stage(run.log(), handle, task_id="t", attempt="1"), path="by-hand/1")
            publish(run.log(), handle, [staged], attempt=run.attempt)

    return prepare


def without_statistics(run: Run) -> None:
    """A table whose files have no statistics."""
    for id_, p in BEFORE:
        run.write(f"p={p}", {"id": [id_]})
    options = {"partition_schema": "p BIGINT", "collect_stats": False}
    convert_to_delta(run.log(), transaction_key="a", attempt=run.attempt, **options)
