"""``parameters=`` of tasks with SQL: values of a run stay values. What a template puts into SQL itself is warned about."""

from __future__ import annotations

import asyncio
import json
import warnings
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import TaskDeferred

from airflow_delta.contract.changes import AddConstraint, ChangeColumn
from airflow_delta.contract.sql_parameters import SQL_TEXTS
from airflow_delta.dag_checks import check_tasks
from airflow_delta.exceptions import DeltaDagWarning, DeltaIllegalArgumentException
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.log import DeltaLog
from airflow_delta.operators.alter import DeltaAlterTableOperator
from airflow_delta.operators.arrow import DeltaStageArrowOperator
from airflow_delta.operators.audit import DeltaAuditOperator
from airflow_delta.operators.delete_update import DeltaDeleteOperator, DeltaUpdateOperator
from airflow_delta.operators.merge import DeltaMergeOperator
from airflow_delta.operators.optimize import DeltaOptimizeOperator
from airflow_delta.operators.pyspark import TableReader
from airflow_delta.operators.scd2 import DeltaScd2MergeOperator
from airflow_delta.operators.sql import DeltaStageSqlOperator
from airflow_delta.operators.stage import DeltaStageFilesOperator
from airflow_delta.sensors.delta import DeltaTableVersionSensor
from airflow_delta.table import begin
from airflow_delta.triggers.delta import DeltaTableVersionTrigger
from support.readers import rows
from support.running_tasks import context
from support.sql_values import TEXTS
from support.state_store import TaskStateStore
from support.task_classes import task_classes

ATTACK = "x' OR true -- "


def test_every_task_with_sql_takes_parameters():
    with_sql = {each for each in task_classes() if SQL_TEXTS & {*each.template_fields}}
    assert len(with_sql) >= 15
    assert DeltaTableVersionSensor in with_sql
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


def test_changed_rows_in_a_function(tmp_path):
    import deltalake

    table = str(tmp_path / "t")
    changes = {"delta.enableChangeDataFeed": "true"}
    deltalake.write_deltalake(table, pa.table({"note": [ATTACK, "other"], "id": [1, 2]}), configuration=changes)
    found = DeltaHook().read_changes(table, starting_version=0, where="note = :note", parameters={"note": ATTACK})
    assert found["id"].to_pylist() == [1]


def ids(rows):
    found = rows.read_all() if isinstance(rows, pa.RecordBatchReader) else rows
    return found["id"].to_pylist() if isinstance(found, pa.Table) else [row["id"] for row in found.collect()]


def stage_that_reads(tmp_path, function):
    """Run a stage whose function reads its table, and another one with the same rows: values that try to be SQL."""
    import deltalake

    for name in ("own", "other"):
        notes = pa.table({"note": list(TEXTS), "id": list(range(len(TEXTS)))})
        deltalake.write_deltalake(str(tmp_path / name), notes)
    other = str(tmp_path / "other")

    def rows(table):
        function(table, other)
        return pa.table({"note": ["new"], "id": [100]})

    handle = begin(DeltaLog.for_table(str(tmp_path / "own")), transaction_key="reads")
    stage = DeltaStageArrowOperator(task_id="rows", python_callable=rows, transaction=handle.to_dict(), read_versions={other: 0})
    return stage.execute(context(stage))["reads"]


def check_reader(table, other, texts):
    """Try every way to read rows by a predicate."""
    for text in texts:
        parameters = {"note": text, "least": 0}
        expected = [TEXTS.index(text)]
        where = "note = :note AND id >= :least"
        assert ids(table(where, parameters=parameters)) == expected
        assert ids(table.other(other, where, parameters=parameters)) == expected
        consumer = f"c{expected[0]}{type(table).__name__}"
        assert ids(table.new_rows(other, where, parameters=parameters, consumer=consumer)) == expected
    for given, what in (({"note": "x"}, ":least, which has no value"), ([1], "parameters must be a mapping of names")):
        with pytest.raises(DeltaIllegalArgumentException, match=what):
            table("id >= :least", parameters=given)


@pytest.mark.usefixtures("outside_of_the_task_runner")
def test_what_a_function_reads_by_a_value(tmp_path):
    """The commit checks for conflicts with the values, too."""

    def function(table, other):
        check_reader(table, other, TEXTS)
        assert table.read("note = :note", parameters={"note": TEXTS[1]}, columns=["id"])["id"].to_pylist() == [1]

    reads = stage_that_reads(tmp_path, function)
    assert len(reads["predicates"]) == len(TEXTS) + 1
    assert all(each.startswith("note = '") and ":note" not in each for each in reads["predicates"])


@pytest.mark.spark
@pytest.mark.usefixtures("outside_of_the_task_runner")
def test_what_a_function_reads_by_a_value_with_spark(tmp_path, spark):
    def function(table, other):
        reader = TableReader(spark, table._stage, table._others)
        check_reader(reader, other, ["' OR true OR '", "it's"])
        reader.as_view("by_a_value", "note = :note", parameters={"note": "it's"})
        assert ids(spark.table("by_a_value")) == [TEXTS.index("it's")]

    stage_that_reads(tmp_path, function)


