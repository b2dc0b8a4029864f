"""Audits in whole Dag runs: what passes is published, what does not is not, and leaves nothing behind."""

from __future__ import annotations

import gc
import os
from datetime import UTC, datetime
from pathlib import Path

import deltalake
import pytest
from airflow.sdk import DAG, ExceptionRetryPolicy, RetryAction, XComArg

from airflow_delta import delta_transaction
from airflow_delta.exceptions import (
    ConcurrentAppendException,
    DeltaAuditFailedException,
    DeltaIllegalArgumentException,
    TransactionAlreadyCommittedException,
)
from airflow_delta.operators.audit import AUDIT_ERRORS, DeltaAuditOperator
from airflow_delta.operators.stage import DeltaStageFilesOperator
from support import readers
from support.running_tasks import context, pushed
from support.table import Table
from support.versions import MAPPED_TASKS_HAVE_THE_DEFAULTS_OF_THEIR_CLASS
from support.watching import commit, stage, start

pytestmark = pytest.mark.airflow

DAY = datetime(2026, 1, 1, tzinfo=UTC)
NEXT_DAY = datetime(2026, 1, 2, tzinfo=UTC)


def values(tables: str, name: str) -> list:
    return sorted(row["id"] for row in readers.rows(f"{tables}/{name}"))


def left_behind(tables: str, name: str) -> list[str]:
    return [file for _, _, files in os.walk(f"{tables}/{name}/staged") for file in files if file.endswith(".parquet")]


def verdicts(report: dict) -> dict[str, tuple[bool, str]]:
    return {check["name"]: (check["passed"], check["severity"]) for check in report["checks"]}


# -- runs -----------------------------------------------------------------------------------------------------------------------


def test_a_failed_audit_publishes_nothing_and_cleans_up(run_dag, tables):
    run = run_dag("audited_files", DAY, least=4)
    assert (run.state, run.state_of("txn.audit"), run.state_of("txn.commit")) == ("failed", "failed", "upstream_failed")
    assert run.tries_of("txn.audit") == 1, "the verdict is final"
    report = run.xcom("txn.audit")
    assert not report["passed"]
    assert verdicts(report) == {"min_rows": (False, "fail"), "rows_change": (True, "fail"), "value_range.id": (True, "fail")}
    assert report["checks"][0]["value"] == 3
    assert not deltalake.DeltaTable.is_deltatable(f"{tables}/audited_files")
    assert run.xcom("txn.abort")["outcome"] == "deleted"
    assert left_behind(tables, "audited_files") == []
    assert run.events() == []


@pytest.mark.slow
def test_a_passed_audit_publishes_and_a_rerun_has_nothing_to_audit(run_dag, tables):
    run = run_dag("audited_files", NEXT_DAY, least=3)
    assert run.state == "success"
    assert run.xcom("txn.audit")["passed"]
    assert values(tables, "audited_files") == [1, 2, 3]
    again = run_dag("audited_files", NEXT_DAY, least=99)
    assert again.state == "success"
    report = again.xcom("txn.audit")
    assert (report["passed"], report["alreadyCommitted"], report["checks"]) == (True, True, [])


@pytest.mark.slow
def test_mapped_stages_and_a_warning(run_dag, tables):
    run = run_dag("audited_mapped")
    assert run.state == "success"
    assert run.xcom("txn.audit")["checks"][0]["value"] == 4
    warned = run.xcom("txn.warning")
    assert (warned["passed"], verdicts(warned)) == (True, {"min_rows": (False, "warn")})
    assert warned["checks"][0]["value"] == 1
    assert values(tables, "audited_mapped") == [1, 2, 3, 4]


