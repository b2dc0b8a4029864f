"""Parameters of another type than their own: taken for what they mean, or refused by name before any work is done."""

from __future__ import annotations

import json
from datetime import date, datetime
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from airflow.sdk import DAG

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.operators.copy_into import DeltaCopyIntoOperator
from airflow_delta.operators.delete_update import DeltaDeleteOperator
from airflow_delta.operators.stream import DeltaStreamOperator
from airflow_delta.operators.vacuum import DeltaVacuumOperator
from support.running_tasks import context

from .test_dag_checks import bag_of

# -- user_metadata --------------------------------------------------------------------------------------------------------------


@pytest.mark.airflow
@pytest.mark.parametrize("dag_id", ["note_of_a_task", "note_rendered"])
def test_a_note_that_is_a_mapping_becomes_json(run_dag, tables, dag_id):
    """As an object in ``commitInfo``, other engines could not read the history."""
    assert run_dag(dag_id).state == "success"
    [entry] = deltalake.DeltaTable(f"{tables}/{dag_id}").history()
    assert json.loads(entry["userMetadata"]) == {"ticket": 4711}


@pytest.mark.airflow
def test_a_note_of_a_publication_that_is_a_mapping_becomes_json(run_dag, tables):
    assert run_dag("note_of_a_publication").state == "success"
    for name in ("one", "two"):
        notes = [entry.get("userMetadata") for entry in deltalake.DeltaTable(f"{tables}/note_of_a_publication_{name}").history()]
        assert '{"ticket": 4711}' in notes


NOTES = [
    ("nightly", "nightly"),
    (None, None),
    (4711, "4711"),
    (True, "True"),
    (1.5, "1.5"),
    (date(2026, 1, 1), "2026-01-01"),
    ({"ticket": "Ü", "of": [1, None]}, '{"ticket": "Ü", "of": [1, null]}'),
    (["a", 1], '["a", 1]'),
]


def parsed(make):
    """Make a task as Airflow does when it parses a Dag file."""
    with DAG("parsed", schedule=None, start_date=datetime(2026, 1, 1)) as dag:
        made = make()
    dag.resolve_template_files()
    return made


def run(operator):
    """Run a task as Airflow's task runner does, once it is rendered."""
    given = context(operator)
    operator.pre_execute(given)
    return operator.execute(given)


@pytest.mark.usefixtures("outside_of_the_task_runner")
@pytest.mark.parametrize(("value", "text"), NOTES)
def test_notes_of_tasks_that_commit_by_themselves(tmp_path, value, text):
    deltalake.write_deltalake(str(tmp_path), pa.table({"id": [1, 2]}))
    for operator in (
        DeltaDeleteOperator(task_id="d", table=str(tmp_path), predicate="id = 1", user_metadata="{{ params.note }}"),
        DeltaVacuumOperator(task_id="v", table=str(tmp_path), user_metadata="{{ params.note }}"),
    ):
        operator.user_metadata = value  # as an XCom, or a template that is rendered natively, leaves it
        run(operator)
    history = deltalake.DeltaTable(str(tmp_path)).history()
    assert [entry.get("userMetadata") for entry in history] == [text] * 3 + [None]


@pytest.mark.parametrize("value", [object(), {"at": date(2026, 1, 1)}, b"note", {1, 2}, [float("nan")]])
@pytest.mark.parametrize("kind", [DeltaDeleteOperator, DeltaStreamOperator])
def test_a_note_that_is_no_text_is_refused_when_the_dag_is_parsed(kind, value):
    more = {"python_callable": lambda spark: None, "checkpoint_location": "/c"} if kind is DeltaStreamOperator else {}
    with pytest.raises(DeltaIllegalArgumentException, match=r"user_metadata must be text, or what JSON can hold"):
        parsed(lambda: kind(task_id="t", table="/t", user_metadata=value, **more))


@pytest.mark.usefixtures("outside_of_the_task_runner")
def test_a_note_of_a_run_that_is_no_text_is_refused_before_the_work(tmp_path):
    deltalake.write_deltalake(str(tmp_path), pa.table({"id": [1]}))
    operator = DeltaDeleteOperator(task_id="d", table=str(tmp_path), user_metadata="{{ params.note }}")
    operator.user_metadata = {"at": b""}
    with pytest.raises(DeltaIllegalArgumentException, match=r"user_metadata of the task 'd' must be text, .* got {'at': b''}"):
        run(operator)
    assert deltalake.DeltaTable(str(tmp_path)).version() == 0


def test_mapped_notes(tmp_path):
    body = 'DeltaDeleteOperator.partial(task_id="m", table="/t").expand(user_metadata=["a", {"b": 1}, {"{{ ds }}"}])'
    assert bag_of(tmp_path, body).import_errors == {}
    found = bag_of(tmp_path, f'DeltaDeleteOperator(task_id="o", table="/t")\n{body[:-2]}, b"c"])').import_errors
    assert "'m': user_metadata must be text, or what JSON can hold, got b'c'" in str(found)


# -- options of a reader ------------------------------------------------------------------------------------------------------


@pytest.mark.airflow
def test_options_of_a_load_that_a_run_gives(run_dag, tables):
    ways = ("task", "text", "param")
    empty = pa.table({"id": pa.array([], pa.int64()), "name": pa.array([], pa.string())})
    for way in ways:
        deltalake.write_deltalake(f"{tables}/options_of_a_{way}", empty)
    source = Path(tables) / "options_of_a_run"
    source.mkdir(exist_ok=True)
    (source / "a.csv").write_text("id;name\n1;x\n")
    assert run_dag("options_of_a_run").state == "success"
    for way in ways:
        assert deltalake.DeltaTable(f"{tables}/options_of_a_{way}").to_pyarrow_table().to_pylist() == [{"id": 1, "name": "x"}]


def load(tmp_path, **options):
    return DeltaCopyIntoOperator(
        task_id="load", table=str(tmp_path / "t"), source=str(tmp_path), format="csv", engine="arrow", **options
    )


@pytest.mark.usefixtures("outside_of_the_task_runner")
@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("header", "must be a mapping, or JSON of one, got 'header'"),
        ([1], "must be a mapping, or JSON of one"),
        ({"password": "x"}, "may be secret"),
        ('{"password": "x"}', "may be secret"),
    ],
)
def test_options_of_a_load_that_are_refused_once_they_are_rendered(tmp_path, value, says):
    deltalake.write_deltalake(str(tmp_path / "t"), pa.table({"id": [1]}))
    operator = load(tmp_path, format_options="{{ params.options }}")
    operator.format_options = value
    with pytest.raises(DeltaIllegalArgumentException, match=says):
        run(operator)


def test_options_of_a_load_that_are_refused_when_the_dag_is_parsed(tmp_path):
    with pytest.raises(DeltaIllegalArgumentException, match="format_options must be a mapping"):
        parsed(lambda: load(tmp_path, format_options=["header"]))
    with pytest.raises(DeltaIllegalArgumentException, match="may be secret"):
        load(tmp_path, format_options={"password": "{{ var.value.password }}"})