@pytest.fixture
def users(tmp_path):
    """A table with a partition for each of two users; the name of the second tries to be SQL."""
    import deltalake

    table = str(tmp_path / "t")
    for number, user in enumerate(["ann", ATTACK]):
        rows = pa.table({"user": [user], "id": [number]})
        deltalake.write_deltalake(table, rows, mode="append", partition_by=["user"])
    return table


def waiting(table, **given):
    arguments = {"partitions": "user = :user", "parameters": {"user": "{{ params.user }}"}, **given}
    return lambda: DeltaTableVersionSensor(task_id="t", table=table, after_version=-1, poke_interval=0.01, **arguments)


@pytest.mark.usefixtures("outside_of_the_task_runner")
def test_a_sensor_waits_for_the_partition_that_its_author_wrote(users):
    for user, version in (("ann", 0), (ATTACK, 1)):
        sensor = prepared(waiting(users, deferrable=False), user=user)
        assert sensor.execute(context(sensor))["version"] == version
    other = prepared(waiting(users, deferrable=False), user="x' OR 'a' = 'a")
    assert not other.poke({"task_state_store": TaskStateStore()}).is_done
    with pytest.raises(DeltaIllegalArgumentException, match="partitions of the task 't' names the parameter :user"):
        prepared(waiting(users, parameters={"day": 1}))
    with pytest.raises(DeltaIllegalArgumentException, match=r"params\.user in parameters of the task"):
        prepared(waiting(users), user=None)


@pytest.mark.usefixtures("outside_of_the_task_runner")
def test_a_deferred_sensor_waits_for_the_same(users):
    import deltalake

    text = "y' OR true -- :user"
    sensor = prepared(waiting(users, deferrable=True), user=text)
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute(context(sensor))
    made = deferred.value.trigger.serialize()[1]
    trigger = DeltaTableVersionTrigger(**json.loads(json.dumps(made)))
    assert trigger.serialize()[1] == made
    for user in ("bob", text):
        deltalake.write_deltalake(users, pa.table({"user": [user], "id": [2]}), mode="append", partition_by=["user"])

    async def first():
        return (await anext(trigger.run())).payload

    assert asyncio.run(first())["commit"]["version"] == 3


def test_a_watcher_takes_values_and_stays_the_same_trigger():
    given = {"day": datetime(2026, 1, 1, tzinfo=UTC)}
    made = DeltaTableVersionTrigger("/t", partitions="day > :day", parameters=given)
    path, arguments = made.serialize()
    assert arguments["partitions"].startswith("day > TIMESTAMP'2026-01-01")
    again = DeltaTableVersionTrigger(**json.loads(json.dumps(arguments)))
    assert (again.serialize(), again.state_key) == ((path, arguments), made.state_key)
    assert "parameters" not in DeltaTableVersionTrigger("/t").serialize()[1], "a watcher from before is the same"
    with pytest.raises(DeltaIllegalArgumentException, match="partitions of the trigger names the parameter :day"):
        DeltaTableVersionTrigger("/t", partitions="day > :day", parameters={})


def test_a_dag_with_nothing_but_a_sensor_is_checked_when_it_is_parsed():
    def warned(**task):
        with DAG("sql", schedule=None) as dag, warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            DeltaTableVersionSensor(task_id="t", table="/t", **task)
            DeltaTableVersionSensor(task_id="u", table="/t")
            for each in dag.tasks:  # as Airflow does once it has read the file
                each.resolve_template_files()
        return [str(each.message) for each in found if each.category is DeltaDagWarning]

    (said,) = warned(partitions="user = '{{ params.user }}'")
    assert said.startswith("The task 't': partitions puts params into SQL")
    assert warned(partitions="user = :user", parameters={"user": "{{ params.user }}"}) == []
    with pytest.raises(DeltaIllegalArgumentException, match="'t': parameters must be a mapping of names"):
        warned(partitions="a = :a", parameters={"a": object()})


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


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ params.least }}", "puts params"),
        ("{{ dag_run.conf.least }}", "puts dag_run.conf"),
        ("{{ params.least | int }}", None),
    ],
)
def test_what_a_run_puts_into_sql_that_the_table_keeps_is_warned_about(template, said):
    changes = [AddConstraint("least", f"amount > {template}"), ChangeColumn("amount", default=template, comment=template)]
    with DAG("sql", schedule=None), warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        check_tasks([DeltaAlterTableOperator(task_id="t", table="/t", changes=changes)])
    told = [str(each.message) for each in found if each.category is DeltaDagWarning]
    assert len(told) == (0 if said is None else 2)
    for place, each in zip(("changes[0]['expression']", "changes[1]['default']"), told, strict=said is not None):
        assert f"{place} {said} into SQL that the table keeps" in each
