"""MERGE and UPDATE in the worker: rules of the table, what is refused by name, and what the commit knows of the reads."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_delta.contract.merge import (
    when_matched_delete,
    when_matched_update,
    when_not_matched_by_source_delete,
    when_not_matched_insert,
)
from airflow_delta.exceptions import (
    ConcurrentAppendException,
    ConstraintViolationException,
    DeltaAnalysisException,
    DeltaConcurrentModificationException,
    DeltaError,
    DeltaUnsupportedOperationException,
    IdentityInsertException,
    InvariantViolationException,
    SchemaMismatchException,
)
from airflow_delta.table.arrow.rewrite import merge_pairs
from airflow_delta.table.operations.merge.plan import plan_merge
from airflow_delta.table.operations.rewrite.update import plan_update
from airflow_delta.table.read.read_table import read_table
from support.actions import column
from support.feature_tables import create, field, identity
from support.table import WorkerTable

ID, V, NAME = column("id", "long"), column("v", "integer"), column("name", "string")
ON_ID = "target.id = source.id"


@pytest.fixture
def table(tmp_path: Path) -> WorkerTable:
    return WorkerTable(tmp_path / "table")


def rows_of(**columns: list[Any]) -> pa.Table:
    types = {"id": pa.int64(), "v": pa.int32(), "name": pa.string()}
    return pa.table({name: pa.array(values, types.get(name)) for name, values in columns.items()})


def made(table: WorkerTable, *columns: dict[str, Any], **configuration: str) -> WorkerTable:
    """A table of four rows, ids 1 to 4, in two files."""
    create(table, *(columns or (ID, V, NAME)), **configuration)
    for first in (1, 3):
        table.write(rows_of(id=[first, first + 1], v=[10 * first, 10 * first + 10], name=["a", None]))
    return table


def merge(table: WorkerTable, source: Any, *clauses: Any, on: str = ON_ID, **options: Any) -> Any:
    clauses = clauses or (when_matched_update(), when_not_matched_insert())
    return table.run(plan_merge, source=source, condition=on, clauses=list(clauses), **options)


def attempts(table: WorkerTable) -> int:
    """How many files stages have written."""
    return sum(path.suffix == ".parquet" for path in (table.path / "staged").rglob("*"))


def test_the_first_clause_that_is_true_decides(table: WorkerTable) -> None:
    """A condition is not evaluated for rows that an earlier clause takes: 1 / 0 is an error."""
    made(table)
    clauses = [
        when_matched_delete("source.v = 0"),
        when_matched_update({"v": "target.v + source.v"}, "1 / source.v < 1"),
        when_matched_update({"name": "'one'"}),
        when_not_matched_insert({"id": "source.id", "v": "source.v"}, "source.v > 5"),
    ]
    merge(table, rows_of(id=[1, 2, 3, 8, 9], v=[0, 2, 1, 6, 5]), *clauses)
    assert table.rows() == [(2, 22, None), (3, 30, "one"), (4, 40, None), (8, 6, None)]


def test_nulls_match_only_if_they_are_told_to(table: WorkerTable) -> None:
    made(table)
    source = rows_of(name=[None, "a"], v=[7, 8])
    with pytest.raises(DeltaUnsupportedOperationException, match="4 matches of 2 rows"):
        merge(table, pa.concat_tables([source, source]), when_matched_update({"v": "source.v"}), on="target.name = source.name")
    merge(table, source, when_matched_update({"v": "source.v"}), on="target.name = source.name")
    assert table.rows() == [(1, 8, "a"), (2, 20, None), (3, 8, "a"), (4, 40, None)]
    merge(table, source, when_matched_update({"v": "source.v + 1"}), on="target.name <=> source.name")
    assert table.rows() == [(1, 9, "a"), (2, 8, None), (3, 9, "a"), (4, 8, None)]


KEYS: dict[str, tuple[Any, pa.DataType]] = {
    "string": ("", pa.string()),
    "binary": (b"", pa.binary()),
    "boolean": (False, pa.bool_()),
    "date": (dt.date(1970, 1, 1), pa.date32()),
    "timestamp": (dt.datetime(1970, 1, 1, tzinfo=dt.UTC), pa.timestamp("us", "UTC")),
    "timestamp_ntz": (dt.datetime(1970, 1, 1), pa.timestamp("us")),
    "decimal(5,2)": (Decimal(0), pa.decimal128(5, 2)),
    "byte": (0, pa.int8()),
}
"""A value of each type that is joined by, the one that stands for null, and its Arrow type."""


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("equals", ["=", "<=>"])
@pytest.mark.parametrize("partition_by", [(), ("k",)], ids=["data", "partition"])
def test_keys_of_every_type(table: WorkerTable, kind: str, equals: str, partition_by: tuple[str, ...]) -> None:
    value, arrow = KEYS[kind]
    if partition_by and value in ("", b""):  # null as a partition value
        value = b"x" if value == b"" else "x"
    create(table, ID, column("k", kind), partition_by=partition_by, **{"delta.feature.timestampNtz": "supported"})
    table.write(pa.table({"id": [1, 2], "k": pa.array([value, None], arrow)}))
    source = pa.table({"id": [10, 20], "k": pa.array([None, value], arrow)})
    merge(table, source, when_matched_update({"id": "source.id"}), when_not_matched_insert(), on=f"target.k {equals} source.k")
    nulls = [10] if equals == "<=>" else [2, 10]
    # By ourselves: Polars does not read partitions of binary values.
    assert sorted(read_table(table.log()).to_table().column("id").to_pylist()) == sorted([20, *nulls])


def test_a_partition_of_a_date_that_python_does_not_have(table: WorkerTable) -> None:
    create(table, ID, column("k", "date"), partition_by=("k",))
    days = pa.array([2_932_897, 0], pa.int32()).cast(pa.date32())  # 10000-01-01
    table.write(pa.table({"id": [1], "k": days.slice(1)}))
    merge(table, pa.table({"id": [10, 20], "k": days}), when_matched_update({"id": "source.id"}), on="target.k = source.k")
    assert read_table(table.log(), columns=["id"]).to_table().column("id").to_pylist() == [20]


def test_several_matches(table: WorkerTable) -> None:
    made(table)
    source = rows_of(id=[1, 1, 5], v=[1, 2, 3], name=["x", "y", "z"])
    before = attempts(table)
    with pytest.raises(DeltaUnsupportedOperationException, match=r"2 matches of 1 rows.*MULTIPLE_SOURCE_ROW_MATCHING"):
        merge(table, source)
    assert attempts(table) == before
    merge(table, source, when_matched_delete())  # whichever of them it is
    merge(table, rows_of(id=[2, 2], v=[1, 1], name=["x", "x"]), when_not_matched_insert())
    assert table.rows() == [(2, 20, None), (3, 30, "a"), (4, 40, None)]


def test_rows_that_the_source_lacks(table: WorkerTable) -> None:
    made(table, **{"delta.enableDeletionVectors": "true"})
    merge(table, rows_of(id=[1], v=[5], name=["b"]), when_matched_update(), when_not_matched_by_source_delete("v > 30"))
    assert table.rows() == [(1, 5, "b"), (2, 20, None), (3, 30, "a")]
    merge(table, rows_of(id=[], v=[], name=[]), when_not_matched_by_source_delete())
    assert table.rows() == []


@pytest.mark.parametrize("never", ["false", "NULL IS NOT NULL", "NULL"])
def test_a_condition_that_is_never_true(table: WorkerTable, never: str) -> None:
    made(table)
    clauses = [when_matched_delete(), when_not_matched_insert()]
    merge(table, rows_of(id=[1, 7], v=[50, 7], name=["b", "c"]), *clauses, on=f"{ON_ID} AND {never}")
    assert [row[:2] for row in table.rows()] == [(1, 10), (1, 50), (2, 20), (3, 30), (4, 40), (7, 7)]


def test_new_columns(table: WorkerTable) -> None:
    made(table)
    source = pa.table({"id": [4, 5], "v": pa.array([1, 2], pa.int32()), "name": ["p", "q"], "extra": [1.5, 2.5]})
    merge(table, source, when_matched_update(), when_not_matched_insert())  # of which only those of the table are taken
    assert table.rows()[-2:] == [(4, 1, "p"), (5, 2, "q")]
    merge(table, source, merge_schema=True)
    assert table.rows() == [(1, 10, "a", None), (2, 20, None, None), (3, 30, "a", None), (4, 1, "p", 1.5), (5, 2, "q", 2.5)]
    with pytest.raises(SchemaMismatchException, match="needs the columns v, name, extra, which the source lacks"):
        merge(table, rows_of(id=[1]))


def test_values_that_the_table_computes(table: WorkerTable) -> None:
    fields = (
        ID,
        V,
        field("double", "long", delta__generationExpression="id * 2"),
        field("state", "string", CURRENT_DEFAULT="'new'"),
        identity("number", 100, 10),
    )
    create(table, *fields, **{"delta.feature.allowColumnDefaults": "supported"})
    merge(table, rows_of(id=[1, 2], v=[1, 2]), when_not_matched_insert({"id": "id", "v": "v"}))
    merge(table, rows_of(id=[2, 3], v=[5, 6]), when_matched_update({"v": "source.v"}), when_not_matched_insert({"id": "id"}))
    assert table.rows() == [(1, 1, 2, "new", 100), (2, 5, 4, "new", 110), (3, None, 6, "new", 120)]
    table.run(plan_update, set={"id": "id + 10"}, predicate="v IS NULL")
    assert (13, None, 26, "new", 120) in table.rows()
    with pytest.raises(IdentityInsertException):
        merge(table, rows_of(id=[9], number=[1]), when_not_matched_insert({"id": "id", "number": "number"}))


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("v", "-1", ConstraintViolationException),
        ("id", "NULL", InvariantViolationException),
        ("v", "3000000000 + v", SchemaMismatchException),
        ("v", "named_struct('a', 1)", SchemaMismatchException),
        ("v", "1 div (v - 10)", DeltaAnalysisException),
    ],
)
def test_rules_hold_for_new_rows(table: WorkerTable, name: str, value: str, error: type[DeltaError]) -> None:
    made(table, column("id", "long", False), V, NAME, **{"delta.constraints.positive": "v > 0"})
    for plan, arguments in (
        (plan_update, {"set": {name: value}, "predicate": "id = 1"}),
        (plan_merge, {"condition": ON_ID, "clauses": [when_matched_update({name: value.replace("v ", "target.v ")})]}),
    ):
        source = rows_of(id=[1]) if plan is plan_merge else None
        with pytest.raises(error):
            table.run(plan, **arguments, source=source)
    assert table.rows()[0] == (1, 10, "a")


def test_a_field_of_a_struct(table: WorkerTable) -> None:
    point = {"type": "struct", "fields": [column("x", "integer"), column("y", "integer")]}
    create(table, ID, column("at", point))
    table.write(
        pa.table({"id": [1, 2], "at": pa.array([{"x": 1, "y": 2}, None], pa.struct([("x", pa.int32()), ("y", pa.int32())]))})
    )
    merge(table, rows_of(id=[1, 2], v=[7, 8]), when_matched_update({"at.y": "source.v"}))
    assert table.rows() == [(1, {"x": 1, "y": 7}), (2, {"x": None, "y": 8})]
    table.run(plan_update, set={"at.x": "at.y + id"}, predicate="id = 1")
    assert table.rows()[0] == (1, {"x": 8, "y": 7})


def test_structs_of_a_table_with_column_mapping(table: WorkerTable) -> None:
    """Their fields have numbers and physical names, which those of a source lack: the types are the same."""
    point = {"type": "struct", "fields": [column("x", "integer"), column("y", "integer")]}
    create(table, ID, column("at", point), column("to", point), **{"delta.columnMapping.mode": "name"})
    points = pa.array([{"x": 1, "y": 2}, None], pa.struct([("x", pa.int32()), ("y", pa.int32())]))
    table.write(pa.table({"id": [1, 2], "at": points, "to": points}))
    merge(table, pa.table({"id": [2, 3], "at": points, "to": points}))
    table.run(plan_update, set={"at": "NULL"}, predicate="id = 1")
    table.run(plan_update, set={"to": "at"}, predicate="id <= 2")
    assert sorted(read_table(table.log()).to_table().to_pylist(), key=lambda row: row["id"]) == [
        {"id": 1, "at": None, "to": None},
        {"id": 2, "at": {"x": 1, "y": 2}, "to": {"x": 1, "y": 2}},
        {"id": 3, "at": None, "to": None},
    ]


@pytest.mark.parametrize(
    ("on", "clause", "says"),
    [
        ("target.id = source.id AND xxhash64(target.name) = 1", when_matched_delete(), "xxhash64"),
        (ON_ID, when_matched_delete("soundex(target.name) = 'A'"), "soundex"),
        (ON_ID, when_matched_update({"name": "soundex(source.name)"}), "soundex"),
    ],
)
def test_what_only_spark_decides_is_refused_before_anything_is_written(
    table: WorkerTable, on: str, clause: Any, says: str
) -> None:
    made(table)
    before = attempts(table)
    with pytest.raises(DeltaUnsupportedOperationException, match=f"(?s){says}.*engine=.spark."):
        merge(table, rows_of(id=[1], v=[1], name=["x"]), clause, on=on)
    assert attempts(table) == before


@pytest.mark.parametrize("matched", [True, False])
def test_conditions_without_equal_columns(table: WorkerTable, monkeypatch: pytest.MonkeyPatch, matched: bool) -> None:
    made(table)
    clause = when_matched_update({"v": "target.v + source.v"}) if matched else when_not_matched_by_source_delete("v < 25")
    source, on = rows_of(id=[0, 9], v=[1, 2], name=["x", "y"]), "target.id > source.id + 2"
    monkeypatch.setattr("airflow_delta.table.arrow.rewrite.merge_pairs.MOST_PAIRS", 7)
    with pytest.raises(DeltaUnsupportedOperationException, match=r"so 4 rows would be compared with each of 2 .7 pairs at most"):
        merge(table, source, clause, on=on)
    monkeypatch.setattr("airflow_delta.table.arrow.rewrite.merge_pairs.MOST_PAIRS", 8)
    monkeypatch.setattr("airflow_delta.table.arrow.rewrite.merge_pairs._BLOCK_PAIRS", 3)
    merge(table, source, clause, on=on)
    last = [(3, 31, "a"), (4, 41, None)] if matched else [(3, 30, "a"), (4, 40, None)]
    assert table.rows() == ([(1, 10, "a"), (2, 20, None)] if matched else []) + last


def test_names_that_are_not_clear(table: WorkerTable) -> None:
    made(table)
    with pytest.raises(DeltaAnalysisException, match="v is a column of the table and of the source"):
        merge(table, rows_of(id=[1], v=[1]), when_matched_delete("v = 1"))
    with pytest.raises(DeltaAnalysisException, match=r"'source\.other', which does not exist"):
        merge(table, rows_of(id=[1], v=[1]), when_matched_update({"v": "source.other"}))
    with pytest.raises(SchemaMismatchException, match="has the column id twice"):
        merge(table, pa.table([[1], [2]], names=["id", "ID"]), when_matched_delete())


@pytest.mark.parametrize("streams", [False, True], ids=["a table", "a stream"])
def test_a_source_that_memory_does_not_take(table: WorkerTable, streams: bool) -> None:
    made(table)
    table.max_memory = 1500
    before = attempts(table)
    rows = rows_of(id=list(range(100)), v=[1] * 100, name=["x"] * 100)
    what = r"\(100 rows, and maybe more\) takes more than" if streams else r"\(100 rows\) takes"
    with pytest.raises(DeltaUnsupportedOperationException, match=rf'source of .*{what} 1,[0-9]+ bytes.*1,500.*engine="spark"'):
        merge(table, rows.to_reader() if streams else rows, when_matched_update(), when_not_matched_insert())
    assert attempts(table) == before
    table.max_memory = 8000
    merge(table, rows.to_reader() if streams else rows, when_matched_update(), when_not_matched_insert())


def test_rows_of_the_table_that_memory_does_not_take(table: WorkerTable) -> None:
    """Of these, a MERGE only keeps which they are."""
    create(table, ID, V, NAME)
    table.write(rows_of(id=list(range(5000)), v=[1] * 5000, name=["x"] * 5000))
    table.max_memory = 50_000
    before, alone = attempts(table), when_not_matched_by_source_delete()
    with pytest.raises(DeltaUnsupportedOperationException, match=r"MERGE of 1 rows \(with 5,000 rows of the table so far\)"):
        merge(table, rows_of(id=[1], v=[2], name=["y"]), when_matched_update(), alone)
    assert attempts(table) == before
    table.max_memory = 600_000
    merge(table, rows_of(id=[1], v=[2], name=["y"]), when_matched_update(), alone)
    assert table.rows() == [(1, 2, "y")]


def test_many_rows_of_equal_keys(table: WorkerTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which are not all paired at once."""
    monkeypatch.setattr(merge_pairs, "_CHUNK_PAIRS", 50)
    create(table, ID, V, NAME)
    table.write(rows_of(id=[1] * 40 + [2] * 10 + [3] * 3 + [None], v=[*range(40), *range(10), 0, 1, 2, 0], name=["a"] * 54))
    parts: list[int] = []
    joined = merge_pairs.pairs_with

    def watched(left: pa.Table, right: pa.Table, keys: Any, output: tuple[str, str]) -> pa.Table:
        found = joined(left, right, keys, output)
        parts.append(found.num_rows if output[1] == "source" else 0)
        return found

    monkeypatch.setattr(merge_pairs, "pairs_with", watched)
    source = rows_of(id=[1] * 30 + [2, 4, None], v=[*range(30), 5, 4, 0], name=["b"] * 33)
    condition = "target.id = source.id AND target.v = source.v + 0"
    table.run(plan_merge, source=source, condition=condition, clauses=[when_matched_update({"name": "source.name"})])
    assert sum(parts) == 40 * 30 + 10
    assert max(parts) <= 80
    changed = sorted((row[0], row[1]) for row in table.rows() if row[2] == "b")
    assert changed == [*((1, v) for v in range(30)), (2, 5)]


