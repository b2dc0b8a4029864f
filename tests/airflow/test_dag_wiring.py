"""Tasks of transactions that hang together so that rows would be missing: refused when the Dag is parsed."""

from __future__ import annotations

import warnings
from datetime import datetime

import pytest
from airflow.sdk import DAG, task, task_group

from airflow_delta import delta_transaction
from airflow_delta.exceptions import DeltaDagWarning, DeltaIllegalArgumentException
from airflow_delta.operators.audit import DeltaAuditOperator
from airflow_delta.operators.delete_update import DeltaDeleteOperator, DeltaUpdateOperator
from airflow_delta.operators.stage import DeltaStageFilesOperator
from airflow_delta.operators.transaction import DeltaCommitOperator, DeltaStartTransactionOperator


def stage(task_id="stage", **given):
    return DeltaStageFilesOperator(task_id=task_id, path="rows", **given)


def transaction(group_id, **given):
    with delta_transaction(group_id, **{"table": "/lake/t", **given}) as txn:
        stage()
    return txn


def start():
    return DeltaStartTransactionOperator(task_id="start", table="/lake/t")


def commit(started, staged, task_id="commit"):
    return DeltaCommitOperator(task_id=task_id, transaction=started.output, staged=staged)


def parsed(write):
    """Make a Dag as Airflow does."""
    with DAG("d", schedule=None, start_date=datetime(2026, 1, 1)) as dag:
        write()
    dag.resolve_template_files()


def branch():
    @task.branch
    def choose(): ...

    return choose()


def stage_outside_of_its_block():
    stage("outside", transaction=transaction("txn").transaction)


def stage_in_another_block():
    txn = transaction("txn")
    with delta_transaction("other", table="/lake/other"):
        stage()
        stage("strange", transaction=txn.transaction)


def stage_that_the_commit_does_not_get():
    started = start()
    commit(started, stage("one", transaction=started.output).output)
    DeltaStageFilesOperator.partial(task_id="two", transaction=started.output).expand(path=["a", "b"])


def audit_beside_the_commit():
    DeltaAuditOperator(task_id="audit", transaction=transaction("txn").transaction, checks={"some": "SELECT true"})


def two_commits():
    started = start()
    first = commit(started, stage("one", transaction=started.output).output, "first")
    first >> commit(started, stage("two", transaction=started.output).output, "second")


def mapped_commit():
    started = DeltaStartTransactionOperator.partial(task_id="start").expand(table=["/lake/a", "/lake/b"])
    staged = DeltaStageFilesOperator.partial(task_id="stage", path="rows").expand(transaction=started.output)
    DeltaCommitOperator.partial(task_id="commit", staged=staged.output).expand(transaction=started.output)


def one_key_for_two_groups():
    transaction("one", transaction_key="load/{{ ds }}") >> transaction("two", transaction_key="load/{{ ds }}")


def one_key_for_two_operations():
    given = {"table": "/lake/t", "transaction_key": "{{ run_id }}", "predicate": "id = 1", "rerun_policy": "replace"}
    DeltaDeleteOperator(task_id="delete", **given)
    DeltaUpdateOperator(task_id="update", set={"id": "2"}, **given)


def one_version_for_two_groups():
    for name in ("one", "two"):
        transaction(name, app_id="load", txn_version="{{ params.batch }}")


REFUSED = [
    (
        stage_outside_of_its_block,
        "'outside': it stages rows for the transaction of 'txn.start', but the commit 'txn.commit' does not",
    ),
    (stage_in_another_block, "'other.strange': it stages rows for the transaction of 'txn.start'"),
    (
        stage_that_the_commit_does_not_get,
        "'two': it stages rows for the transaction of 'start', but the commit 'commit' does not",
    ),
    (audit_beside_the_commit, "'audit': it checks the transaction of 'txn.start', but the commit 'txn.commit' does not wait"),
    (two_commits, "'second': the transaction of 'start' has another commit, 'first'"),
    (mapped_commit, "The commit 'commit' cannot be mapped"),
    (one_key_for_two_groups, "'two.start': it has the transaction key 'load/{{ ds }}', as 'one.start' has for the same table"),
    (one_key_for_two_operations, "'update': it has the transaction key '{{ run_id }}', as 'delete' has"),
    (one_version_for_two_groups, "'two.start': it has the transaction key 'load', as 'one.start' has"),
]


