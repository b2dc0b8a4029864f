"""What every stage does around its own work: find its transaction and the stages that it builds on, and report.

Tell of a schema that drifted: an event of the engine, a metric, and an XCom for whoever decides what to do about it.

What a stage's function has read of the table, for the conflict check of the commit.

How the rows of a stage go into the table.
"""

from __future__ import annotations

import dataclasses
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, final

from airflow_delta import engine
from airflow_delta.contract.choices import (
    CREATE_FROM_ROWS,
    ENFORCE,
    SCHEMA_POLICIES,
    STRICT,
    WRITE_MODES,
    Choices,
    Given,
    is_literal,
    replace_where_problem,
)
from airflow_delta.contract.files import marked
from airflow_delta.contract.kinds import LOCATION, MAYBE_TRUTH, NAMES, PROPERTIES, SCHEMA, TEXT, TRUTH, Kinds
from airflow_delta.contract.payloads import StagedWrite
from airflow_delta.exceptions import DeltaIllegalArgumentException, SchemaDriftException
from airflow_delta.retry_policies import FINAL_ERRORS
from airflow_delta.task_loops import check_no_loop
from airflow_delta.tasks.base import DeltaOperator, Part
from airflow_delta.tasks.checked import note_attempt
from airflow_delta.tasks.ended import find_end
from airflow_delta.tasks.expected_stages import check_not_lost, valid_reports
from airflow_delta.tasks.handle_check import Each, argument_of, definition_mark, open_transaction
from airflow_delta.tasks.identity import column_names, flatten_reports, stage_identity
from airflow_delta.tasks.observability import Stopwatch, TaskMetrics

if TYPE_CHECKING:
    from airflow.sdk import Context, RetryPolicy

    from airflow_delta.contract.payloads import CommitResult, FileLoad, SourcePosition, TransactionHandle
    from airflow_delta.contract.request import StageReport, StageRequest
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.stage.stage_view import SparkWork, StageView


