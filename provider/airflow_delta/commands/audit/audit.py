"""An audit between stages and commit: what the commit would make of the table, and whether it may.

The checks are made of statistics here (:mod:`airflow_delta.commands.audit.statistics`), and of SQL on Spark
(:mod:`airflow_delta.spark.audit`). Both judge the version that the transaction reads; what others commit until the commit is none
of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from airflow_delta.commands.begin.read_snapshot import read_snapshot
from airflow_delta.commands.files.row_counts import live_records, num_records
from airflow_delta.commands.stage.after import FileKey, file_key, handle_after, load_stages
from airflow_delta.commands.stage.data_change import REARRANGING
from airflow_delta.commands.stage.load import parse_staged
from airflow_delta.commands.stage.net_effect import Replaced, find_replaced
from airflow_delta.commands.stage.scan import scan_of, spark_table
from airflow_delta.commands.stage.stage_conflicts import check_stages
from airflow_delta.exceptions import DeltaIllegalArgumentException, MissingStageException
from airflow_delta.log.actions.actions import AddFile, RemoveFile
from airflow_delta.staging.audit import (
    BEFORE,
    CHECKS,
    FAIL,
    PLANS,
    STAGED,
    VIEWS,
    WARN,
    AuditCheck,
    AuditReport,
    SqlAnswer,
    SqlCheck,
)
from airflow_delta.staging.contract import ScanPlan, StagedWrite, TransactionHandle
from airflow_delta.staging.paths import attempt_directory, stage_key, transaction_directory
from airflow_delta.staging.report import StageReport, StageRequest

if TYPE_CHECKING:
    from airflow_delta.log import DeltaLog

OPERATION = "AUDIT"

_COPIED = re.compile(r"[0-9a-f]{8}-copied(-\d+)?/")  # directories of airflow_delta.spark with rows that stay as they were


class AuditedTable:
    """The table before and after the commit of some stages, as far as a check asks for it.

    :ivar handle: of the transaction.
    :ivar target: the same, with schema and partitioning as the stages leave them.
    :ivar writes: the staged writes.
    """

    def __init__(self, log: DeltaLog, handle: TransactionHandle, staged: Sequence[StagedWrite | Mapping[str, Any]]) -> None:
        """Load staged writes, and find out what of them the commit would add.

        :raises MissingStageException: there is none.
        :raises StageConflictException: the commit would refuse them.
        """
        self.log = log
        self.handle = handle
        self.writes = parse_staged(handle, staged, None)
        if not self.writes:
            raise MissingStageException(
                f"No stage of transaction {handle.transaction_id} on table {handle.table} has reported, so there is nothing to "
                "audit. Pass staged=<output of the stages>; clear the stages, if their output is gone.",
                table=handle.table,
                version=handle.read_version,
            )
        self._stages = load_stages(log, handle, self.writes)
        check_stages(handle, self._stages)
        self.target = handle_after(handle, self._stages)
        if len(self._stages) > 1 or handle.rerun_policy == "replace":
            self._replaced  # noqa: B018 - else nothing is there that could contradict itself

    @cached_property
    def _replaced(self) -> Replaced:
        """What the commit would add and remove, found as the commit finds it."""
        from airflow_delta.transaction import OptimisticTransaction

        txn = OptimisticTransaction(self.log, read_snapshot(self.log, self.handle))
        return find_replaced(self.log, txn, self.handle, self._stages)

    @cached_property
    def added(self) -> list[AddFile]:
        """Return the files that the commit adds."""
        return self._replaced.adds

    @cached_property
    def staged(self) -> list[AddFile]:
        """Return the files with rows that the stages bring.

        Not: files that hold nothing but copies of rows that stay (where one stage has copied rows of another, they count), files
        of the table that only get another deletion vector, and rows of the version read that OPTIMIZE or REORG put into other
        files. Rows of a write with ``data_change=False`` are judged like others: that they are the same is only what it says.
        """
        owners = {file_key(add): stage.write for stage in self._stages for add in stage.adds}
        return [add for add in self.added if self._brings_rows(add, owners[file_key(add)])]

    def _brings_rows(self, add: AddFile, write: StagedWrite) -> bool:
        path = unquote(add.path)
        if not add.data_change and write.operation in REARRANGING:
            return False
        if not path.startswith(f"{transaction_directory(self.handle.transaction_id)}/"):
            return False
        directory = f"{attempt_directory(self.handle.transaction_id, write.stage, write.attempt)}/"
        copied = path.startswith(directory) and _COPIED.match(path.removeprefix(directory)) is not None
        return bool(write.after) or not copied

    @cached_property
    def removed(self) -> dict[FileKey, RemoveFile]:
        """Return the files of the version that was read that the commit removes, by key."""
        return {file_key(file): file for file in self._replaced.removes}

    # -- rows -----------------------------------------------------------------------------------------------------------------

    @property
    def rows_staged(self) -> int | None:
        """Return the number of rows that the stages bring, by their totals; ``None`` when one does not know."""
        counts = [write.num_records for write in self.writes]
        return None if any(count is None for count in counts) else sum(count or 0 for count in counts)

    @cached_property
    def rows_before(self) -> int | None:
        """Return the rows of the version that was read, ``None`` when the statistics of a file do not tell."""
        if self.handle.read_version < 0:
            return 0
        import pyarrow.compute as pc

        files = read_snapshot(self.log, self.handle).files(columns=("stats", "deletion_vector"))
        deleted = pc.sum(pc.struct_field(files.column("deletion_vector"), "cardinality")).as_py() or 0
        total = 0
        for text in files.column("stats").to_pylist():
            rows = num_records(text)
            if rows is None:
                return None
            total += rows
        return total - int(deleted)

    @cached_property
    def rows_after(self) -> int | None:
        """Return the rows of the table after the commit, ``None`` when statistics do not tell."""
        before = self.rows_before
        changes = [*((live_records(file), 1) for file in self.added), *((live_records(f), -1) for f in self.removed.values())]
        if before is None or any(rows is None for rows, _ in changes):
            return None
        return before + sum((rows or 0) * sign for rows, sign in changes)

    # -- views ----------------------------------------------------------------------------------------------------------------

    def scan(self, view: str, *, spark_table_uri: str | None = None) -> ScanPlan:
        """Return the plan to read a view of :data:`~airflow_delta.staging.audit.VIEWS`."""
        if view == STAGED:
            return scan_of(self.log, self.target, self.staged, spark_table_uri=spark_table_uri)
        files = read_snapshot(self.log, self.handle).add_files() if self.handle.read_version >= 0 else []
        if view == BEFORE:  # of a table that does not exist yet: no rows, and the columns that it gets
            target = self.handle if self.handle.read_version >= 0 else self.target
            return scan_of(self.log, target, files, spark_table_uri=spark_table_uri)
        kept = [file for file in files if file_key(file) not in self.removed]
        return scan_of(self.log, self.target, [*kept, *self.added], spark_table_uri=spark_table_uri)


# -- SQL ----------------------------------------------------------------------------------------------------------------------


def parse_sql_checks(checks: Mapping[str, Any] | None, *, on_failure: str = FAIL) -> list[SqlCheck]:
    """Return the SQL checks of an author: a query by name, or a mapping with ``sql`` and ``on_failure``.

    :param on_failure: of the checks that do not say it.
    :raises DeltaIllegalArgumentException: one is neither.
    """
    parsed = []
    for name, check in by_name("checks", checks).items():
        given = {"sql": check} if isinstance(check, str) else check
        if not isinstance(given, Mapping) or set(given) - {"sql", "on_failure"} or not str(given.get("sql") or "").strip():
            raise DeltaIllegalArgumentException(
                f"The check {name!r} must be a query, or a mapping with sql and on_failure, got {check!r}"
            )
        severity = check_severity(f"on_failure of the check {name!r}", given.get("on_failure", on_failure))
        parsed.append(SqlCheck(name=str(name), sql=str(given["sql"]), on_failure=severity))
    return parsed


def by_name(name: str, given: Any) -> Mapping[str, Any]:
    """Return checks by name or column; a template that was to give a mapping may have left text.

    :raises DeltaIllegalArgumentException: it is no mapping.
    """
    if given is None or given == "":
        return {}
    if not isinstance(given, Mapping):
        raise DeltaIllegalArgumentException(f"{name} must be a mapping, got {given!r}")
    return given


def check_severity(name: str, value: Any) -> str:
    """Return ``fail`` or ``warn``.

    :raises DeltaIllegalArgumentException: it is neither.
    """
    if value not in (FAIL, WARN):
        raise DeltaIllegalArgumentException(f"{name} must be {FAIL!r} or {WARN!r}, got {value!r}")
    return str(value)


def plan_sql_checks(
    table: AuditedTable,
    checks: Sequence[SqlCheck],
    *,
    task_id: str,
    map_index: int = -1,
    attempt: str,
    spark_table_uri: str | None = None,
) -> StageRequest:
    """Return what Spark is asked: the checks, and a scan of every view that one of them names.

    :param attempt: unique name of this execution (:func:`airflow_delta.staging.paths.new_attempt`).
    """
    handle, stage = table.handle, stage_key(task_id, map_index)
    text = "\n".join(check.sql for check in checks)
    named = [view for view in VIEWS if re.search(rf"\b{view}\b", text, re.IGNORECASE)]  # a word too many is a view too many
    plans = {view: table.scan(view, spark_table_uri=spark_table_uri).to_dict() for view in named}
    return StageRequest(
        transaction_id=handle.transaction_id,
        table=spark_table(table.log, spark_table_uri),
        read_version=handle.read_version,
        stage=stage,
        task_id=task_id,
        map_index=map_index,
        attempt=attempt,
        directory=attempt_directory(handle.transaction_id, stage, attempt),
        operation=OPERATION,
        mode="audit",
        schema_string=table.target.schema_string,
        partition_columns=table.target.partition_columns,
        arguments={CHECKS: [check.to_dict() for check in checks], PLANS: plans},
    )


def judge_answers(checks: Sequence[SqlCheck], report: StageReport) -> list[AuditCheck]:
    """Return the outcome of SQL checks. A null, and a check without an answer, have failed."""
    answers = {answer.name: answer for answer in map(SqlAnswer.from_dict, report.answers)}
    outcomes = []
    for check in checks:
        found = answers.get(check.name, SqlAnswer(name=check.name, problem="the Spark job left no answer"))
        figures = ", ".join(f"{name} = {value}" for name, value in found.figures.items())
        said = found.problem or f"the query says {'null' if found.passed is None else str(found.passed).lower()}"
        outcomes.append(
            AuditCheck(
                name=check.name,
                passed=found.passed is True,
                severity=check.on_failure,
                value=found.passed,
                message=f"{said}; {figures}" if figures else said,
            )
        )
    return outcomes


def audit_report(handle: TransactionHandle, checks: Sequence[AuditCheck], *, already_committed: bool = False) -> AuditReport:
    """Return the outcome of all checks together."""
    return AuditReport(
        transaction_id=handle.transaction_id,
        table=handle.table,
        read_version=handle.read_version,
        passed=all(check.passed or check.severity != FAIL for check in checks),
        already_committed=already_committed,
        checks=tuple(checks),
    )
