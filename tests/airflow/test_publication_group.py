"""What ``delta_publication`` makes of the transactions inside it, and what it refuses: read off the Dag, nothing runs."""

from __future__ import annotations

from datetime import datetime

import pytest
from airflow.sdk import DAG, TaskGroup, XComArg, task, task_group

from airflow_delta import delta_publication, delta_transaction
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.operators.alter import DeltaAlterTableOperator
from airflow_delta.operators.audit import DeltaAuditOperator
from airflow_delta.operators.clone import DeltaCloneOperator
from airflow_delta.operators.convert import DeltaConvertOperator
from airflow_delta.operators.copy_into import DeltaCopyIntoOperator
from airflow_delta.operators.delete_update import DeltaDeleteOperator
from airflow_delta.operators.drop_feature import DeltaDropFeatureOperator, DeltaRemoveColumnMappingOperator
from airflow_delta.operators.optimize import DeltaReorgOperator
from airflow_delta.operators.publication import DeltaAuditPublicationOperator
from airflow_delta.operators.restore import DeltaRestoreOperator
from airflow_delta.operators.row_tracking import DeltaEnableRowTrackingOperator
from airflow_delta.operators.stage import DeltaStageFilesOperator
from airflow_delta.operators.statistics import DeltaComputeStatisticsOperator
from airflow_delta.operators.stream import DeltaStreamOperator
from airflow_delta.operators.vacuum import DeltaVacuumOperator


@pytest.fixture
def dag():
    with DAG("a_dag", schedule=None, start_date=datetime(2026, 1, 1)) as dag:
        yield dag


def sources(value) -> set[str]:
    return {task.task_id for task, _ in XComArg.iter_xcom_references(value)}


def before(dag, task_id) -> set[str]:
    return dag.get_task(task_id).upstream_task_ids


def transaction(name: str, **kwargs):
    with delta_transaction(name, **{"table": f"/lake/{name}", **kwargs}) as group:
        DeltaStageFilesOperator(task_id="stage", path="rows")
    return group


def stream(**kwargs):
    return DeltaStreamOperator(table="/t", checkpoint_location="/c", python_callable=print, **kwargs)


def test_one_commit_one_abort_one_watcher(dag):
    @task
    def approve():
        """Stands alone in the block; the commit waits for it nevertheless."""

    with delta_publication("month_end") as publication:
        with delta_transaction("orders", table="/lake/orders") as orders:
            DeltaAuditOperator(task_id="audit", staged=DeltaStageFilesOperator(task_id="stage", path="a").output, min_rows=1)
        transaction("lines")
        DeltaAuditPublicationOperator(task_id="totals", checks={"sums": "SELECT true"})
        approve()

    names = {"orders.start", "orders.stage", "orders.audit", "lines.start", "lines.stage", "totals", "approve"}
    assert {t.task_id for t in dag.tasks} == {f"month_end.{name}" for name in (*names, "commit", "abort", "watcher")}
    starts, stages = ({f"month_end.{table}.{role}" for table in ("orders", "lines")} for role in ("start", "stage"))
    assert before(dag, "month_end.approve") == starts
    assert before(dag, "month_end.totals") == starts | stages
    assert before(dag, "month_end.commit") == {
        *(f"month_end.{name}" for name in ("orders.audit", "totals", "approve")),
        *starts,
        *stages,
    }
    commit = dag.get_task("month_end.commit")
    assert [sources(handle) for handle in commit.transactions] == [{"month_end.orders.start"}, {"month_end.lines.start"}]
    assert [sources(staged) for staged in commit.staged] == [{"month_end.orders.stage"}, {"month_end.lines.stage"}]
    assert [asset.uri for asset in commit.outlets] == ["delta://file/lake/orders", "delta://file/lake/lines"]
    assert before(dag, "month_end.abort") == {"month_end.commit", "month_end.totals", "month_end.orders.audit", *starts, *stages}
    assert before(dag, "month_end.watcher") == {"month_end.abort"}
    assert {t.task_id: t.on_failure_fail_dagrun for t in dag.tasks if t.is_teardown} == {
        "month_end.abort": False,
        "month_end.watcher": True,
    }
    assert sources(publication.result) == {"month_end.commit"}
    with pytest.raises(DeltaIllegalArgumentException, match="has no commit of its own"):
        orders.result  # noqa: B018


def test_what_comes_after_the_publication_waits_for_its_commit(dag):
    @task
    def report():
        """Downstream."""

    with delta_publication("p") as publication:
        transaction("a")
    publication >> report()
    assert before(dag, "report") == {"p.commit"}


def test_options_reach_the_commit_and_one_policy_all_starts(dag):
    with delta_publication(
        "p", rerun_policy="replace", on_late_conflict="keep", anchor="b", intents=False, patience=5, commit_kwargs={"retries": 7}
    ):
        transaction("a")
        transaction("b", rerun_policy="replace")
    commit = dag.get_task("p.commit")
    assert (commit.on_late_conflict, commit.anchor, commit.intents, commit.patience, commit.retries) == ("keep", 1, False, 5, 7)
    assert {dag.get_task(f"p.{name}.start").rerun_policy for name in "ab"} == {"replace"}


def test_tables_of_a_list_in_the_dag_file(dag):
    with delta_publication("p"):
        for name in ("a", "b", "c"):
            transaction(name)
    assert len(dag.get_task("p.commit").transactions) == 3


