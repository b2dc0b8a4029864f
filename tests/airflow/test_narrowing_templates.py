"""Parameters that say what a task is about: refused if a run gives them no value, and text where they are SQL."""

from __future__ import annotations

import datetime
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from airflow.sdk import DAG, BaseOperator, task
from airflow.sdk.execution_time import task_runner

from airflow_delta.contract.merge import when_not_matched_by_source_delete
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.operators.audit import DeltaAuditOperator
from airflow_delta.operators.clone import DeltaCloneOperator
from airflow_delta.operators.copy_into import DeltaCopyIntoOperator
from airflow_delta.operators.delete_update import DeltaDeleteOperator, DeltaUpdateOperator
from airflow_delta.operators.maintenance import DeltaMaintenanceOperator
from airflow_delta.operators.merge import DeltaMergeOperator
from airflow_delta.operators.optimize import DeltaOptimizeOperator
from airflow_delta.operators.restore import DeltaRestoreOperator
from airflow_delta.operators.scd2 import DeltaScd2MergeOperator
from airflow_delta.operators.sql import DeltaStageSqlOperator
from airflow_delta.operators.stage import DeltaStageFilesOperator
from airflow_delta.operators.transaction import DeltaStartTransactionOperator
from airflow_delta.operators.vacuum import DeltaVacuumOperator
from airflow_delta.sensors.delta import DeltaTableVersionSensor
from airflow_delta.tasks.templates import NARROWING, SQL_TEXTS
from support.running_tasks import context
from support.task_classes import task_classes

pytestmark = pytest.mark.usefixtures("outside_of_the_task_runner")

DAY = datetime.datetime(2026, 3, 29, tzinfo=datetime.UTC)
PARAMS = {"none": None, "empty": "", "blank": " ", "list": [], "zero": 0, "value": "a = 'x'", "done": "'done'"}
MERGE = {"table": "/t", "source": "SELECT 1", "condition": "true"}
HISTORY = {"table": "/t", "source": "SELECT 1", "keys": ["id"], "effective_at": "at"}


@task
def give() -> Any:
    """What an XCom may hold."""


def rendered(kind: type[BaseOperator], *, native: bool = False, xcom: Any = None, **arguments: Any) -> BaseOperator:
    """Render a task of a Dag as Airflow does.

    :param xcom: what the task ``give`` has returned.
    """
    with DAG("narrowing", schedule=None, start_date=DAY, params=PARAMS, render_template_as_native_obj=native) as dag:
        given = {name: value() if callable(value) else value for name, value in arguments.items()}
        made = kind(task_id="one", **given)
    running = context(made, run_id="r", dag=dag, params=PARAMS)
    task_runner.SUPERVISOR_COMMS.xcoms["r", "give", -1, "return_value"] = xcom
    made.render_template_fields(running)
    return made


FIELDS: list[tuple[type[BaseOperator], str, dict[str, Any]]] = [
    (DeltaDeleteOperator, "predicate", {"table": "/t"}),
    (DeltaUpdateOperator, "predicate", {"table": "/t", "set": {"a": "1"}}),
    (DeltaStageSqlOperator, "replace_where", {"transaction": {}, "sql": "SELECT 1", "mode": "overwrite"}),
    (DeltaStageSqlOperator, "replace_on", {"transaction": {}, "sql": "SELECT 1", "mode": "overwrite"}),
    (DeltaStageFilesOperator, "replace_using", {"transaction": {}, "path": "p", "mode": "overwrite"}),
    (DeltaMergeOperator, "clauses", MERGE),
    (DeltaScd2MergeOperator, "deleted", HISTORY),
    (DeltaScd2MergeOperator, "tracked", HISTORY),
    (DeltaAuditOperator, "checks", {"transaction": {}}),
    (DeltaAuditOperator, "min_rows", {"transaction": {}, "max_rows": 1000}),
    (DeltaAuditOperator, "partitions", {"transaction": {}, "max_rows": 1000}),
    (DeltaAuditOperator, "freshness", {"transaction": {}, "max_rows": 1000}),
    (DeltaCopyIntoOperator, "pattern", {"table": "/t", "source": "/s", "format": "csv"}),
    (DeltaCopyIntoOperator, "modified_after", {"table": "/t", "source": "/s", "format": "csv"}),
    (DeltaVacuumOperator, "inventory", {"table": "/t"}),
    (DeltaOptimizeOperator, "where", {"table": "/t"}),
    (DeltaMaintenanceOperator, "where", {"tables": ["/t"]}),
]
NOTHING = ["{{ params.none or '' }}", "{{ params.empty }}", "{{ params.blank }}", "{% if params.none %}x{% endif %}"]


