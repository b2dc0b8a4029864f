"""Which operators' Spark work a job may do, and each of them by one: what is planned travels as a file, a program does it in a
session of its own, and another task collects. Whole Dag runs: ``test_job_runs.py``.
"""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowSkipException

from airflow_delta import delta_job, delta_transaction
from airflow_delta.contract.changes import AddConstraint
from airflow_delta.exceptions import (
    ChecksOutdatedException,
    ConcurrentAppendException,
    DeltaAuditFailedException,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    InvariantViolationException,
    StagingException,
)
from airflow_delta.operators.alter import DeltaAlterTableOperator
from airflow_delta.operators.audit import DeltaAuditOperator
from airflow_delta.operators.copy_into import DeltaCopyIntoOperator
from airflow_delta.operators.merge import DeltaMergeOperator
from airflow_delta.operators.optimize import DeltaOptimizeOperator
from airflow_delta.operators.scd2 import DeltaScd2MergeOperator
from airflow_delta.operators.sql import DeltaStageSqlOperator
from airflow_delta.spark.job import delta_stage
from airflow_delta.tasks.spark.session import SessionParameters
from airflow_delta.tasks.stage.application import ApplicationParameters, ApplicationStage
from support.running_tasks import context, pushed
from support.table import Table
from support.task_classes import task_classes
from support.watching import commit, start

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.usefixtures("outside_of_the_task_runner")]

WITH_SPARK_WORK = [
    kind for kind in (*task_classes(), ApplicationStage) if issubclass(kind, SessionParameters | ApplicationParameters)
]


@pytest.mark.parametrize("kind", WITH_SPARK_WORK, ids=lambda kind: kind.__name__)
def test_every_operator_with_spark_work_says_whether_a_job_does_it(kind):
    """A new one has to decide: ``by_job`` is true, or says why not and what to use."""
    assert len(WITH_SPARK_WORK) > 18
    if kind.by_job is True:
        return
    assert isinstance(kind.by_job, str), f"{kind.__name__}.by_job"
    with pytest.raises(DeltaIllegalArgumentException, match=f"{kind.__name__}, which {kind.by_job[:20]}"):
        delta_job("job", kind)


def test_what_a_job_does():
    accepted = {kind.__name__ for kind in WITH_SPARK_WORK if kind.by_job is True}
    assert accepted == {
        *("ApplicationStage", "DeltaAlterTableOperator", "DeltaAuditOperator", "DeltaCopyIntoOperator", "DeltaDeleteOperator"),
        *("DeltaMergeOperator", "DeltaOptimizeOperator", "DeltaReorgOperator", "DeltaScd2MergeOperator", "DeltaStageSqlOperator"),
        "DeltaUpdateOperator",
    }


class Job:
    """The tasks of a ``delta_job``, run one after the other for an open transaction."""

    def __init__(self, handle: dict[str, Any], kind: Any, **arguments: Any) -> None:
        with (
            DAG("jobs", schedule=None, start_date=datetime(2026, 1, 1)) as self.dag,
            delta_transaction("txn", table=handle["table"]),
        ):
            if kind is DeltaAuditOperator:  # there must be a stage
                DeltaMergeOperator(task_id="other", condition="true", source="SELECT 1")
            with delta_job("job", kind, **arguments) as job:
                EmptyOperator(task_id="run")
        self.job, self.handle = job, handle

    def plan(self) -> Any:
        task = self.job.plan
        self._open(task)
        self.context = context(task, dag=self.dag)
        try:
            self.planned = task.execute(self.context)
        except AirflowSkipException:
            self.planned = pushed(self.context)["return_value"]
        return self.planned

    def run(self, spark: Any) -> None:
        """Do what the program does."""
        delta_stage(spark, pushed(self.context)["request"]).run()

    def collect(self) -> dict[str, Any]:
        task = self.job.collect
        self._open(task)
        task.planned = self.planned
        return task.execute(context(task, dag=self.dag))

    def whole(self, spark: Any) -> dict[str, Any]:
        self.plan()
        self.run(spark)
        return self.collect()

    def _open(self, task: Any) -> None:
        task.transaction = self.handle
        task.planned, planned = None, getattr(task, "planned", None)
        task.render_template_fields({"ds": "2026-01-02"})
        task.planned = planned


