"""DELETE, UPDATE and TRUNCATE as far as the worker decides them alone, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_delta.contract.changes import SetProperties
from airflow_delta.exceptions import (
    AppendOnlyException,
    DeltaAnalysisException,
    DeltaTableNotFoundException,
    PredicateException,
)
from airflow_delta.log.actions.actions import DeletionVectorDescriptor
from airflow_delta.log.statistics.wide_bounds import with_wide_bounds
from airflow_delta.table.files.rules import table_rules
from airflow_delta.table.operations.rewrite.delete import plan_delete, plan_truncate
from airflow_delta.table.operations.rewrite.update import is_repeatable, plan_update, resolve_assignments
from airflow_delta.table.stage.plan_alter import plan_alter
from support.actions import add, column, metadata, protocol, schema
from support.table import Table
from support.tables import write_commit

COLUMNS = schema(
    column("id", "long"),
    column("s", {"type": "struct", "fields": [column("x", "long"), column("y z", "string")]}),
    column("a", {"type": "array", "elementType": "long", "containsNull": True}),
    column("p", "string"),
)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return make(tmp_path)


def make(path: Path, *, counted: bool = True, **configuration: str) -> Table:
    """Return a table of three files in two partitions."""
    table = Table(path / "table")
    stats = json.dumps({"numRecords": 10}) if counted else None
    partitions = (("a", 0), ("a", 1), ("b", 0))
    files = [add(f"{p}{i}.parquet", partition_values={"p": p}, size=5, stats=stats) for p, i in partitions]
    about = metadata(schema_string=COLUMNS, partition_columns=["p"], configuration=configuration)
    write_commit(table.path, 0, protocol(), about, *files)
    return table


def test_metadata_only_delete(table):
    result = table.run(plan_delete, predicate="p = 'a'")
    assert [f.path for f in table.log().update().add_files()] == ["b0.parquet"]
    info = table.info(result.version)
    assert info["operation"] == "DELETE"
    assert json.loads(info["operationParameters"]["predicate"]) == ["`p` = 'a'"]
    metrics = info["operationMetrics"]
    assert (metrics["numDeletedRows"], metrics["numRemovedFiles"], metrics["numRemovedBytes"]) == ("20", "2", "10")
    result = table.run(plan_truncate)
    info = table.info(result.version)
    assert (info["operation"], info["operationParameters"]) == ("TRUNCATE", {})
    assert info["operationMetrics"]["numRemovedFiles"] == "1"
    result = table.run(plan_delete)
    assert set(table.actions(result.version)) == {"commitInfo", "txn"}


def test_rows_that_statistics_do_not_tell_are_no_metric(tmp_path):
    table = make(tmp_path, counted=False)
    result = table.run(plan_delete)
    assert "numDeletedRows" not in table.info(result.version)["operationMetrics"]


def test_deletes_on_top_of_each_other(table):
    handle = table.begin()
    one = table.operate(handle, plan_delete, task_id="one", predicate="p = 'a'")
    two = table.operate(handle, plan_delete, task_id="two", after=[one])
    assert (one.num_removed_files, two.num_removed_files) == (2, 1)
    result = table.publish(handle, two, one)
    assert result.num_removed_files == 3
    assert result.operation == "DELETE"


def test_a_path_is_a_field_before_it_is_a_name_with_a_dot(tmp_path):
    table = Table(tmp_path / "table")
    inner = {"type": "struct", "fields": [column("b", "long"), column("d", "long")]}
    columns = [column("a", inner), column("a.b", "long"), column("a.c", "long"), column("x.y", "long")]
    table.publish(table.begin(schema=schema(*columns)))
    definition = table.log().snapshot.definition
    names = {"a.b": ["a", "b"], "`a.b`": ["a.b"], "A.D": ["a", "d"], "a.c": ["a.c"], "X.Y": ["x.y"]}
    for name, path in names.items():
        (found,) = resolve_assignments(definition, table_rules(definition), {name: "1"})
        assert found.path == tuple(path), name


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "sets no column"),
        ({"nope": "1"}, "there is no nope. The columns are id, s, a, p"),
        ({"s.nope": "1"}, "there is no nope. The fields of s are x, y z"),
        ({"id.x": "1"}, "id is not a struct"),
        ({"a.x": "1"}, "a is not a struct"),
        ({"s": "null", "S.X": "1"}, "overlap"),
        ({"id": "1", "ID": "2"}, "overlap"),
        ({"id": "1 +"}, "is not valid Spark SQL"),
        ({"id": "(SELECT max(id) FROM t)"}, "subquery"),
    ],
)
def test_refused_assignments(table, values, message):
    with pytest.raises(DeltaAnalysisException, match=message):
        table.operate(table.begin(), plan_update, set=values)


def test_refused_tables(table, tmp_path):
    with pytest.raises(PredicateException):
        table.operate(table.begin(), plan_delete, predicate="nope = 1")
    append_only = make(tmp_path / "append", **{"delta.appendOnly": "true"})
    for plan, arguments in ((plan_delete, {}), (plan_truncate, {}), (plan_update, {"set": {"id": "1"}})):
        with pytest.raises(AppendOnlyException):
            append_only.operate(append_only.begin(), plan, **arguments)
    absent = Table(tmp_path / "absent")
    with pytest.raises(DeltaTableNotFoundException):
        absent.operate(absent.begin(), plan_delete)


@pytest.mark.parametrize("is_set", [True, False])
def test_a_stage_that_changes_append_only_leaves_rows_where_they_are(tmp_path, is_set):
    """The commit is held to what the table asked for before, and to what it asks for from then on."""
    rows = pa.table({"id": [1]})
    table = Table(tmp_path / "table")
    table.write(rows, begin={"configuration": {"delta.appendOnly": str(not is_set).lower()}})
    handle = table.begin()
    change = table.operate(handle, plan_alter, changes=[SetProperties({"delta.appendOnly": str(is_set).lower()})])
    after = [change.to_dict()]
    for plan in (plan_delete, plan_truncate):
        with pytest.raises(AppendOnlyException, match="unset the property first, in a commit of its own"):
            table.operate(handle, plan, task_id="rewrite", after=after)
    with pytest.raises(AppendOnlyException, match="unset the property first, in a commit of its own"):
        table.stage(handle, rows, mode="overwrite", after=after)
    table.publish(handle, change, table.stage(handle, rows, after=after))
    assert table.rows() == [(1,), (1,)]


def test_rows_of_the_transaction_may_go_before_an_append_only_table_exists(tmp_path):
    table = Table(tmp_path / "table")
    handle = table.begin(configuration={"delta.appendOnly": "true"})
    first = table.stage(handle, pa.table({"id": [1]}), task_id="first")
    gone = table.operate(handle, plan_truncate, after=[first.to_dict()])
    last = table.stage(handle, pa.table({"id": [2]}), after=[first.to_dict(), gone.to_dict()])
    table.publish(handle, first, gone, last)
    assert table.rows() == [(2,)]


def test_rows_are_deleted_before_the_table_only_takes_appends(tmp_path):
    table = Table(tmp_path / "table")
    table.write(pa.table({"id": [1]}))
    handle = table.begin()
    gone = table.operate(handle, plan_truncate)
    change = table.operate(
        handle, plan_alter, task_id="alter", changes=[SetProperties({"delta.appendOnly": "true"})], after=[gone.to_dict()]
    )
    with pytest.raises(AppendOnlyException, match=r"Set the property later, in a commit of its own"):
        table.publish(handle, gone, change)


@pytest.mark.parametrize(
    ("expression", "repeatable"),
    [
        ("v + 1", True),
        ("upper(concat(s.`y z`, 'rand'))", False),  # a word that might be a function: cautious
        ("coalesce(v, 0) * 2", True),
        ("CASE WHEN v > 1 THEN NULL ELSE date_add(d, 1) END", True),
        ("current_timestamp()", False),
        ("current_date", False),
        ("uuid()", False),
        ("my_function(v)", False),
    ],
)
def test_repeatable(expression, repeatable):
    assert is_repeatable(expression) is repeatable


def test_wide_bounds():
    exact = '{"numRecords":10,"minValues":{"d":12345678901234567890.123456789},"nullCount":{"d":3,"e":10,"s":{"x":8}}}'
    wide = f'{exact[:-1]},"tightBounds":false}}'
    assert with_wide_bounds(exact) == wide
    assert with_wide_bounds(wide) == wide
    vector = DeletionVectorDescriptor(storage_type="i", path_or_inline_dv="", size_in_bytes=1, cardinality=2)
    assert json.loads(with_wide_bounds(exact, vector))["nullCount"] == {"d": 3, "e": 10, "s": {"x": 10}}
    assert json.loads(with_wide_bounds(wide, vector))["nullCount"] == {"d": 3, "e": 10, "s": {"x": 8}}