@pytest.mark.parametrize("native", [False, True], ids=["text", "native"])
@pytest.mark.parametrize("template", NOTHING)
@pytest.mark.parametrize(("kind", "field", "more"), FIELDS, ids=lambda one: getattr(one, "__name__", str(one)[:20]))
def test_a_template_without_a_value_is_refused(
    kind: type[BaseOperator], field: str, more: dict[str, Any], template: str, native: bool
) -> None:
    with pytest.raises(DeltaIllegalArgumentException, match=rf"{field} of the task 'one' has no value in this run"):
        rendered(kind, native=native, **more, **{field: template})


@pytest.mark.parametrize("found", [None, "", [], {}], ids=repr)
@pytest.mark.parametrize(("kind", "field", "more"), FIELDS, ids=lambda one: getattr(one, "__name__", str(one)[:20]))
def test_an_xcom_without_a_value_is_refused(kind: type[BaseOperator], field: str, more: dict[str, Any], found: Any) -> None:
    with pytest.raises(DeltaIllegalArgumentException, match=rf"{field} of the task 'one' has no value in this run"):
        rendered(kind, xcom=found, **more, **{field: give})


@pytest.mark.parametrize(
    ("kind", "arguments", "where"),
    [
        (
            DeltaMergeOperator,
            {**MERGE, "clauses": [when_not_matched_by_source_delete("{{ params.empty }}")]},
            r"clauses\[0\]\['condition'\]",
        ),
        (DeltaUpdateOperator, {"table": "/t", "set": {"a": "{{ params.empty }}"}}, r"set\['a'\]"),
        (DeltaAuditOperator, {"transaction": {}, "checks": {"c": "{{ params.empty }}"}}, r"checks\['c'\]"),
        (
            DeltaAuditOperator,
            {"transaction": {}, "value_range": {"a": {"min": "{{ params.empty }}"}}},
            r"value_range\['a'\]\['min'\]",
        ),
        (DeltaMaintenanceOperator, {"tables": ["/t", "{{ params.empty }}"]}, r"tables\[1\]"),
    ],
)
def test_a_part_without_a_value_is_refused(kind: type[BaseOperator], arguments: dict[str, Any], where: str) -> None:
    with pytest.raises(DeltaIllegalArgumentException, match=where):
        rendered(kind, **arguments)


IN_SQL = [
    "day < '{{ params.none }}'",  # true of every date
    "day != '{{ dag_run.logical_date }}'",  # of a run that an asset has triggered
    "day < '{{ missing }}'",
    "day < '{{ params.none | string }}'",
    "{{ \"day < '%s'\" % params.none }}",
    "day < '{% if not params.none %}{{ params.none }}{% endif %}'",
]


@pytest.mark.parametrize("native", [False, True], ids=["text", "native"])
@pytest.mark.parametrize("template", IN_SQL)
@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (DeltaDeleteOperator, lambda sql: {"table": "/t", "predicate": sql}),
        (DeltaUpdateOperator, lambda sql: {"table": "/t", "set": {"a": sql}}),
        (DeltaMergeOperator, lambda sql: {**MERGE, "clauses": [when_not_matched_by_source_delete(sql)]}),
        (DeltaStageSqlOperator, lambda sql: {"transaction": {}, "sql": f"SELECT * FROM a WHERE {sql}"}),
        (DeltaCopyIntoOperator, lambda sql: {"table": "/t", "source": "/s", "format": "csv", "pattern": sql}),
        (DeltaTableVersionSensor, lambda sql: {"table": "/t", "partitions": sql}),
    ],
)
def test_sql_prints_no_none(kind: Any, arguments: Any, template: str, native: bool) -> None:
    with pytest.raises(DeltaIllegalArgumentException, match=r"of the task 'one' is (None|undefined) in this run"):
        rendered(kind, native=native, **arguments(template))


@pytest.mark.parametrize("native", [False, True], ids=["text", "native"])
@pytest.mark.parametrize(
    ("template", "printed"),
    [
        ("a = 1{{ params.empty }}", "a = 1"),
        ("a = 1{{ \" AND b = 'None'\" if params.none else '' }}", "a = 1"),
        ("a <=> {{ params.none | tojson }}", "a <=> null"),
        ("a <=> {{ params.none or 'NULL' }}", "a <=> NULL"),
        ("a = {{ params.none | int }}", "a = 0"),
        ("a = '{{ 'None' }}'", "a = 'None'"),
        ("a IN ({{ [1, 2] | join(', ') }})", "a IN (1, 2)"),
    ],
)
def test_sql_that_has_its_values_is_as_ever(template: str, printed: str, native: bool) -> None:
    assert rendered(DeltaDeleteOperator, native=native, table="/t", predicate=template).predicate == printed
    assert rendered(DeltaUpdateOperator, native=native, table="/t", set={"a": template}).set == {"a": printed}


def test_what_is_left_out_or_written_as_none_is_as_the_operator_says() -> None:
    assert rendered(DeltaDeleteOperator, table="/t").predicate is None
    assert rendered(DeltaDeleteOperator, table="/t", predicate=None).predicate is None
    assert rendered(DeltaAuditOperator, transaction={}, max_rows=10).min_rows is None
    assert rendered(DeltaAuditOperator, transaction={}, min_rows="{{ params.zero }}", native=True).min_rows == 0
    assert rendered(DeltaOptimizeOperator, table="/t", where=None).where is None