@pytest.fixture
def table(tmp_path, spark) -> Table:
    table = Table(tmp_path / "table", spark)
    table.write("SELECT id, 0L AS v FROM range(3)")
    return table


def publish(handle, *staged):
    operator = commit(handle, *staged)
    return operator.execute(context(operator))


def publish_of(job: Job, handle: dict[str, Any], staged: dict[str, Any]) -> dict[str, Any]:
    """Publish by the commit of the job's own Dag, which shows it what the stage may do."""
    operator = job.dag.get_task("txn.commit")
    operator.transaction, operator.staged = handle, [staged]
    return operator.execute(context(operator, dag=job.dag))


# -- MERGE and SQL: what they read travels with them --------------------------------------------------------------------------


@pytest.mark.parametrize("wins", [None, 50])
def test_a_query_that_reads_the_table(table, spark, wins):
    """With its parameters as what they are. Whoever adds rows meanwhile that it would have read is a conflict."""
    handle = start(table.uri, transaction_key="mine", isolation_level="Serializable")
    sql = "SET a.b=1; SELECT id + :by AS id, CAST(:price * 4 AS BIGINT) + day(:day) AS v FROM {{ table }}"
    given = {"by": 10, "price": Decimal("2.5"), "day": date(2026, 1, 7)}
    staged = Job(handle, DeltaStageSqlOperator, sql=sql, where="id < 2", parameters=given).whole(spark)
    assert staged["reads"]["predicates"] == ["`id` < 2"]
    assert not staged["reads"]["wholeTable"]
    if wins is not None:
        table.write("SELECT 1L AS id, 9L AS v")
        with pytest.raises(ConcurrentAppendException):
            publish(handle, staged)
        return
    publish(handle, staged)
    assert table.rows() == [(0, 0), (1, 0), (10, 17), (11, 17), (2, 0)]


def test_other_tables_of_a_query(table, tmp_path, spark):
    """At given versions, and new rows of others, which the commit records."""
    dim, events = Table(tmp_path / "dim", spark), Table(tmp_path / "events", spark)
    for other in (dim, events):
        other.write("SELECT 1L AS k, 5L AS x")
    dim.write("SELECT 1L AS k, 100L AS x")
    handle = start(table.uri, transaction_key="mine")
    staged = Job(
        handle,
        DeltaStageSqlOperator,
        sql="SELECT events.k AS id, events.x + dim.x AS v FROM events JOIN dim ON events.k = dim.k",
        read_versions={dim.uri: 0},
        new_rows={events.uri: {"consumer": "me"}},
    ).whole(spark)
    assert [source["version"] for source in staged["sources"]] == [0]
    publish(handle, staged)
    assert (1, 10) in table.rows()
    assert not {"dim", "events", "airflow_delta_table"} & {each.name for each in spark.catalog.listTables()}


def test_the_source_of_a_merge_reads_the_table(table, spark):
    handle = start(table.uri, transaction_key="mine")
    source = "SELECT max(id) + 1 AS id, count(*) AS v FROM {{ table }}"
    staged = Job(handle, DeltaMergeOperator, condition="target.id = source.id", source=source).whole(spark)
    assert staged["reads"]["wholeTable"]
    publish(handle, staged)
    assert table.rows() == [(0, 0), (1, 0), (2, 0), (3, 3)]


def test_a_job_may_ask_for_what_its_operator_does(table, spark):
    """The commit looks in the Dag file whether a stage may add columns: the task that collects is the operator, too."""
    handle = start(table.uri, transaction_key="mine")
    source = "SELECT 9L AS id, 9L AS v, 'x' AS more"
    staged = Job(handle, DeltaMergeOperator, condition="target.id = source.id", source=source, merge_schema=True)
    publish_of(staged, handle, staged.whole(spark))
    assert table.rows() == [(0, 0, None), (1, 0, None), (2, 0, None), (9, 9, "x")]


# -- SCD2 ---------------------------------------------------------------------------------------------------------------------

HISTORY = "SELECT {} AS id, '{}' AS v, DATE'{}' AS valid_from, CAST(NULL AS DATE) AS valid_to, true AS is_current"
FROM, UNTIL = date(2026, 1, 1), date(2026, 1, 5)


@pytest.fixture
def dimension(tmp_path, spark) -> Table:
    table = Table(tmp_path / "dimension", spark)
    table.write(" UNION ALL ".join(HISTORY.format(key, "a", FROM) for key in (1, 2)))
    return table


