"""Parameters of another type than their own: taken for what they mean, or refused by name before any work is done."""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from airflow.sdk import DAG, Asset, ObjectStoragePath

from airflow_delta import delta_publication, delta_transaction
from airflow_delta.assets.delta import delta_asset
from airflow_delta.decorators.delta_merge import delta_merge_task
from airflow_delta.decorators.delta_stage import delta_stage_task
from airflow_delta.decorators.delta_stream import delta_stream_task
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.operators.clone import DeltaCloneOperator
from airflow_delta.operators.copy_into import DeltaCopyIntoOperator
from airflow_delta.operators.delete_update import DeltaDeleteOperator
from airflow_delta.operators.maintenance import DeltaMaintenanceOperator
from airflow_delta.operators.stage import DeltaStageFilesOperator
from airflow_delta.operators.stream import DeltaStreamOperator
from airflow_delta.operators.transaction import DeltaStartTransactionOperator
from airflow_delta.operators.vacuum import DeltaVacuumOperator
from support.dag_files import bag_of
from support.running_tasks import context

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
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
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
    return DeltaCopyIntoOperator(task_id="load", table=str(tmp_path / "t"), source=str(tmp_path), format="csv", **options)


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
    for options in ({"password": "{{ var.value.password }}"}, '{"password": "{{ var.value.password }}"}'):
        with pytest.raises(DeltaIllegalArgumentException, match="may be secret"):
            load(tmp_path, format_options=options)
    with pytest.raises(DeltaIllegalArgumentException, match="may be secret"):
        load(tmp_path, write_options='{"parquet.encryption.key.list": "k1:x"}')


# -- kinds --------------------------------------------------------------------------------------------------------------------


@pytest.mark.airflow
def test_a_run_whose_parameters_are_of_other_types(run_dag, tables):
    """The keys are text: of 2026.1 and 2026.10, native rendering makes one number, and the second run would skip its rows."""
    runs = [run_dag(f"kinds_of_a_run_{month}") for month in ("1", "10")]
    assert [run.state for run in runs] == ["success"] * 2
    assert [run.xcom("txn.start")["appId"] for run in runs] == ["2026.1", "2026.10"]
    assert [uri for uri, _ in runs[0].events()] == [delta_asset(f"{tables}/kinds_of_a_run").uri]
    table = deltalake.DeltaTable(f"{tables}/kinds_of_a_run")
    assert (table.version(), table.metadata().description) == (1, "2026")


@pytest.mark.airflow
def test_a_schema_as_a_mapping(run_dag, tables):
    assert run_dag("schema_of_a_table").state == "success"
    assert [field.name for field in deltalake.DeltaTable(f"{tables}/schema_of_a_table").schema().fields] == ["id"]


def delete(**arguments):
    return DeltaDeleteOperator(**{"task_id": "t", "table": "/t", **arguments})


def files(**arguments):
    return DeltaStageFilesOperator(task_id="t", path="rows", transaction={}, **arguments)


def vacuum(**arguments):
    return DeltaVacuumOperator(task_id="t", table="/t", **arguments)


def start(**arguments):
    return DeltaStartTransactionOperator(**{"task_id": "t", "table": "/t", **arguments})


def maintenance(**arguments):
    return DeltaMaintenanceOperator(**{"task_id": "t", "tables": "/t", **arguments})


def clone(**arguments):
    return DeltaCloneOperator(**{"task_id": "t", "table": "/t", "source": "/s", **arguments})


FITS = [
    (clone, "source", Path("/s"), "/s"),
    (delete, "commit_timeout", timedelta(minutes=5), 300.0),
    (delete, "commit_timeout", "300", 300.0),
    (delete, "max_commit_attempts", "10", 10),
    (delete, "table", Path("/t"), "/t"),
    (delete, "table", ObjectStoragePath("file:///t"), "file:///t"),
    (delete, "transaction_key", 2026.5, "2026.5"),
    (delete, "transaction_key", True, "True"),
    (delete, "transaction_key", date(2026, 1, 1), "2026-01-01"),
    (start, "description", 2026, "2026"),
    (start, "properties", '{"a": "b"}', {"a": "b"}),
    (start, "create", "false", False),
    (files, "merge_schema", "True", True),
    (files, "overwrite_schema", "False", False),
    (files, "partition_by", ["a"], ("a",)),
    (files, "partition_by", "a", ("a",)),
    (files, "partition_by", "", ()),
    (files, "replace_using", "", ("",)),  # refused when it runs, rather than left out
    (files, "replace_using", [], ("",)),
    (delete, "txn_version", "7", 7),
    (delete, "txn_version", "", None),
    (start, "schema", {"type": "struct", "fields": []}, '{"type": "struct", "fields": []}'),
    (vacuum, "retention_hours", timedelta(days=7), 168.0),
    (vacuum, "transaction_timeout_hours", "24", 24.0),
    (maintenance, "tables", [Path("/t"), "/u"], ("/t", "/u")),
    (maintenance, "tables", "/t", ("/t",)),
    (maintenance, "steps", "vacuum", ("vacuum",)),
]


@pytest.mark.usefixtures("outside_of_the_task_runner")
@pytest.mark.parametrize(("make", "name", "value", "used"), FITS)
def test_values_that_can_only_mean_one_thing(make, name, value, used):
    """Named in the Dag file, or left by a template or an XCom."""
    rendered = make()
    setattr(rendered, name, value)
    for operator in (parsed(lambda: make(**{name: value})), rendered):
        operator.pre_execute(context(operator))
        assert (getattr(operator, name), type(getattr(operator, name))) == (used, type(used))