@pytest.mark.slow
@pytest.mark.spark
def test_sql_in_the_session_of_the_task(run_dag, tables, spark):
    table = Table(Path(tables) / "audited_sql", spark)
    table.write("SELECT id FROM range(5) UNION ALL SELECT 50L")
    failed = run_dag("audited_sql", DAY, largest=11)
    assert (failed.state, failed.state_of("txn.commit")) == ("failed", "upstream_failed")
    assert len(table.versions()) == 1
    report = failed.xcom("txn.audit")
    assert verdicts(report) == {
        "not too large": (False, "fail"),
        "nothing lost": (True, "fail"),
        "broken, but only a warning": (False, "warn"),
    }
    assert "largest = 12" in report["checks"][0]["message"]
    assert run_dag("audited_sql", NEXT_DAY, largest=100).state == "success"
    assert values(tables, "audited_sql") == [0, 1, 2, 3, 4, 10, 11, 12]
    assert not spark.catalog.tableExists("staged")


# The garbage collector warns of a pipe that is still open, as Airflow's SparkSubmitHook leaves it.
@pytest.mark.slow
@pytest.mark.spark
def test_a_submitted_audit_leaves_no_request_behind(run_dag, tables):
    run = run_dag("audited_submitted")
    gc.collect()
    assert run.state == "success"
    (check,) = run.xcom("txn.audit")["checks"]
    assert (check["passed"], check["value"]) == (True, True)
    assert "total = 6" in check["message"]
    staged = Path(tables) / "audited_submitted" / "staged"
    assert [path for path in staged.rglob("*") if path.is_file() and "audit" in str(path.relative_to(staged))] == []


# -- one task -------------------------------------------------------------------------------------------------------------------


def audit(handle: dict, *staged: dict, **kwargs) -> tuple[dict, DeltaAuditOperator]:
    """Return the context of an audit that asks for more rows than there are, and the audit."""
    operator = DeltaAuditOperator(task_id="audit", transaction=handle, staged=list(staged), min_rows=99, **kwargs)
    return context(operator), operator


@pytest.mark.usefixtures("outside_of_the_task_runner")
class TestOneTask:
    def test_the_report_of_a_failed_audit_is_in_xcom_unless_the_task_pushes_none(self, tmp_path):
        handle = start(str(tmp_path / "table"))
        _, staged = stage(handle)
        for pushes in (True, False):
            given, operator = audit(handle, staged, do_xcom_push=pushes)
            with pytest.raises(DeltaAuditFailedException, match="3 rows staged, at least 99 wanted"):
                operator.execute(given)
            assert [report["passed"] for report in pushed(given).values()] == ([False] if pushes else [])

    def test_an_audit_that_is_cleared_after_the_commit_keeps_nothing_back(self, tmp_path):
        handle = start(str(tmp_path / "table"))
        _, staged = stage(handle)
        committing = commit(handle, staged)
        committing.execute(context(committing))
        for reported in ([staged], []):  # the stage may be cleared with it, and have lost its XCom
            given, operator = audit(handle, *reported)
            report = operator.execute(given)
            assert (report["passed"], report["alreadyCommitted"], report["checks"]) == (True, True, [])

    def test_what_another_transaction_of_the_key_has_committed_only_counts_where_the_commit_goes_by_it(self, tmp_path):
        uri = str(tmp_path / "table")
        handles = [start(uri, transaction_key="day", rerun_policy=policy) for policy in ("skip", "fail", "replace", "skip")]
        reports = [stage(handle)[1] for handle in handles]
        committing = commit(handles[-1], reports[-1])
        committing.execute(context(committing))
        given, operator = audit(handles[0], reports[0])
        assert operator.execute(given)["alreadyCommitted"]
        for number, error in ((1, TransactionAlreadyCommittedException), (2, DeltaAuditFailedException)):
            given, operator = audit(handles[number], reports[number])
            with pytest.raises(error):
                operator.execute(given)


# -- wiring ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def dag():
    with DAG("audits", schedule=None) as dag:
        yield dag


def sources(argument) -> set[str]:
    return {task.task_id for task, _ in XComArg.iter_xcom_references(argument)}


