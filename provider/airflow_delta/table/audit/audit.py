"""An audit between stages and commit: what the commit would do to the table, and whether it should.

The checks use statistics here (:mod:`airflow_delta.table.audit.statistics`), and SQL on Spark
(:mod:`airflow_delta.spark.audit`). Both judge the version that the transaction reads, not what
others commit until the transaction does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow.compute as pc

from airflow_delta.contract.audit import (
    BEFORE,
    FAIL,
    RESULT,
    STAGED,
    VIEWS,
    WARN,
    AuditArguments,
    AuditCheck,
    AuditReport,
    HeldCheck,
    SqlAnswer,
    SqlCheck,
    stages_of,
)
from airflow_delta.contract.files import attempt_directory, transaction_directory
from airflow_delta.contract.payloads import ScanPlan, StagedWrite, TransactionHandle
from airflow_delta.contract.queries import check_query
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.log.actions.actions import AddFile, RemoveFile
from airflow_delta.log.actions.reconciliation import FileKey, file_key
from airflow_delta.log.statistics.statistics import live_records, num_records
from airflow_delta.table.audit.newest import OnNewest, on_newest
from airflow_delta.table.commit.commit import StagedCommit, staged_commit
from airflow_delta.table.stage.conflicts import check_stages
from airflow_delta.table.stage.data_change import REARRANGING
from airflow_delta.table.stage.load import check_reported, parse_staged
from airflow_delta.table.stage.scan import scan_of
from airflow_delta.table.stage.stage_view import open_stage
from airflow_delta.table.stage.view import view_of

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.delta_log import DeltaLog

OPERATION = "AUDIT"

_COPIED = re.compile(r"[0-9a-f]{8}-copied(-\d+)?/")  # directories of airflow_delta.spark with rows that stay as they were


class AuditedTable:
    """The table before and after the commit of some stages, as far as a check asks for it.

    :ivar handle: of the transaction.
    :ivar target: what the table is as the stages leave it.
    :ivar writes: the staged writes.
    """

    def __init__(self, log: DeltaLog, handle: TransactionHandle, staged: Sequence[StagedWrite | Mapping[str, Any]]) -> None:
        """Load staged writes and find out what the commit would add.

        :raises MissingStageException: if no stage has reported.
        :raises StageConflictException: if the commit would refuse the staged writes; other errors are those of the commit.
        """
        self.log = log
        self.handle = handle
        self.writes = parse_staged(handle, staged)
        check_reported(handle, self.writes, {})
        self.view = view_of(log, handle, self.writes)
        check_stages(self.view)
        if len(self.view.stages) > 1 or handle.rerun_policy == "replace":  # a single stage cannot contradict itself
            self._commit.txn.prepare_commit(self._commit.actions, self._commit.operation)
        self.target = self.view.target

    @cached_property
    def _commit(self) -> StagedCommit:
        """What would be committed, put together as the commit does it."""
        return staged_commit(self.view)

    @cached_property
    def _newest(self) -> OnNewest | None:
        """What would be committed after the newest version, if others have committed since that which was read."""
        return on_newest(self.view)

    @property
    def snapshot(self) -> Snapshot:
        """Return the version before the commit: the newest one, or that which was read if the commit would conflict."""
        return self.view.snapshot if self._newest is None else self._newest.snapshot

    @property
    def version(self) -> int:
        """Return the version that the checks see before the commit; -1 if there is no table."""
        return self.handle.read_version if self._newest is None else self._newest.snapshot.version

    @cached_property
    def added(self) -> list[AddFile]:
        """Return the files that the commit adds."""
        return self._commit.replaced.adds if self._newest is None else self._newest.adds

    @cached_property
    def staged(self) -> list[AddFile]:
        """Return the files with rows that the stages bring.

        Left out are files with only copies of rows that stay (copies of another stage's rows count), files that only get another
        deletion vector, and rows of the version read that OPTIMIZE or REORG moved to other files. Rows of a write with
        ``data_change=False`` are judged like others: that they are unchanged is only a claim.
        """
        owners = {file_key(add): stage.write for stage in self.view.stages for add in stage.adds}
        staged = self._commit.replaced.adds
        return [add for add in staged if self._brings_rows(add, owners[file_key(add)])]

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
        """Return the files that the commit removes, by key."""
        removes = self._commit.replaced.removes if self._newest is None else self._newest.removes
        return {file_key(file): file for file in removes}

    # -- rows -----------------------------------------------------------------------------------------------------------------

    @property
    def rows_staged(self) -> int | None:
        """Return how many rows the stages bring, by their totals; ``None`` if a stage does not know."""
        counts = [write.num_records for write in self.writes]
        return None if any(count is None for count in counts) else sum(count or 0 for count in counts)

    @cached_property
    def rows_before(self) -> int | None:
        """Return how many rows :attr:`version` has; ``None`` if the statistics of a file lack the number."""
        if self.handle.read_version < 0:
            return 0
        files = self.snapshot.files(columns=("stats", "deletion_vector"))
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
        """Return how many rows the table has after the commit; ``None`` if statistics lack the number."""
        before = self.rows_before
        changes = [*((live_records(file), 1) for file in self.added), *((live_records(f), -1) for f in self.removed.values())]
        if before is None or any(rows is None for rows, _ in changes):
            return None
        return before + sum((rows or 0) * sign for rows, sign in changes)

    # -- views ----------------------------------------------------------------------------------------------------------------

    def scan(self, name: str, *, spark_table_uri: str | None = None) -> ScanPlan:
        """Return the plan to read a view of :data:`~airflow_delta.contract.audit.VIEWS`."""
        view = replace(self.view, spark_table_uri=spark_table_uri)
        if name == STAGED:
            return scan_of(view, self.staged)
        files = self.snapshot.add_files() if self.handle.read_version >= 0 else []
        if name == BEFORE:  # of a table that does not exist yet: no rows, and the columns that it gets
            return scan_of(view, files, target=view.definition if self.handle.read_version >= 0 else self.target)
        kept = [file for file in files if file_key(file) not in self.removed]
        return scan_of(view, [*kept, *self.added])


# -- SQL ----------------------------------------------------------------------------------------------------------------------


def parse_sql_checks(checks: Mapping[str, Any] | None, *, on_failure: str = FAIL) -> list[SqlCheck]:
    """Return the SQL checks of an author: a query by name, or a mapping with ``sql`` and ``on_failure``.

    :param on_failure: for checks that do not set it.
    :raises DeltaIllegalArgumentException: if a check is neither, or would run something on Spark's driver.
    """
    parsed = []
    for name, check in by_name("checks", checks).items():
        given = {"sql": check} if isinstance(check, str) else check
        if not isinstance(given, Mapping) or set(given) - {"sql", "on_failure"} or not str(given.get("sql") or "").strip():
            raise DeltaIllegalArgumentException(
                f"The check {name!r} must be a query, or a mapping with sql and on_failure, got {check!r}"
            )
        check_query(str(given["sql"]), whose=f"the check {name!r}")
        severity = check_severity(f"on_failure of the check {name!r}", given.get("on_failure", on_failure))
        parsed.append(SqlCheck(name=str(name), sql=str(given["sql"]), on_failure=severity))
    return parsed


def by_name(name: str, given: Any) -> Mapping[str, Any]:
    """Return checks by name or column; a template that should give a mapping may have rendered text.

    :raises DeltaIllegalArgumentException: if the value is not a mapping.
    """
    if given is None or given == "":
        return {}
    if not isinstance(given, Mapping):
        raise DeltaIllegalArgumentException(f"{name} must be a mapping, got {given!r}")
    return given


def check_severity(name: str, value: Any) -> str:
    """Return ``fail`` or ``warn``.

    :raises DeltaIllegalArgumentException: if the value is neither.
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

    :param attempt: unique name of this execution (:func:`airflow_delta.contract.files.new_attempt`).
    """
    text = "\n".join(check.sql for check in checks)
    named = [view for view in VIEWS if re.search(rf"\b{view}\b", text, re.IGNORECASE)]  # a false match only adds a view
    views = {view: table.scan(view, spark_table_uri=spark_table_uri).to_dict() for view in named}
    stage = open_stage(
        table.log,
        table.handle,
        task_id=task_id,
        map_index=map_index,
        attempt=attempt,
        spark_table_uri=spark_table_uri,
    )
    return replace(stage, given_target=table.target).request(
        AuditArguments(checks=tuple(checks), views=views), operation=OPERATION, mode="audit"
    )


def plan_checks_of_tables(
    tables: Mapping[str, AuditedTable],
    checks: Sequence[SqlCheck],
    *,
    task_id: str,
    map_index: int = -1,
    attempt: str,
    spark_table_uri: str | None = None,
) -> StageRequest:
    """Return what Spark is asked about several tables: for a table ``t`` the views ``t``, ``t_staged`` and ``t_before``.

    :param tables: by the name of their views; the request is one of the first.
    """
    text = "\n".join(check.sql for check in checks)
    views = {}
    for name, table in tables.items():
        for view, of in ((name, RESULT), (f"{name}_{STAGED}", STAGED), (f"{name}_{BEFORE}", BEFORE)):
            if re.search(rf"\b{re.escape(view)}\b", text, re.IGNORECASE):
                views[view] = table.scan(of).to_dict()
    first = next(iter(tables.values()))
    stage = open_stage(
        first.log, first.handle, task_id=task_id, map_index=map_index, attempt=attempt, spark_table_uri=spark_table_uri
    )
    return replace(stage, given_target=first.target).request(
        AuditArguments(checks=tuple(checks), views=views), operation=OPERATION, mode="audit"
    )


def judge_answers(checks: Sequence[SqlCheck], report: StageReport) -> list[AuditCheck]:
    """Return the outcome of SQL checks; a null or a missing answer is a failure."""
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


def audit_report(
    handle: TransactionHandle,
    checks: Sequence[AuditCheck],
    writes: Sequence[StagedWrite] = (),
    held: Sequence[HeldCheck] = (),
    *,
    version: int | None = None,
    definition: str | None = None,
    already_committed: bool = False,
) -> AuditReport:
    """Return the outcome of all checks together.

    :param writes: what was judged.
    :param held: what the commit asks again.
    :param version: that was seen; default: the version that was read.
    :param definition: digest of the checks.
    """
    return AuditReport(
        transaction_id=handle.transaction_id,
        table=handle.table,
        read_version=handle.read_version,
        version=handle.read_version if version is None else version,
        stages=stages_of(writes),
        held=tuple(held),
        definition=definition,
        passed=all(check.passed or check.severity != FAIL for check in checks),
        already_committed=already_committed,
        checks=tuple(checks),
    )