def test_a_source_of_copy_into_may_be_a_path():
    assert DeltaCopyIntoOperator(task_id="t", transaction={}, source=Path("/s"), format="csv").copy_source == "/s"
    with pytest.raises(DeltaIllegalArgumentException, match="source must be a URI, a path or a name"):
        DeltaCopyIntoOperator(task_id="t", transaction={}, source=7, format="csv")


WRONG = [
    (delete, "commit_timeout", 0, "a timedelta, or a number of seconds above 0, got 0"),
    (delete, "commit_timeout", "soon", "a timedelta, or a number of seconds above 0, got 'soon'"),
    (delete, "commit_timeout", float("nan"), "a timedelta, or a number of seconds above 0, got nan"),
    (delete, "max_commit_attempts", True, "a whole number above 0, got True"),
    (delete, "txn_version", "seven", "a whole number, got 'seven'"),
    (delete, "max_commit_attempts", 2.5, "a whole number above 0, got 2.5"),
    (delete, "fail_on_hook_error", 1, "true or false, got 1"),
    (delete, "table", Asset("s3://lake/t"), "a URI, a path or a name, as text or as a path, got Asset"),
    (delete, "table", 5, "a URI, a path or a name, as text or as a path, got 5"),
    (delete, "transaction_key", {"a": 1}, "text, got {'a': 1}"),
    (start, "partition_by", 3, "a name or a list of names, got 3"),
    (start, "partition_by", [3], r"a name or a list of names, got \[3\]"),
    (start, "schema", pa.schema([]), "columns as in SQL, or Spark's JSON form of a schema"),
    (start, "description", ["a"], r"text, got \['a'\]"),
    (start, "create", None, "true or false, got None"),
    (files, "merge_schema", "yes", "true or false, got 'yes'"),
    (vacuum, "retention_check", None, "true or false, got None"),
    (vacuum, "retention_hours", [1], "a timedelta, or a number of hours"),
    (maintenance, "tables", ["/t", 5], "a table or a list of tables"),
]


@pytest.mark.usefixtures("outside_of_the_task_runner")
@pytest.mark.parametrize(("make", "name", "value", "says"), WRONG)
def test_values_that_fit_nothing(make, name, value, says):
    with pytest.raises(DeltaIllegalArgumentException, match=f"{name}.* must be {says}"):
        parsed(lambda: make(**{name: value}))
    rendered = make()
    setattr(rendered, name, value)
    with pytest.raises(DeltaIllegalArgumentException, match=f"{name} of the task 't' must be {says}"):
        rendered.pre_execute(context(rendered))


FIELDS = {make: make().template_fields for make in (delete, start)}


def test_what_a_run_decides_is_not_refused_when_the_dag_is_parsed():
    with DAG("parsed", schedule=None, start_date=datetime(2026, 1, 1), params={"o": True}) as dag:
        files(schema_policy="strict", merge_schema="{{ params.o }}")
        names = [(make, name) for make, name in dict.fromkeys(row[:2] for row in WRONG) if name in FIELDS.get(make, ())]
        made = [make(task_id=f"t{n}", **{name: dag.param("o")}) for n, (make, name) in enumerate(names)]
    dag.resolve_template_files()
    assert len(made) > 5


@pytest.mark.parametrize("value", ["{{ params.o }}", DAG("d", schedule=None).param("o", default=True)])
@pytest.mark.parametrize(("make", "name"), [(start, "create"), (files, "data_change"), (vacuum, "retention_check")])
def test_a_template_for_what_is_not_templated(make, name, value):
    """It would be true, whatever it is rendered to."""
    with pytest.raises(DeltaIllegalArgumentException, match=f"{name} is not templated: its value must be in the Dag file"):
        parsed(lambda: make(**{name: value}))


def test_a_path_that_names_a_connection():
    with pytest.raises(DeltaIllegalArgumentException, match="it names the connection 'lake': pass that as the parameter"):
        delete(table=ObjectStoragePath("file://lake@/t"))


@pytest.mark.parametrize(
    "body",
    [
        "DeltaDeleteOperator(task_id='d', table='/t', after=c)",
        "DeltaStageFilesOperator(task_id='d', transaction=c)",
        "DeltaDeleteOperator.partial(task_id='d', after=c).expand(table=['/t'])",
        "DeltaAuditOperator(task_id='d', transaction={}, staged=[c], min_rows=1)",
    ],
)
def test_a_task_in_place_of_its_output(tmp_path, body):
    body = f"c = DeltaDeleteOperator(task_id='c', table='/t')\n{body}"
    assert "is the task 'c' itself. Pass an output, such as" in str(bag_of(tmp_path, body).import_errors)


@pytest.mark.parametrize("decorator", [delta_stage_task, delta_merge_task, delta_stream_task])
def test_a_decorator_with_multiple_outputs(decorator):
    with pytest.raises(DeltaIllegalArgumentException, match="takes no multiple_outputs"):
        decorator(lambda: None, multiple_outputs=True)
    assert callable(decorator(lambda: None, multiple_outputs=False))


def test_one_outlet_of_a_publication():
    asset = delta_asset(Path("/t"))
    assert asset == delta_asset("/t")
    with DAG("d", schedule=None) as dag, delta_publication("p", outlets=asset), delta_transaction("t", table="/t"):
        DeltaStageFilesOperator(task_id="f", path="rows")
    assert dag.get_task("p.commit").outlets == [asset]