@dataclass(kw_only=True, eq=False, repr=False)
class WriteOptions(Part):
    """The part of a task that stages rows: how they go into the table.

    :param mode: ``append``, ``overwrite`` or ``dynamic`` (overwrite the partitions that the rows are in). (templated)
    :param replace_where: Spark SQL predicate for an ``overwrite``: it replaces only rows that satisfy it, and every new row must
        satisfy it. (templated)
    :param merge_schema: add columns that the table does not have. (templated)
    :param overwrite_schema: let an ``overwrite`` replace the table's schema and partitioning. (templated)
    :param partition_by: partition columns; default: the transaction's. (templated)
    :param optimize_write: shuffle the rows into files near the target size before writing; default: the table's property
        ``delta.autoOptimize.optimizeWrite``.
    :param data_change: false if the rows are those of the table, only in other files (Delta's ``dataChange``).
    :param replace_on: condition between rows ``t`` of the table and new rows ``s``: an ``overwrite`` replaces the rows of the
        table that match any new row. (templated)
    :param replace_using: columns; the same for rows that are equal in all of them. (templated)
    :param create: create the table from the rows: ``create`` (CREATE TABLE AS SELECT), ``create_or_replace`` or ``replace``.
        (templated)
    :param cluster_by: with ``create``: columns to cluster the table by. (templated)
    :param properties: with ``create``: table properties. (templated)
    :param description: with ``create``: comment of the table. (templated)
    :param schema_policy: ``enforce`` (default): rows are cast where no value can be lost, and missing columns are null;
        ``strict``: rows that do not have exactly the expected columns and types are refused before anything is written.
    :param expected_schema: with ``strict``: columns as in SQL (``id BIGINT, tags ARRAY<STRING>``), or Spark's JSON form of a
        schema; default: that of the table. (templated)
    """

    choices: ClassVar[Choices] = {"mode": WRITE_MODES, "create": CREATE_FROM_ROWS, "schema_policy": SCHEMA_POLICIES}
    kinds: ClassVar[Kinds] = {
        "merge_schema": TRUTH,
        "overwrite_schema": TRUTH,
        "partition_by": NAMES,
        "optimize_write": MAYBE_TRUTH,
        "data_change": TRUTH,
        "replace_using": NAMES,
        "cluster_by": NAMES,
        "properties": PROPERTIES,
        "description": TEXT,
        "expected_schema": SCHEMA,
    }
    template_fields: ClassVar[tuple[str, ...]] = (
        "mode",
        "replace_where",
        "merge_schema",
        "overwrite_schema",
        "partition_by",
        "replace_on",
        "replace_using",
        "create",
        "cluster_by",
        "properties",
        "description",
        "expected_schema",
    )

    mode: str = "append"
    replace_where: str | None = None
    merge_schema: bool | str = False
    overwrite_schema: bool | str = False
    partition_by: str | Sequence[str] = ()
    optimize_write: bool | None = None
    data_change: bool = True
    replace_on: str | None = None
    replace_using: str | Sequence[str] = ()
    create: str | None = None
    cluster_by: str | Sequence[str] = ()
    properties: Mapping[str, str] | None = None
    description: str | None = None
    schema_policy: str = ENFORCE
    expected_schema: str | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Refuse a contract that could not hold, while the Dag is parsed."""
        changes = [name for name in ("merge_schema", "overwrite_schema") if getattr(self, name) is True]
        changes += ["create"] if self.create else []
        if self.schema_policy == ENFORCE and self.expected_schema is not None:
            raise DeltaIllegalArgumentException("expected_schema goes with schema_policy='strict'.")
        if self.schema_policy == STRICT and self.expected_schema is None and changes:
            raise DeltaIllegalArgumentException(
                f"schema_policy='strict' holds the rows to the table's schema, which {changes[0]} would change. Give "
                f"expected_schema, or leave {changes[0]} out."
            )

    @staticmethod
    def literal_problems(given: Given) -> Iterator[str]:
        """Yield a ``replace_where`` with a mode that has none; an empty one is found where predicates are parsed."""
        mode, where = given("mode") or "append", given("replace_where")
        if given("create") is None and is_literal(where) and where.strip() and is_literal(mode) and mode in WRITE_MODES:
            problem = replace_where_problem(mode, where)
            yield from () if problem is None else (f"{problem}.",)

    def options(self) -> dict[str, Any]:
        """Return the options as the commands take them."""
        self._check_replacement()
        more: dict[str, Any] = {
            "replace_on": self.replace_on,
            "replace_using": column_names(self.replace_using),
            "create": self.create,
            "cluster_by": column_names(self.cluster_by),
            "properties": self.properties,
            "description": self.description,
        }
        return {
            "mode": self.mode,
            "replace_where": self.replace_where,
            "merge_schema": self.merge_schema,
            "overwrite_schema": self.overwrite_schema,
            "partition_by": column_names(self.partition_by),
            **{name: value for name, value in more.items() if value},
            **({} if self.optimize_write is None else {"optimize_write": self.optimize_write}),
            **({} if self.data_change else {"data_change": False}),
            **({} if self.expected_schema is None else {"expected_schema": self.expected_schema}),
            **({} if self.schema_policy == ENFORCE else {"schema_policy": self.schema_policy}),
        }

    def _check_replacement(self) -> None:
        """Refuse an empty condition, as a template without a value gives: the overwrite would replace the whole table."""
        using = self.replace_using
        given = {
            "replace_on": self.replace_on is None or bool(self.replace_on.strip()),
            "replace_using": using is None or using == () or any(name.strip() for name in column_names(using)),
        }
        if empty := [name for name, fits in given.items() if not fits]:
            raise DeltaIllegalArgumentException(
                f"{empty[0]} of the stage {self.task.task_id!r} is empty, so its overwrite would replace the whole table. Check "
                "the template, or leave the parameter out."
            )

    def plan(self, stage: StageView, **more: Any) -> SparkWork:
        """Plan the write of rows.

        :param more: further arguments of :func:`airflow_delta.table.stage.write.plan.plan_stage`.
        """
        return engine.SparkWork(engine.plan_stage(stage, **self.options(), **more), partial(engine.collect_stage, stage))


STAGE_COLOR = "#e0f2f7"


@dataclass(kw_only=True, eq=False, repr=False)
class GivenTable(Part):
    """The part of a task that only works for a transaction begun by a start task.

    :param table: the transaction's table. Needed only if no start task is upstream of this task: then nothing else in the Dag
        file says which table the handle may name. (templated)
    """

    kinds: ClassVar[Kinds] = {"table": LOCATION}
    template_fields: ClassVar[tuple[str, ...]] = ("table",)

    table: str | None = None


@dataclass(kw_only=True, eq=False, repr=False)
class StageWork(Part):
    """The part of a task that stages something for a transaction. Readers of the table see nothing until the commit.

    :param transaction: the handle: output of the start task. Inside a ``delta_transaction`` group it is filled in. (templated)
    :param after: outputs of earlier stages of the same transaction to build on: this stage sees the table as they leave it.
        Without it, the commit refuses stages that touch the same files or partitions. (templated)
    :param delta_conn_id: connection to the table; default: the start task's. (templated)
    """

    template_fields: ClassVar[tuple[str, ...]] = ("transaction", "after", "delta_conn_id")
    default_retry_policy: ClassVar[RetryPolicy | None] = FINAL_ERRORS

    transaction: Any = None
    after: Any = ()
    delta_conn_id: str | None = None

    log: DeltaLog = field(init=False)
    handle: TransactionHandle = field(init=False)
    context: Context = field(init=False)
    _end: CommitResult | None = field(init=False, default=None)

    def open(self, context: Context) -> None:
        """Find the transaction that the task got as XCom, and whether it is still open."""
        check_no_loop(context)
        self.open_own(context, *open_transaction(self.task, context))
        self._identity["attempt"] = marked(self._identity["attempt"], definition_mark(self.handle))  # the commit looks for it
        if self.handle.committed is None:
            self._end = find_end(self.task, context, self.log, self.handle)

    def open_own(self, context: Context, log: DeltaLog, handle: TransactionHandle) -> None:
        """Work for a transaction that the task itself has begun."""
        self.log, self.handle = log, handle
        self._identity = stage_identity(context)
        self.context = context
        self._metrics, self._clock = TaskMetrics(context["ti"]), Stopwatch()

    def view(self, spark_table_uri: str | None = None) -> StageView:
        """Return what the plan of this stage works with, and all that follows."""
        return engine.open_stage(self.log, self.handle, **self._identity, after=self._earlier(), spark_table_uri=spark_table_uri)

    def _earlier(self) -> tuple[StagedWrite, ...]:
        """The staged writes that this stage builds on; a skipped stage left none."""
        reports = flatten_reports(self.after) if self.after else ()
        if self.transaction is not None:
            writes = valid_reports(self.context, self.handle, reports)
            definition = self.context["dag"].task_dict.get(self.task.task_id)
            outputs = argument_of(definition, "after", None) if definition is not None else None
            if outputs and not isinstance(outputs, Each):
                check_not_lost(self.context, self.handle, writes, outputs)
            return tuple(writes)
        return tuple(StagedWrite.from_dict(report) for report in reports if report is not None)  # the plan refuses them

    def report_if_committed(self, mode: str) -> dict[str, Any] | None:
        """Return the report of a stage that has nothing to do because its transaction, or its key, is committed."""
        if self.handle.committed is None and self._end is None:
            return None
        committed = engine.committed_earlier(self.log, self.handle) if self._end is None else self._end
        handle = replace(self.handle, committed=committed)
        if self._end is None:
            self.task.log.info(
                "Transaction %s: its key %s is already in version %s of %s: nothing is staged (rerun_policy=%s).",
                handle.transaction_id,
                handle.app_id,
                committed.version,
                handle.table,
                handle.rerun_policy,
            )
        else:
            self.task.log.warning(
                "Transaction %s is already committed, as version %s of %s: rows of this stage would not be published, so nothing "
                "is staged. To publish this run again, clear the start task with everything downstream; its rerun_policy (%s) "
                "decides what happens then: 'replace' publishes the new rows instead of the old ones.",
                handle.transaction_id,
                committed.version,
                handle.table,
                handle.rerun_policy,
            )
        return engine.skipped(engine.open_stage(self.log, handle, **self._identity), mode=mode).to_dict()

    def tell_plan(self, request: StageRequest) -> None:
        """Log what Spark is asked to do."""
        files = [*(request.scan.files if request.scan else ()), *(request.rewrite.files if request.rewrite else ())]
        self.task.log.info(
            "Transaction %s: planned %s of stage %s at version %s: reads %s files (%s bytes) of the table.",
            request.transaction_id,
            request.mode if request.operation == "WRITE" else request.operation,
            request.stage,
            request.read_version,
            len(files),
            sum(file.size for file in files),
        )

    def collected(self, collect: Callable[[], StagedWrite]) -> StagedWrite:
        """Turn files into staged actions, and log what their footers say."""
        clock = Stopwatch()
        staged = collect()
        self.task.log.info(
            "Transaction %s: read the footers of %s files of stage %s: %s rows, %s bytes; %.1f s.",
            staged.transaction_id,
            staged.num_files,
            staged.stage,
            staged.num_records,
            staged.num_bytes,
            clock.seconds,
        )
        return staged

    def report(self, staged: StagedWrite) -> Mapping[str, Any]:
        """Log what was staged and return its JSON form."""
        self.task.log.info(
            "Transaction %s: staged %s of stage %s: %s rows in %s files added, %s files removed, %s bytes; attempt %s. "
            "Nothing is visible until the commit.",
            staged.transaction_id,
            staged.mode if staged.operation == "WRITE" else staged.operation,
            staged.stage,
            staged.num_records,
            staged.num_files,
            staged.num_removed_files,
            staged.num_bytes,
            staged.attempt,
        )
        self.measure(staged)
        return staged.to_dict()

    def measure(self, staged: StagedWrite) -> None:
        """Send the metrics of what was staged, and record what was read."""
        self._metrics.staged(staged, self.handle.table, self._clock.seconds)
        self.task.lineage.note_reads(self.handle, [staged])


EVENT = "delta.stage.schemaDrift"
"""Name of the event."""

DRIFT_KEY = "delta_schema_drift"
"""XCom of a stage that refused its rows: ``table``, ``version`` read, and ``differences``
(:class:`airflow_delta.contract.drift.SchemaDifference`).
"""


@contextmanager
def drift_told(context: Context, handle: TransactionHandle) -> Iterator[None]:
    """Record a schema drift that ends the block."""
    try:
        yield
    except SchemaDriftException as error:
        differences = list(error.differences)
        told = {"table": handle.table, "version": handle.read_version, "differences": differences}
        ti = context["ti"]
        engine.record_event(
            EVENT, handle.table, {"txnId": handle.transaction_id, "taskId": ti.task_id, **told}, level=logging.INFO
        )
        metrics = TaskMetrics(ti)
        for difference in differences:
            metrics.count("stage.schema_drift", table=handle.table, kind=difference["kind"])
        ti.xcom_push(key=DRIFT_KEY, value=told)
        raise


class StageReadRecorder:
    """Records reads of the table that a stage is for, and how far it has read the new rows of others."""

    def __init__(self, stage: StageView) -> None:
        self._stage = stage
        self._predicates: list[str] = []
        self._whole_table = False
        self._sources: dict[str, SourcePosition] = {}
        self._loads: list[FileLoad] = []

    def note(self, predicate: str | None) -> None:
        """Record a read of the rows that satisfy a predicate, or of the whole table."""
        if predicate is None:
            self._whole_table = True
        else:
            self._predicates.append(predicate)

    def note_source(self, position: SourcePosition) -> None:
        """Record that the new rows of another table were read, up to a position that the commit records."""
        self._sources[position.app_id] = position

    def note_load(self, load: FileLoad) -> None:
        """Record that files were loaded, which the commit records."""
        self._loads.append(load)

    @property
    def exists(self) -> bool:
        """Whether the table existed when the transaction began."""
        return self._stage.handle.read_version >= 0

    def add_reads(self, staged: StagedWrite) -> StagedWrite:
        """Return the staged write with the reads of this reader added."""
        if self._sources:
            staged = dataclasses.replace(staged, sources=tuple(self._sources.values()))
        if self._loads:
            staged = dataclasses.replace(staged, loads=tuple(self._loads))
        if not self._whole_table and not self._predicates:
            return staged
        own, others = staged.reads, tuple(self._predicates)
        reads = dataclasses.replace(
            own,
            predicates=tuple(dict.fromkeys((*own.predicates, *others))),
            whole_table=own.whole_table or self._whole_table,
            selected=own.selected and not self._whole_table,
            # All rows of these predicates were read, whichever of them the stage itself has looked for.
            marked=tuple(text for text in own.marked if text not in others),
            scanned=tuple(dict.fromkeys((*own.scanned, *others))),
            keys=tuple(key for key in own.keys if key.predicate not in others),
        )
        return dataclasses.replace(staged, reads=reads)


class StageOperator(DeltaOperator):
    """Template of a task that stages something for a transaction.

    All such tasks run :meth:`execute`: open the transaction, end if it is done, plan, work, collect, report. A subclass says what
    it plans (:meth:`plan_stage`) and who does the work (:meth:`work`).
    """

    transaction_role: ClassVar[str] = "stage"
    changes_table: ClassVar[bool] = False
    ui_color = STAGE_COLOR

    opened: StageWork
    """The transaction for which the running task stages."""

    _reads: StageReadRecorder | None = None

    @abstractmethod
    def plan_stage(self, stage: StageView) -> SparkWork | StagedWrite:
        """Plan the stage, before anything is written.

        :return: the work to do, or the staged write if nothing is left to do.
        """

    def work(self, stage: StageView, request: StageRequest) -> tuple[StageRequest, StageReport]:
        """Do what was planned.

        :return: the request that was worked on (that of an earlier try if its work was taken over), and the report.
        """
        raise NotImplementedError(f"{type(self).__name__} plans work ({request.operation}) that nothing carries out")

    @final
    def execute(self, context: Context) -> Any:
        """Return the staged write, or the result of the commit if the task is a transaction of its own."""
        work = self.hold(StageWork)
        if self.is_own_transaction:
            return self.run_alone(work, context)
        self.open(work, context)
        done = work.report_if_committed(self.skipped_mode)
        value = work.report(self.stage(work)) if done is None else done
        note_attempt(context, value)
        return value

    @final
    def stage(self, work: StageWork) -> StagedWrite:
        """Plan, do the work, and collect what it has staged, with the reads that were recorded meanwhile."""
        self.opened, self._reads = work, None
        with drift_told(work.context, work.handle):
            stage = work.view(self.table_uri(work.log))
            planned = self.plan_stage(stage)
            if isinstance(planned, StagedWrite):
                return planned
            work.tell_plan(planned.request)
            asked, report = self.work(stage, planned.request)
            staged = work.collected(lambda: planned.collect(asked, report))
        return staged if self._reads is None else self._reads.add_reads(staged)

    def open(self, work: StageWork, context: Context) -> None:
        """Open the transaction, and refuse what can be known to fail before anything is planned."""
        work.open(context)

    @property
    def is_own_transaction(self) -> bool:
        """Whether the task begins and commits its transaction by itself."""
        return False

    def run_alone(self, work: StageWork, context: Context) -> Any:
        """Begin, stage and commit; return the result of the commit."""
        raise NotImplementedError(f"{type(self).__name__} only stages for the transaction of a start task")

    @property
    def skipped_mode(self) -> str:
        """The mode in the report of a stage that has nothing to do."""
        return WriteOptions.of(self).mode

    def table_uri(self, log: DeltaLog) -> str | None:  # noqa: ARG002 - for stages that work where the worker's URI is right
        """Return the URI of the table where the work is done; ``None`` if it follows from the worker's."""
        uri: str | None = getattr(self, "spark_table_uri", None)
        return uri


def change_bounds(start: int | datetime, end: int | datetime | None) -> dict[str, Any]:
    """Return the parameters of a range of commits, whose ends are versions or times."""
    bounds: dict[str, Any] = {"starting_timestamp" if isinstance(start, datetime) else "starting_version": start}
    if end is not None:
        bounds["ending_timestamp" if isinstance(end, datetime) else "ending_version"] = end
    return bounds