def test_a_history(dimension, spark):
    """Versions are computed where the job is, of the version of the table that was planned."""
    handle = start(dimension.uri, transaction_key="mine")
    job = Job(
        handle,
        DeltaScd2MergeOperator,
        source=f"SELECT 1 AS id, 'b' AS v, DATE'{UNTIL}' AS at UNION ALL SELECT 3, 'c', DATE'{UNTIL}'",
        keys="id",
        effective_at="at",
    )
    job.plan()
    dimension.write(HISTORY.format(9, "theirs", FROM))  # which is no conflict: another key
    job.run(spark)
    staged = job.collect()
    assert not staged["reads"]["wholeTable"]
    publish(handle, staged)
    assert dimension.rows() == [
        (1, "a", FROM, UNTIL, False),
        (1, "b", UNTIL, None, True),
        (2, "a", FROM, None, True),
        (3, "c", UNTIL, None, True),
        (9, "theirs", FROM, None, True),
    ]


def test_a_full_snapshot_depends_on_the_whole_table(dimension, spark):
    handle = start(dimension.uri, transaction_key="mine")
    source = f"SELECT id, v, DATE'{UNTIL}' AS at FROM {{{{ table }}}} WHERE id = 1"
    given = {"source": source, "keys": "id", "effective_at": "at", "full_snapshot": True}
    staged = Job(handle, DeltaScd2MergeOperator, **given).whole(spark)
    assert staged["reads"]["wholeTable"]
    publish(handle, staged)
    assert dimension.rows() == [(1, "a", FROM, None, True), (2, "a", FROM, UNTIL, False)]


# -- COPY INTO ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path):
    directory = tmp_path / "in"
    directory.mkdir()
    (directory / "a.csv").write_text("id,v\n10,1\n11,1\n")
    return directory


def copy(handle, files, **given) -> Job:
    return Job(handle, DeltaCopyIntoOperator, source=str(files), format="csv", format_options={"header": True}, **given)


def test_files_are_loaded_once(table, files, spark):
    handle = start(table.uri, transaction_key="mine")
    job = copy(handle, files)
    job.plan()
    (files / "b.csv").write_text("id,v\n12,1\n")  # after the plan: the next run has it
    job.run(spark)
    publish(handle, job.collect())
    assert table.rows()[2:] == [(10, 1), (11, 1), (2, 0)]
    second = start(table.uri, transaction_key="second", key_check="off")
    publish(second, copy(second, files).whole(spark))
    assert (12, 1) in table.rows()
    assert len(table.rows()) == 6
    third = start(table.uri, transaction_key="third", key_check="off")
    assert "staged" in copy(third, files).plan()


def test_a_file_that_changes_while_the_job_reads(table, files, spark):
    job = copy(start(table.uri, transaction_key="mine"), files)
    job.plan()
    job.run(spark)
    (files / "a.csv").write_text("id,v\n10,1\n11,1\n12,1\n")
    with pytest.raises(DeltaIllegalStateException, match="changed since"):
        job.collect()


def test_a_stage_is_skipped_with_its_plan(table, files):
    (files / "a.csv").unlink()
    job = copy(start(table.uri, transaction_key="mine"), files, skip_if_none=True)
    assert "no files" in job.plan()["skipped"]
    with pytest.raises(AirflowSkipException):
        job.collect()


def test_a_job_that_was_to_load_other_files(table, files, spark):
    job = copy(start(table.uri, transaction_key="mine"), files)
    job.plan()
    job.run(spark)
    job.job.collect.copy_source = str(files / "a.csv")
    other = copy(start(table.uri, transaction_key="other"), files)
    other.plan()
    job.planned = {"directory": other.planned["directory"]}
    with pytest.raises(StagingException):
        job.collect()


def test_the_worker_loads_by_itself_with_arrow():
    with pytest.raises(DeltaIllegalArgumentException, match="not done by an application"):
        delta_job("job", DeltaCopyIntoOperator, source="/in", format="parquet", engine="arrow")