def test_a_mapped_number_of_tables_is_refused_with_the_reason(dag):
    @task_group
    def each(name):
        with delta_transaction("t", table=name):
            DeltaStageFilesOperator(task_id="stage", path="rows")

    why = "How many tables a publication has, and which, is fixed"
    with pytest.raises(DeltaIllegalArgumentException, match=why), delta_publication("p"):
        each.expand(name=["/lake/a", "/lake/b"])


def test_a_group_mapped_around_a_publication_is_one_for_each_value(dag):
    @task_group
    def region(name):
        with delta_publication("p"):
            transaction("a", transaction_key="{{ ti.map_index }}-a")
            transaction("b", transaction_key="{{ ti.map_index }}-b")

    region.expand(name=["eu", "us"])
    assert dag.get_task("region.p.commit").get_closest_mapped_task_group().group_id == "region"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: DeltaRestoreOperator(task_id="x", table="/lake/t", version=1), "RESTORE replaces the whole table"),
        (lambda: DeltaCloneOperator(task_id="x", source="/lake/s", table="/lake/t"), "CLONE replaces a table"),
        (lambda: DeltaConvertOperator(task_id="x", table="/lake/t"), "CONVERT makes a table"),
        (lambda: DeltaCopyIntoOperator(task_id="x", source="/raw", format="csv"), "the files that it loads count as loaded"),
        (lambda: DeltaVacuumOperator(task_id="x", table="/lake/t"), "VACUUM deletes files"),
        (lambda: DeltaReorgOperator(task_id="x"), "REORG rewrites files"),
        (
            lambda: stream(task_id="x"),
            "a stream commits each batch",
        ),
        (lambda: DeltaComputeStatisticsOperator(task_id="x", table="/lake/t"), "it commits to its table by itself"),
        (lambda: DeltaDropFeatureOperator(task_id="x", table="/lake/t", feature="deletionVectors"), "a feature is dropped"),
        (lambda: DeltaRemoveColumnMappingOperator(task_id="x", table="/lake/t"), "it rewrites all files"),
        (lambda: DeltaEnableRowTrackingOperator(task_id="x", table="/lake/t"), "row tracking is switched on"),
    ],
    ids=[
        "restore",
        "clone",
        "convert",
        "copy into",
        "vacuum",
        "reorg",
        "stream",
        "statistics",
        "feature",
        "mapping",
        "row tracking",
    ],
)
@pytest.mark.parametrize("inside", [True, False], ids=["in a transaction", "beside"])
def test_operations_that_cannot_be_taken_back_together(dag, make, why, inside):
    def block():
        with delta_publication("p"):
            with delta_transaction("t", table="/lake/t"):
                DeltaStageFilesOperator(task_id="stage", path="rows")
                if inside:
                    make()
            if not inside:
                make()

    with pytest.raises(DeltaIllegalArgumentException, match=f"'p.*x' cannot be part of the publication 'p': {why}"):
        block()


@pytest.mark.parametrize(
    ("block", "why"),
    [
        (lambda: None, "has no transactions"),
        (lambda: (transaction("a"), delta_publication("inner").__enter__()), "Publications do not nest"),
        (
            lambda: (transaction("a"), DeltaDeleteOperator(task_id="d", table="/lake/t", predicate="a = 1")),
            "commits to its table",
        ),
        (lambda: (transaction("a"), DeltaStageFilesOperator(task_id="s", path="rows")), "nothing says for which table"),
        (lambda: (transaction("a"), DeltaAuditOperator(task_id="s", min_rows=1)), "belongs to none of the transactions"),
        (lambda: transaction("a", on_conflict="restart"), "has on_conflict, but it has no commit of its own"),
        (lambda: transaction("a", commit_kwargs={"retries": 3}), r"has commit_kwargs \(retries\)"),
        (lambda: transaction("a", rerun_policy="append"), "All its tables share one"),
        (lambda: transaction("a", app_id="loader", txn_version=1), "pass transaction_key= instead"),
        (lambda: [transaction(name, table="/lake/t") for name in "ab"], "on the same table '/lake/t'"),
        (lambda: [transaction(f"t{number}") for number in range(33)], "more than 32 tables"),
    ],
)
def test_blocks_that_make_no_publication(block, why):
    with DAG("b_dag", schedule=None), pytest.raises(DeltaIllegalArgumentException, match=why), delta_publication("p"):
        block()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"anchor": "c"}, r"anchor of the publication 'p' must be the id of one of its transactions \('a', 'b'\), got 'c'"),
        ({"on_late_conflict": "retry"}, "on_late_conflict must be one of undo, keep"),
        ({"rerun_policy": "often"}, "rerun_policy must be one of"),
        ({"patience": -1}, "patience must be 0 or more"),
    ],
)
def test_options_that_make_no_sense(options, why):
    def block():
        with delta_publication("p", **options):
            transaction("a")
            transaction("b")

    with DAG("b_dag", schedule=None), pytest.raises(DeltaIllegalArgumentException, match=why):
        block()


def test_a_publication_inside_a_transaction_is_refused(dag):
    def block():
        with delta_transaction("t", table="/lake/t"), TaskGroup("part"), delta_publication("p"):
            pass

    with pytest.raises(DeltaIllegalArgumentException, match="is inside 't'"):
        block()


def test_alter_is_left_to_the_plan_which_knows_the_anchor(dag):
    with delta_publication("p", anchor="a"):
        with delta_transaction("a", table="/lake/a"):
            DeltaAlterTableOperator(task_id="alter", changes=[])
        transaction("b")
    assert dag.get_task("p.commit").anchor == 0
