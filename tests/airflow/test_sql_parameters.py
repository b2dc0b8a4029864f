"""``parameters=`` of tasks with SQL: values of a run stay values. What a template puts into SQL itself is warned about."""

from __future__ import annotations

import warnings
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from airflow.sdk import DAG

from airflow_delta.contract.sql_parameters import SQL_TEXTS
from airflow_delta.dag_checks import check_tasks
from airflow_delta.exceptions import DeltaDagWarning, DeltaIllegalArgumentException
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.operators.audit import DeltaAuditOperator
from airflow_delta.operators.delete_update import DeltaDeleteOperator, DeltaUpdateOperator
from airflow_delta.operators.merge import DeltaMergeOperator
from airflow_delta.operators.optimize import DeltaOptimizeOperator
from airflow_delta.operators.scd2 import DeltaScd2MergeOperator
from airflow_delta.operators.sql import DeltaStageSqlOperator
from airflow_delta.operators.stage import DeltaStageFilesOperator
from airflow_delta.tasks.base import DeltaOperator
from support.readers import rows
from support.running_tasks import context
from support.sql_values import TEXTS
from support.task_classes import task_classes

ATTACK = "x' OR true -- "


def test_every_task_with_sql_takes_parameters():
    with_sql = {each for each in task_classes() if issubclass(each, DeltaOperator) and SQL_TEXTS & {*each.template_fields}}
    assert len(with_sql) >= 14
    assert {each for each in with_sql if "parameters" not in each.template_fields} == set()


def prepared(make, *, native=False, **params):
    with DAG("sql", schedule=None, params=params, render_template_as_native_obj=native):
        task = make()
    given = context(task)
    task.render_template_fields(given)
    task.pre_execute(given)
    return task


def quoted(text):
    return "'" + "".join(f"\\u{ord(each):04x}" if each in "'" else each for each in text) + "'"


@pytest.mark.parametrize(
    ("make", "field", "bound"),
    [
        (lambda **p: DeltaDeleteOperator(task_id="t", table="/t", predicate="u = :u", **p), "predicate", "u = {0}"),
        (
            lambda **p: DeltaUpdateOperator(task_id="t", table="/t", set={"a": ":u"}, predicate="u=:u", **p),
            "set",
            {"a": "{0}"},
        ),
        (
            lambda **p: DeltaMergeOperator(
                task_id="t", table="/t", source="SELECT :u AS u", condition="target.u = :u",
                clauses=[{"kind": "matched", "condition": "source.u = :u", "action": "delete"}], **p,
            ),
            "clauses",
            [{"kind": "matched", "condition": "source.u = {0}", "action": "delete"}],
        ),
        (
            lambda **p: DeltaScd2MergeOperator(
                task_id="t", table="/t", source="SELECT 1", keys=["id"], deleted="u = :u", effective_at="at", **p
            ),
            "deleted",
            "u = {0}",
        ),
        (lambda **p: DeltaOptimizeOperator(task_id="t", table="/t", where="u = :u", **p), "where", "u = {0}"),
        (
            lambda **p: DeltaStageFilesOperator(task_id="t", table="/t", path="x", mode="overwrite", replace_where="u = :u", **p),
            "replace_where",
            "u = {0}",
        ),
        (
            lambda **p: DeltaAuditOperator(task_id="t", transaction={}, checks={"c": {"sql": "SELECT :u = 1"}}, **p),
            "checks",
            {"c": {"sql": "SELECT {0} = 1"}},
        ),
        (lambda **p: DeltaStageSqlOperator(task_id="t", table="/t", sql="SELECT :u", where="u = :u", **p), "where", "u = {0}"),
        (lambda **p: DeltaStageSqlOperator(task_id="t", table="/t", sql="SELECT :u", **p), "sql", "SELECT :u"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("outside_of_the_task_runner")
def test_a_value_of_the_run_is_a_literal(make, field, bound):
    task = prepared(lambda: make(parameters={"u": "{{ params.user }}"}), user=ATTACK)

    def filled(value):
        if isinstance(value, dict):
            return {key: filled(each) for key, each in value.items()}
        return [filled(each) for each in value] if isinstance(value, list) else value.replace("{0}", quoted(ATTACK))

    assert getattr(task, field) == filled(bound)


@pytest.mark.usefixtures("outside_of_the_task_runner")
def test_native_values_keep_their_type_and_none_is_refused():
    def make():
        return DeltaDeleteOperator(
            task_id="t", table="/t", predicate="u = :u AND d < :d", parameters={"u": "{{ params.user }}", "d": "{{ params.at }}"}
        )

    task = prepared(make, native=True, user=7, at=datetime(2026, 1, 1, tzinfo=UTC).isoformat())
    assert task.predicate == "u = 7 AND d < '2026-01-01T00\\u003a00\\u003a00+00\\u003a00'"
    with pytest.raises(DeltaIllegalArgumentException, match=r"params\.user in parameters of the task"):
        prepared(make, user=None, at="")
    with pytest.raises(DeltaIllegalArgumentException, match="names the parameter :d, which has no value"):
        prepared(lambda: DeltaDeleteOperator(task_id="t", table="/t", predicate="d = :d", parameters={"e": 1}))


@pytest.mark.usefixtures("outside_of_the_task_runner")
@pytest.mark.parametrize("user", ["1 OR true", ATTACK, "it's \\"])
def test_a_delete_deletes_what_its_author_wrote(tmp_path, user):
    import deltalake

    table = str(tmp_path / "t")
    users = ["ann", user, "bob"]
    deltalake.write_deltalake(table, pa.table({"user": users, "id": [1, 2, 3]}), partition_by=["user"])
    parameters = {"user": "{{ params.user }}"}
    task = prepared(
        lambda: DeltaDeleteOperator(task_id="t", table=table, predicate="user = :user", parameters=parameters), user=user
    )
    task.execute(context(task))
    assert sorted(row["id"] for row in rows(table)) == [1, 3]


def test_rows_of_a_table_in_a_function(tmp_path):
    import deltalake

    table = str(tmp_path / "t")
    deltalake.write_deltalake(table, pa.table({"note": list(TEXTS), "id": list(range(len(TEXTS)))}))
    for number, text in enumerate(TEXTS):
        found = DeltaHook().get_df(table, where="note = :note AND id >= :least", parameters={"note": text, "least": 0})
        assert found["id"].to_pylist() == [number]


@pytest.mark.parametrize(
    ("predicate", "said"),
    [
        ("user = {{ params.user }}", "predicate puts params into SQL"),
        ("user = '{{ dag_run.conf['user'] }}'", "predicate puts dag_run.conf into SQL"),
        ("{% set u = params.user %}user = {{ u }}", "params"),
        ("user = '{{ params.user | upper }}'", "params"),
        ("user = '{{ params['user'] ~ 'x' }}'", "params"),
        ("user = {{ params.user | int }}", None),
        ("day = '{{ ds }}'", None),
        ("{% if params.all %}true{% else %}day = '{{ ds }}'{% endif %}", None),
        ("user = :user", None),
    ],
)
def test_what_a_run_puts_into_sql_is_warned_about(predicate, said):
    def parse(**task):
        with DAG("sql", schedule=None), warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            check_tasks([DeltaDeleteOperator(task_id="t", table="/t", parameters={"user": "{{ params.user }}"}, **task)])
        return [str(each.message) for each in found if each.category is DeltaDagWarning]

    found = parse(predicate=predicate)
    assert len(found) == (0 if said is None else 1)
    assert said is None or said in found[0]