# -- the table itself ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("condition", "fits"), [("v >= 0", True), ("id < 2", False)])
def test_a_constraint(table, spark, condition, fits):
    handle = start(table.uri, transaction_key="mine")
    job = Job(handle, DeltaAlterTableOperator, changes=[AddConstraint("c", condition)])
    job.plan()
    if not fits:
        with pytest.raises(InvariantViolationException):
            job.run(spark)
        with pytest.raises(InvariantViolationException):
            job.collect()
        return
    job.run(spark)
    version = publish_of(job, handle, job.collect())["version"]
    assert table.actions(version)["metaData"][0]["configuration"]["delta.constraints.c"] == condition


def test_rows_in_order(table, spark):
    table.write("SELECT id, -id AS v FROM range(3, 6)")
    before = len(table.live())
    handle = start(table.uri, transaction_key="mine")
    staged = Job(handle, DeltaOptimizeOperator, z_order_by=["v"]).whole(spark)
    assert (staged["operation"], staged["numRemovedFiles"]) == ("OPTIMIZE", before)
    publish(handle, staged)
    assert len(table.live()) == 1


# -- audits -------------------------------------------------------------------------------------------------------------------


def audited(table, spark, checks=None, **given) -> tuple[dict[str, Any], Any, Job]:
    handle = start(table.uri, transaction_key="mine")
    staged = Job(handle, DeltaStageSqlOperator, sql="SELECT 7L AS id, 70L AS v").whole(spark)
    queries = {"positive": "SELECT min(v) > 0, min(v) AS least FROM staged"} if checks is None else checks
    return handle, staged, Job(handle, DeltaAuditOperator, checks=queries, staged=[staged], **given)


def test_an_audit(table, spark):
    handle, staged, job = audited(table, spark, min_rows=1, rows_change={"max_ratio": 2}, holds_at="commit")
    job.plan()
    table.write("SELECT 8L AS id, 0L AS v")  # the report is about the version that was planned
    job.run(spark)
    report = job.collect()
    assert report["passed"]
    assert {check["name"]: check["message"] for check in report["checks"]}["positive"] == "the query says true; least = 70"
    assert {check["name"] for check in report["checks"]} == {"min_rows", "rows_change", "positive"}
    assert report["version"] == 0
    assert report["stages"] == {handle["transactionId"]: {staged["stage"]: staged["attempt"]}}
    assert {each["name"] for each in report["held"]} >= {"rows_change of txn.job.collect"}
    assert report == job.collect(), "of a retry"


def test_an_audit_that_fails(table, spark):
    _, _, job = audited(table, spark, {"small": "SELECT max(v) < 10 FROM result"})
    job.plan()
    job.run(spark)
    with pytest.raises(DeltaAuditFailedException, match="small"):
        job.collect()


def test_an_audit_without_queries_needs_no_job(table, spark):
    handle, staged, job = audited(table, spark, {}, max_rows=1)
    assert job.plan() == {"unasked": True}
    report = job.collect()
    assert report["passed"]
    assert report["stages"] == {handle["transactionId"]: {staged["stage"]: staged["attempt"]}}
    job.job.collect.checks = {"x": "SELECT true"}
    with pytest.raises(StagingException, match="had none when it was planned"):
        job.collect()


def test_an_audit_of_other_attempts(table, spark):
    """A stage ran again while the job looked at the rows of its former attempt."""
    handle, _, job = audited(table, spark)
    job.plan()
    job.run(spark)
    job.job.collect.staged = [Job(handle, DeltaStageSqlOperator, sql="SELECT 7L AS id, -1L AS v").whole(spark)]
    with pytest.raises(ChecksOutdatedException, match="have run again since"):
        job.collect()


def test_an_audit_whose_job_left_nothing(table, spark):
    _, _, job = audited(table, spark)
    job.plan()
    with pytest.raises(StagingException, match="has left no report at"):
        job.collect()


def test_a_job_of_another_kind_is_no_audit(table, spark):
    """A stage with rows, planned under the id of the audit, has no verdict."""
    handle, _, job = audited(table, spark)
    stage = Job(handle, DeltaStageSqlOperator, sql="SELECT 1L AS id, 1L AS v")
    stage.plan()
    stage.run(spark)
    job.planned = stage.planned
    with pytest.raises(StagingException, match="no audit"):
        job.collect()


def test_the_audit_of_published_rows(table, spark):
    handle, staged, job = audited(table, spark)
    job.plan()
    job.run(spark)
    publish(handle, staged)
    assert job.collect()["alreadyCommitted"]