@pytest.mark.parametrize(("others", "conflicts"), [([7], False), ([5], True)], ids=["other keys", "the same key"])
def test_the_commit_compares_the_keys_with_what_others_added(table: WorkerTable, others: list[int], conflicts: bool) -> None:
    made(table)
    handle = table.begin()
    source = rows_of(id=[1, 5], v=[0, 0], name=["s", "s"])
    clauses = [when_matched_update(), when_not_matched_insert()]
    staged = table.operate(handle, plan_merge, source=source, condition=ON_ID, clauses=clauses)
    table.write(rows_of(id=others, v=[9], name=["o"]))
    if conflicts:
        with pytest.raises(ConcurrentAppendException):
            table.publish(handle, staged)
    else:
        assert table.publish(handle, staged).resolved
        assert [row[0] for row in table.rows()] == [1, 2, 3, 4, 5, 7]


def test_rows_that_others_change_conflict(table: WorkerTable) -> None:
    made(table, **{"delta.enableDeletionVectors": "true"})
    handle = table.begin()
    staged = table.operate(handle, plan_update, set={"v": "v + 1"}, predicate="id = 1")
    table.run(plan_update, set={"v": "v + 1"}, predicate="id = 2")  # another row of the same file
    assert table.publish(handle, staged).resolved
    handle = table.begin()
    staged = table.operate(handle, plan_update, set={"v": "v + 1"}, predicate="id = 1")
    table.run(plan_update, set={"v": "v + 1"}, predicate="id = 1")
    with pytest.raises(DeltaConcurrentModificationException):
        table.publish(handle, staged)
    assert table.rows()[:2] == [(1, 12, "a"), (2, 21, None)]


def test_sources_of_other_libraries(table: WorkerTable) -> None:
    import pandas as pd
    import polars as pl

    made(table)
    merge(table, pd.DataFrame({"id": [1], "v": [1], "name": ["pandas"]}))
    merge(table, pl.DataFrame({"id": [2], "v": [2], "name": ["polars"]}).lazy())
    reader = rows_of(id=[9], v=[3], name=["reader"]).to_reader()
    merge(table, reader)
    assert [row[2] for row in table.rows()] == ["pandas", "polars", "a", None, "reader"]
