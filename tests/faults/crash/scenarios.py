"""Dag runs whose tasks are killed at every point: what stands before, the tasks in their order, and the rows after them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from unittest import mock

from airflow_delta.contract.changes import AddColumns, Column
from airflow_delta.contract.merge import when_matched_update, when_not_matched_insert
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.table.operations.clone import clone_table
from airflow_delta.table.operations.convert import convert_to_delta
from airflow_delta.table.operations.maintenance import maintain
from airflow_delta.table.operations.merge.plan import plan_merge
from airflow_delta.table.operations.optimize.plan import select_for_optimize
from airflow_delta.table.operations.optimize.run import run_rewrite
from airflow_delta.table.operations.repair import repair_table
from airflow_delta.table.operations.restore import restore
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.operations.rewrite.update import plan_update
from airflow_delta.table.operations.row_tracking import enable_row_tracking
from airflow_delta.table.operations.statistics import compute_statistics
from airflow_delta.table.stage.plan_alter import plan_alter
from airflow_delta.table.stage.plan_create import plan_create
from airflow_delta.table.stage.stage_view import open_stage
from airflow_delta.table.stage.write.collect import collect_stage
from airflow_delta.table.stage.write.job_runs import put_request
from airflow_delta.table.stage.write.plan import plan_stage
from faults.crash import publications
from faults.crash import tasks as tasks
from faults.crash.run import Run
from faults.crash.tasks import BEFORE, NEW, Rows, Task, aged, two_versions

TWO = two_versions()
CHECKPOINTS = {"delta.checkpointInterval": "2"}
VECTORS = {"delta.enableDeletionVectors": "true"}


@dataclass(frozen=True)
class Scenario:
    """Tasks in their order.

    :param prepare: makes the table.
    :param rows: after the last task.
    :param killed: the tasks that are killed; default: all.
    :param commits: how many versions the tasks make; ``None``: what is cut off and runs again has more.
    :param remote: on a store that looks like an object store.
    :param on_spark: Spark works for it.
    :param table: folder with the table that has the rows.
    :param cannot_read: readers that cannot.
    """

    tasks: dict[str, Task]
    rows: Rows
    prepare: Callable[[Run], None] = TWO
    killed: tuple[str, ...] = ()
    commits: int | None = 1
    remote: bool = False
    on_spark: bool = False
    table: str = "table"
    cannot_read: tuple[str, ...] = ()


def files_by_hand(run: Run) -> None:
    """Partitioned Parquet files, not yet a table."""
    for id_, p in BEFORE:
        run.write(f"p={p}", {"id": [id_]})


def with_source(run: Run) -> None:
    """Beside the table another one, whose rows it lacks."""
    TWO(run)
    tasks.grow_source("first", (5, 1), (6, 2))(run)


def with_files(run: Run) -> None:
    """Beside the table files, whose rows it lacks."""
    TWO(run)
    tasks.put_file("a.csv", (5, 1))(run)
    tasks.put_file("b.csv", (6, 2))(run)


def clone(run: Run, *, deep: bool = False) -> None:
    run.push("result", clone_table(run.log("clone"), run.log(), deep=deep, transaction_key="run", attempt=run.attempt))


def convert(run: Run) -> None:
    run.push("result", convert_to_delta(run.log(), partition_schema="p BIGINT", transaction_key="run", attempt=run.attempt))


def repair(run: Run) -> None:
    done = repair_table(run.log(), max_missing_share=0.5, transaction_key="run", attempt=run.attempt)
    assert [file.path for file in done.missing.files] == json.loads((run.work / "lost.json").read_text())
    run.push("result", done.commit)


def maintenance(run: Run) -> None:
    report = maintain(run.log(), ("checkpoint", "vacuum", "log_cleanup"), min_commits=1, vacuum={"retention_hours": 1000})
    assert not report.errors, report.errors
    run.push("result", report)


def optimize(run: Run) -> None:
    result = run_rewrite(
        run.log(), select_for_optimize, run.on_spark, parallel=1,
        identity={"task_id": "optimize", "map_index": -1, "attempt": run.attempt},
    )  # fmt: skip
    run.push("result", result)


def optimize_on_cluster(run: Run) -> None:
    """With so many deleted rows that they go through a file."""
    log = run.log()

    def submitted(request: StageRequest) -> StageReport:
        put_request(log, request)
        return run.on_spark(request)

    identity = {"task_id": "optimize", "map_index": -1, "attempt": run.attempt}
    with mock.patch("airflow_delta.table.stage.scan.MAX_INLINE_WORDS", 0):
        run.push("result", run_rewrite(log, select_for_optimize, submitted, parallel=1, identity=identity))


def replace_rows(run: Run) -> None:
    """A stage that overwrites some rows of a file: Spark writes the other rows again."""
    view = open_stage(run.log(), run.pulled("handle"), task_id="stage", attempt=run.attempt)
    request = plan_stage(view, mode="overwrite", replace_where="id IN (1, 3)")
    report = run.on_spark(request, "SELECT explode(array(1L, 3L)) id, 7L p")
    run.push("staged", collect_stage(view, request, report))


def stage_large_file(run: Run) -> None:
    """The worker writes a file that does not fit into memory."""
    with mock.patch("airflow_delta.table.arrow.files.IN_MEMORY_BYTES", 0):
        tasks.stage_without_spark(run)


def checked(run: Run) -> None:
    """A task between stage and commit, which reads what was staged."""
    assert json.loads((run.work / "staged.json").read_text())["numRecords"] == 2


def merge(run: Run) -> None:
    tasks.operation(plan_merge, "SELECT * FROM VALUES (1L, 9L), (5L, 9L) AS s(id, p)", **ON)(run)


def merge_many_keys(run: Run) -> None:
    """With so many keys that they go through a file."""
    with mock.patch("airflow_delta.table.stage.key_reads.INLINE_ROWS", 0):
        merge(run)


SIX: Rows = [(number, 3) for number in range(10, 16)]
OLD_LOG = aged(tasks.versions_of(CHECKPOINTS, *SIX), log_only=True)
OLD_V2_LOG = aged(tasks.versions_of({**CHECKPOINTS, "delta.checkpointPolicy": "v2"}, *SIX), log_only=True)

WRITE = {"start": tasks.start(), "stage": tasks.stage(), "commit": tasks.commit()}
REPLACED = {
    "start": tasks.start(transaction_key="b", rerun_policy="replace"), "stage": tasks.stage(), "commit": tasks.commit()
}  # fmt: skip
UPSERT = [when_matched_update(), when_not_matched_insert()]
ON = {"condition": "target.id = source.id", "clauses": UPSERT}
MERGED: Rows = [(1, 9), *BEFORE[1:], (5, 9)]

STAGED = {"start": publications.start, "stage": publications.stage}
PUBLISHED = {"check": publications.check(published=True)}
GONE = {"check": publications.check(published=False)}

SCENARIOS: dict[str, Scenario] = {
    "append": Scenario({"start": tasks.start(), "stage": tasks.stage(), "audit": checked, "commit": tasks.commit()}, NEW),
    "append with a manifest": Scenario(
        {"start": tasks.start(), "stage": tasks.stage(manifest=True), "commit": tasks.commit()}, NEW
    ),
    "append, staged by a cluster": Scenario(
        {"start": tasks.start(), "stage": tasks.stage_on_cluster, "commit": tasks.commit()}, NEW, killed=("stage", "commit")
    ),
    "append without Spark": Scenario(
        {"start": tasks.start(), "stage": tasks.stage_without_spark, "commit": tasks.commit()}, NEW, killed=("stage", "commit")
    ),
    "append of a large file without Spark": Scenario(
        {"start": tasks.start(), "stage": stage_large_file, "commit": tasks.commit()}, NEW, killed=("stage",)
    ),
    "append on an object store": Scenario(WRITE, NEW, remote=True),
    "append with a checkpoint and log cleanup": Scenario(WRITE, [*SIX, (5, 1), (6, 2)], OLD_LOG, killed=("commit",)),
    "append with a checkpoint and log cleanup on an object store": Scenario(
        WRITE, [*SIX, (5, 1), (6, 2)], OLD_LOG, killed=("commit",), remote=True
    ),
    "append with a checkpoint in parts": Scenario(
        WRITE, [*SIX, (5, 1), (6, 2)], OLD_V2_LOG, killed=("commit",), cannot_read=("delta-rs",)
    ),
    "a new table": Scenario(WRITE, [(5, 1), (6, 2)], lambda run: None),
    "a new table on an object store": Scenario(WRITE, [(5, 1), (6, 2)], lambda run: None, remote=True),
    "overwrite with symlink manifests": Scenario(
        {
            "start": tasks.start(),
            "stage": tasks.stage(rows=[(5, 1)], mode="overwrite"),
            "commit": tasks.commit(),
        },
        [(5, 1)],
        two_versions({"delta.compatibility.symlinkFormatManifest.enabled": "true"}, ("p",)),
        killed=("commit",),
    ),
    "overwrite with symlink manifests and new partitions": Scenario(
        {
            "start": tasks.start(),
            "stage": tasks.stage(mode="overwrite", overwrite_schema=True, partition_by=("p",)),
            "commit": tasks.commit(),
        },
        [(5, "1"), (6, "2")],
        two_versions({"delta.compatibility.symlinkFormatManifest.enabled": "true"}),
        killed=("commit",),
    ),
    "overwrite with auto compaction": Scenario(
        {"start": tasks.start(), "stage": tasks.stage(mode="overwrite"), "commit": tasks.commit()},
        [(5, 1), (6, 2)],
        two_versions({"delta.autoOptimize.autoCompact": "true"}),
        killed=("commit",),
    ),
    "replace what the key added": Scenario(REPLACED, [*BEFORE[:2], (5, 1), (6, 2)]),
    "a commit that runs again": Scenario({**WRITE, "commit again": tasks.commit()}, NEW, killed=("commit again",)),
    "abort": Scenario(
        {
            "start": tasks.start(),
            "stage": tasks.stage(),
            "other": tasks.leave_something,
            "abort": tasks.give_up,
            "commit": tasks.commit_is_refused,
        },
        BEFORE,
        killed=("stage", "abort"),
        commits=0,
    ),
    "abort of a commit that has left the log": Scenario(
        {**WRITE, "log cleanup": tasks.forget_the_commit, "abort": tasks.give_up}, [*NEW, (9, 9)], killed=("abort",), commits=2
    ),
    "restart on conflict": Scenario(
        {
            "start": tasks.start(),
            "stage": tasks.stage(mode="overwrite"),
            "other": tasks.other_writer,
            "commit": tasks.commit_or_restart,
            "start again": tasks.start(),
            "stage again": tasks.stage(mode="overwrite"),
            "commit again": tasks.commit(),
        },
        [(5, 1), (6, 2)],
        killed=("commit", "start again", "commit again"),
        commits=2,
    ),
    "new rows of another table": Scenario(
        {
            "start": tasks.start(),
            "stage": tasks.stage_new_rows,
            "source": tasks.grow_source("more", (7, 3)),
            "commit": tasks.commit(),
            "start again": tasks.start(transaction_key="next"),
            "stage again": tasks.stage_new_rows,
            "commit again": tasks.commit(),
        },
        [*NEW, (7, 3)],
        with_source,
        killed=("stage", "commit", "start again", "stage again", "commit again"),
        commits=2,
    ),
    "files of a directory": Scenario(
        {
            "start": tasks.start(),
            "stage": tasks.stage_files,
            "source": tasks.put_file("c.csv", (7, 3)),
            "commit": tasks.commit(),
            "start again": tasks.start(transaction_key="next"),
            "stage again": tasks.stage_files,
            "commit again": tasks.commit(),
        },
        [*NEW, (7, 3)],
        with_files,
        killed=("stage", "commit", "start again", "stage again", "commit again"),
        commits=2,
    ),
    "streaming batch": Scenario({"batch": tasks.batch}, NEW),
    "VACUUM": Scenario({"vacuum": tasks.clean()}, BEFORE, tasks.with_orphans(two_versions()), commits=None),
    "VACUUM on an object store": Scenario(
        {"vacuum": tasks.clean()}, BEFORE, tasks.with_orphans(two_versions()), commits=None, remote=True
    ),
    "VACUUM LITE": Scenario(
        {"delete": tasks.operation(plan_delete, predicate="p = 1"), "first": tasks.clean(), "vacuum": tasks.clean(lite=True)},
        BEFORE[2:],
        aged(two_versions(partition_by=("p",))),
        killed=("vacuum",),
        commits=None,
    ),
    "maintenance": Scenario({"maintenance": maintenance}, SIX, OLD_LOG, commits=None),
    "maintenance, V2 checkpoints": Scenario(
        {**WRITE, "maintenance": maintenance},
        [*SIX, (5, 1), (6, 2)],
        OLD_V2_LOG,
        killed=("maintenance",),
        commits=None,
        cannot_read=("delta-rs",),
    ),
    "CREATE TABLE": Scenario({"create": tasks.operation(plan_create, schema=tasks.SCHEMA)}, [], lambda run: None),
    "ALTER TABLE": Scenario(
        {"alter": tasks.operation(plan_alter, changes=[AddColumns((Column("q", "BIGINT"),))])}, [(*row, None) for row in BEFORE]
    ),
    "DELETE of whole files": Scenario({"delete": tasks.operation(plan_delete)}, []),
    "RESTORE": Scenario(
        {"restore": lambda run: run.push("result", restore(run.log(), version=0, transaction_key="run", attempt=run.attempt))},
        BEFORE[:2],
    ),
    "FSCK": Scenario({"repair": repair}, BEFORE[1:], tasks.without_a_file(TWO)),
    "FSCK on an object store": Scenario({"repair": repair}, BEFORE[1:], tasks.without_a_file(TWO), remote=True),
    "CLONE": Scenario({"clone": clone}, BEFORE, table="clone", cannot_read=("delta-rs", "DuckDB")),
    "DEEP CLONE": Scenario({"clone": partial(clone, deep=True)}, BEFORE, table="clone"),
    "CONVERT": Scenario({"convert": convert}, BEFORE, files_by_hand),
    "COMPUTE STATISTICS": Scenario(
        {"compute": lambda run: run.push("result", compute_statistics(run.log()))}, BEFORE, tasks.without_statistics
    ),
    "ROW TRACKING": Scenario(
        {"row tracking": lambda run: run.push("result", enable_row_tracking(run.log(), max_files=2))},
        BEFORE,
        tasks.without_statistics,
        commits=4,
    ),
    "DELETE": Scenario(
        {"delete": tasks.operation(plan_delete, predicate="id IN (1, 3)")}, [(2, 1), (4, 2)], tasks.of_pairs(), on_spark=True
    ),
    "DELETE with deletion vectors": Scenario(
        {"delete": tasks.operation(plan_delete, predicate="id IN (1, 3)")},
        [(2, 1), (4, 2)],
        tasks.of_pairs(VECTORS),
        on_spark=True,
    ),
    "DELETE without Spark, with deletion vectors": Scenario(
        {"delete": tasks.operation(plan_delete, in_worker=True, predicate="id IN (1, 3)")},
        [(2, 1), (4, 2)],
        tasks.of_pairs(VECTORS),
    ),
    "UPDATE without Spark": Scenario(
        {"update": tasks.operation(plan_update, in_worker=True, set={"p": "p + 8"}, predicate="id IN (1, 3)")},
        [(1, 9), (2, 1), (3, 10), (4, 2)],
        tasks.of_pairs(),
    ),
    "UPDATE": Scenario(
        {"update": tasks.operation(plan_update, set={"p": "9"}, predicate="id IN (1, 3)")},
        [(1, 9), (2, 1), (3, 9), (4, 2)],
        tasks.of_pairs(),
        on_spark=True,
    ),
    "MERGE": Scenario({"merge": merge}, MERGED, tasks.of_pairs(), on_spark=True),
    "MERGE with a file of keys": Scenario({"merge": merge_many_keys}, MERGED, tasks.of_pairs(), on_spark=True),
    "MERGE with deletion vectors": Scenario({"merge": merge}, MERGED, tasks.of_pairs(VECTORS), on_spark=True),
    "OPTIMIZE": Scenario({"optimize": optimize}, BEFORE, on_spark=True),
    "OPTIMIZE on a cluster, with deletion vectors": Scenario(
        {"delete": tasks.operation(plan_delete, predicate="id = 1"), "optimize": optimize_on_cluster},
        BEFORE[1:],
        tasks.of_pairs(VECTORS),
        killed=("optimize",),
        on_spark=True,
        commits=2,
    ),
    "replaceWhere": Scenario(
        {"start": tasks.start(), "stage": replace_rows, "commit": tasks.commit()},
        [(1, 7), (2, 1), (3, 7), (4, 2)],
        tasks.of_pairs(),
        killed=("stage", "commit"),
        on_spark=True,
    ),
    "publication": Scenario({**STAGED, "commit": publications.commit, **PUBLISHED}, NEW, publications.prepare),
    "publication on an object store": Scenario(
        {**STAGED, "commit": publications.commit, **PUBLISHED}, NEW, publications.prepare, killed=("commit",), remote=True
    ),
    "publication that another worker goes on with": Scenario(
        {**STAGED, "first": publications.killed_after_the_decision, "settle": publications.settle_all, **PUBLISHED},
        NEW,
        publications.prepare,
        killed=("settle",),
    ),
    "publication that is taken back": Scenario(
        {**STAGED, "first": publications.refused_late, "commit": publications.commit, **GONE},
        BEFORE,
        publications.prepare,
        killed=("commit",),
        commits=2,
    ),
    "publication that is aborted": Scenario(
        {
            **STAGED,
            "first": publications.killed_after_the_plan,
            "abort": publications.abort,
            "commit": publications.commit_is_refused,
            **GONE,
        },
        BEFORE,
        publications.prepare,
        killed=("abort",),
    ),
}