@pytest.mark.parametrize(("write", "said"), REFUSED, ids=lambda each: getattr(each, "__name__", ""))
def test_refused(write, said):
    with pytest.raises(DeltaIllegalArgumentException) as refused:
        parsed(write)
    assert said in str(refused.value)


def an_audit_before_the_commit():
    started = start()
    one = stage("one", transaction=started.output)
    audit = DeltaAuditOperator(task_id="audit", transaction=started.output, staged=one.output, checks={"some": "SELECT true"})
    one >> audit >> commit(started, one.output)


def reports_that_another_task_hands_on():
    started = start()

    @task
    def chosen(report): ...

    commit(started, chosen(stage("one", transaction=started.output).output))
    commit(DeltaStartTransactionOperator(task_id="other", table="/lake/o"), "{{ ti.xcom_pull('x') }}", "another")


def combined_outputs():
    started = start()
    one, two = (stage(name, transaction=started.output).output for name in ("one", "two"))
    commit(started, one.zip(two))


def stages_that_are_only_looked_at():
    started = start()
    one = stage("one", transaction=started.output)
    DeltaAuditOperator(task_id="audit", transaction=started.output, staged=one.output, checks={"some": "SELECT true"})


def one_of_two_commits():
    started = start()
    one, two = (stage(name, transaction=started.output).output for name in ("one", "two"))
    branch() >> [commit(started, [one, two], "all"), commit(started, one, "some")]


def one_of_two_groups():
    branch() >> [transaction(name, transaction_key="load/{{ ds }}") for name in ("whole", "new")]


def shared_on_purpose():
    for name in ("one", "two"):
        transaction(name, transaction_key="{{ ds }}", key_check="off")
        transaction(f"{name}_more", table="/lake/more", transaction_key="{{ ds }}", rerun_policy="append")


def keys_that_differ():
    for name in ("one", "two"):
        transaction(name, transaction_key="{{ ti.task_id }}/{{ run_id }}")
        transaction(f"{name}_table", table=f"/lake/{name}", transaction_key="{{ run_id }}")
        transaction(f"{name}_default", table="/lake/more")
        DeltaDeleteOperator(
            task_id=f"{name}_delete", table="/lake/d", predicate="id = 1", transaction_key="{{ params.k }}", params={"k": name}
        )


def a_transaction_for_each_index():
    @task_group
    def each(table):
        transaction("txn", table=table)

    each.expand(table=["/lake/a", "/lake/b"])


ACCEPTED = [
    an_audit_before_the_commit,
    reports_that_another_task_hands_on,
    combined_outputs,
    stages_that_are_only_looked_at,
    one_of_two_commits,
    one_of_two_groups,
    shared_on_purpose,
    keys_that_differ,
    a_transaction_for_each_index,
]


@pytest.mark.parametrize("write", ACCEPTED, ids=lambda each: each.__name__)
def test_accepted(write):
    parsed(write)


BRANCHED = """
from datetime import datetime

from airflow.sdk import dag, task

from airflow_delta import delta_transaction
from airflow_delta.operators.stage import DeltaStageFilesOperator


@dag("branched", schedule=None, start_date=datetime(2026, 1, 1))
def the_dag():
    @task.branch
    def choose():
        return "txn.one"

    with delta_transaction("txn", table="/t", commit_kwargs={commit}) as txn:
        chosen = {inside}
        chosen >> [DeltaStageFilesOperator(task_id=name, path="rows") for name in ("one", "two")]
    {outside}


the_dag()
"""


@pytest.mark.parametrize(
    ("commit", "inside", "outside", "is_warned"),
    [
        ({}, "choose()", "", True),
        ({"allow_skipped": True, "trigger_rule": "none_failed"}, "choose()", "", False),
        ({}, "task(lambda: None, task_id='no_branch')()", "choose() >> txn.start", False),
    ],
)
def test_a_branch_that_lets_a_run_publish_nothing_is_warned_about(tmp_path, commit, inside, outside, is_warned):
    from airflow.dag_processing.dagbag import DagBag

    body = BRANCHED.replace("{commit}", repr(commit)).replace("{inside}", inside).replace("{outside}", outside)
    (tmp_path / "dags.py").write_text(body)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        bag = DagBag(dag_folder=str(tmp_path))
    assert bag.import_errors == {}
    said = [each.message for each in found if each.category is DeltaDagWarning]
    assert len(said) == is_warned
    assert not is_warned or "'txn.choose' may skip the stage 'txn.one'" in str(said[0])