def test_the_group_gives_an_audit_its_transaction_and_its_stages(dag):
    with delta_transaction("t", table="/lake/t"):
        one = DeltaStageFilesOperator(task_id="one")
        DeltaStageFilesOperator.partial(task_id="two").expand(path=["a", "b"])
        DeltaAuditOperator(task_id="all", min_rows=1)
        early = DeltaAuditOperator(task_id="early", min_rows=1)
        early >> DeltaStageFilesOperator(task_id="late", after=one.output)
        DeltaAuditOperator(task_id="given", staged=one.output, min_rows=1)
        DeltaAuditOperator.partial(task_id="mapped").expand(min_rows=[1, 2])
    audits = {name: dag.get_task(f"t.{name}") for name in ("all", "early", "given")}
    assert {name: sources(audit.transaction) for name, audit in audits.items()} == {name: {"t.start"} for name in audits}
    assert {name: sources(audit.staged) for name, audit in audits.items()} == {
        "all": {"t.one", "t.two", "t.late"},
        "early": {"t.one", "t.two"},
        "given": {"t.one"},
    }
    mapped = dag.get_task("t.mapped")
    assert sources(mapped.partial_kwargs["staged"]) == {"t.one", "t.two", "t.late"}
    assert mapped.upstream_task_ids == {"t.start", "t.one", "t.two", "t.late"}
    commit, abort = dag.get_task("t.commit"), dag.get_task("t.abort")
    assert sources(commit.staged) == {"t.one", "t.two", "t.late"}, "an audit stages nothing"
    assert {"t.all", "t.given", "t.mapped"} <= commit.upstream_task_ids
    assert {"t.all", "t.early", "t.given", "t.mapped"} <= abort.upstream_task_ids
    dag.check_cycle()


def test_an_audit_is_no_stage(dag):
    with pytest.raises(DeltaIllegalArgumentException, match="has no stages"), delta_transaction("t", table="/lake/t"):
        DeltaAuditOperator(task_id="audit", min_rows=1)


def test_an_audit_of_another_transaction_stays_with_it(dag):
    with delta_transaction("outer", table="/lake/outer"):
        DeltaStageFilesOperator(task_id="stage")
        with delta_transaction("inner", table="/lake/inner"):
            DeltaStageFilesOperator(task_id="stage")
            DeltaAuditOperator(task_id="audit", min_rows=1)
    audit = dag.get_task("outer.inner.audit")
    assert (sources(audit.transaction), sources(audit.staged)) == ({"outer.inner.start"}, {"outer.inner.stage"})


def test_an_approval_stands_before_the_commit_and_abort_runs_without_it(dag_bags):
    examples, _ = dag_bags
    dag = examples.dags["delta_approval"]
    assert dag.get_task("price_list.approve").downstream_task_ids == {"price_list.commit"}
    assert "price_list.audit" in dag.get_task("price_list.approve").upstream_task_ids
    abort = dag.get_task("price_list.abort")
    assert abort.is_teardown
    assert "price_list.approve" not in abort.upstream_task_ids, "a rejected approval skips what comes right after it"


def test_a_verdict_is_final_and_a_lost_connection_is_not():
    verdict, conflict = DeltaAuditFailedException("failed", failed=("a",)), ConcurrentAppendException("conflict")
    assert AUDIT_ERRORS.evaluate(verdict, 1, 3).action is RetryAction.FAIL
    assert AUDIT_ERRORS.evaluate(conflict, 1, 3).action is RetryAction.FAIL
    assert AUDIT_ERRORS.evaluate(OSError("reset"), 1, 3).action is not RetryAction.FAIL
    if MAPPED_TASKS_HAVE_THE_DEFAULTS_OF_THEIR_CLASS:
        mapped = DeltaAuditOperator.partial(task_id="mapped").expand(min_rows=[1])
        assert mapped.partial_kwargs["retry_policy"] is AUDIT_ERRORS
    own = ExceptionRetryPolicy(rules=[])
    assert DeltaAuditOperator(task_id="own", default_args={"retry_policy": own}).retry_policy is own