def test_of_version_and_timestamp_one_is_enough() -> None:
    both = {"table": "/t", "version": "{{ params.zero }}", "timestamp": "{{ params.empty }}"}
    assert rendered(DeltaRestoreOperator, **both).version == "0"
    with pytest.raises(DeltaIllegalArgumentException, match="version of the task 'one' has no value"):
        rendered(DeltaRestoreOperator, **{**both, "version": "{{ params.empty }}"})
    with pytest.raises(DeltaIllegalArgumentException, match="timestamp of the task 'one' has no value"):
        rendered(DeltaCloneOperator, table="/t", source="/s", timestamp="{{ params.empty }}")


@pytest.mark.parametrize("native", [False, True], ids=["text", "native"])
@pytest.mark.parametrize(
    "place", ["lake/{{ params.none }}", "lake/{{ params.empty }}", "{{ params.none }}", "{{ params.blank }}"]
)
@pytest.mark.parametrize(
    ("kind", "field", "more"),
    [
        (DeltaStartTransactionOperator, "table", {}),
        (DeltaStartTransactionOperator, "delta_conn_id", {"table": "/t"}),
        (DeltaDeleteOperator, "table", {}),
        (DeltaVacuumOperator, "table", {}),
        (DeltaCloneOperator, "source", {"table": "/t"}),
        (DeltaCopyIntoOperator, "source", {"table": "/t", "format": "csv"}),
        (DeltaTableVersionSensor, "table", {}),
    ],
)
def test_a_place_without_a_value_is_refused(
    kind: type[BaseOperator], field: str, more: dict[str, Any], place: str, native: bool
) -> None:
    with pytest.raises(DeltaIllegalArgumentException, match=r"(None|''|' ') in this run.*another place"):
        rendered(kind, native=native, **more, **{field: place})


@pytest.mark.parametrize("native", [False, True], ids=["text", "native"])
def test_sql_is_text_in_every_dag(native: bool) -> None:
    """Rendered to a Python value, the text ``'done'`` is the name of a column."""
    made = rendered(
        DeltaUpdateOperator,
        native=native,
        table="/t",
        set={"status": "'done'", "n": "{{ params.zero }}", "other": "{{ params.done }}"},
        predicate="True",
    )
    assert (made.set, made.predicate) == ({"status": "'done'", "n": "0", "other": "'done'"}, "True")
    clauses = [{"kind": "matched", "action": "update", "condition": "'a'", "set": {"x": "'y'"}}]
    merge = rendered(DeltaMergeOperator, native=native, **{**MERGE, "condition": "1", "clauses": clauses})
    assert (merge.condition, merge.clauses) == ("1", clauses)
    assert rendered(DeltaAuditOperator, native=native, transaction={}, checks={"c": "1"}).checks == {"c": "1"}
    assert rendered(DeltaStageSqlOperator, native=native, transaction={}, sql="'a'").sql == "'a'"
    key = rendered(DeltaStartTransactionOperator, native=native, table="/t", transaction_key="2026.10")
    assert key.transaction_key == "2026.10"


def test_a_sensor_may_be_told_nothing() -> None:
    """It changes nothing; what to wait for often comes from the conf of a run."""
    names = ("version", "after_version", "operation", "partitions")
    made = rendered(DeltaTableVersionSensor, table="/t", **dict.fromkeys(names, "{{ params.empty }}"))
    assert [getattr(made, name) for name in names] == [""] * 4


def test_what_is_no_sql_is_a_value_in_a_dag_of_values() -> None:
    assert rendered(DeltaAuditOperator, native=True, transaction={}, min_rows="{{ params.zero }}").min_rows == 0


def test_the_names_are_those_of_parameters() -> None:
    known = {name for kind in task_classes() for name in kind.template_fields}
    assert set(NARROWING) <= known
    assert set(SQL_TEXTS) <= known


@pytest.mark.parametrize("found", [None, ""])
def test_a_delete_whose_mapped_predicate_is_nothing_deletes_nothing(tmp_path: Any, found: Any) -> None:
    deltalake.write_deltalake(str(tmp_path), pa.table({"id": [1, 2, 3]}))
    with DAG("mapped", schedule=None, start_date=DAY) as dag:
        DeltaDeleteOperator.partial(task_id="delete", table=str(tmp_path)).expand(predicate=["id = 9", found])
    mapped = dag.get_task("delete")
    running = context(mapped, run_id="r", dag=dag, map_index=1)
    with pytest.raises(DeltaIllegalArgumentException, match="predicate of the task 'delete' has no value"):
        mapped.render_template_fields(running)
    assert deltalake.DeltaTable(str(tmp_path)).version() == 0
