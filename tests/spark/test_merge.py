"""MERGE on a Spark without Delta: what is read and written, and what rows have to fulfil."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.contract.merge import (
    SCRATCH,
    ComparedColumns,
    when_matched_delete,
    when_matched_update,
    when_not_matched_by_source_delete,
    when_not_matched_by_source_update,
    when_not_matched_insert,
)
from airflow_delta.exceptions import (
    ConcurrentAppendException,
    ConstraintViolationException,
    DeltaAnalysisException,
    DeltaUnsupportedOperationException,
    IdentityInsertException,
    SchemaMismatchException,
)
from airflow_delta.spark import merge_source
from airflow_delta.spark.key_values import bounds_of
from airflow_delta.table.operations.merge.plan import plan_merge
from airflow_delta.table.operations.rewrite.update import plan_update
from airflow_delta.transaction import CommitPolicy
from support.actions import column, struct
from support.feature_tables import create, field, identity
from support.table import Table

pytestmark = pytest.mark.spark

ON = "target.id = source.id"
UPSERT = [when_matched_update(), when_not_matched_insert()]


@pytest.fixture
def table(tmp_path: Path, spark: Any) -> Table:
    return Table(tmp_path / "ta ble%20[x]ü", spark)


def rows(table: Table) -> list[tuple[Any, ...]]:
    return table.read(table.begin())


def made(table: Table, **configuration: str) -> None:
    """Make a table of two files, ids 0 to 99 and 100 to 199."""
    create(table, column("id", "long"), column("v", "integer"), **configuration)
    for first in (0, 100):
        table.write(f"SELECT id, CAST(id AS INT) v FROM range({first}, {first + 100}, 1, 1)")


def merge(table: Table, source: str, clauses: Any = UPSERT, *, on: str = ON, **options: Any) -> Any:
    return table.run(plan_merge, source=source, condition=on, clauses=clauses, **options)


def metrics(table: Table) -> dict[str, int]:
    info = table.info(table.versions()[-1])
    return {name: int(value) for name, value in info["operationMetrics"].items()}


@pytest.mark.parametrize(
    ("cells", "small"), [(100, [True, True]), (6, [True, False]), (5, [False, False])], ids=["sent", "keys sent", "shuffled"]
)
@pytest.mark.slow
@pytest.mark.parametrize("vectors", ["false", "true"])
def test_only_files_with_changed_rows_are_rewritten(table, monkeypatch, cells, small, vectors):
    """Three rows: the keys and the number of the row are 6 values, with the other column there are 9."""
    monkeypatch.setattr(merge_source, "SMALL_CELLS", cells)
    decided = []
    is_small = merge_source.MergeSource.is_small
    monkeypatch.setattr(
        merge_source.MergeSource, "is_small", lambda source, texts: decided.append(is_small(source, texts)) or decided[-1]
    )
    made(table, **{"delta.enableDeletionVectors": vectors})
    merge(table, "SELECT id, CAST(-1 AS INT) AS v FROM VALUES (5L), (6L), (300L) AS t(id)")
    changed = {5: -1, 6: -1, 300: -1}
    assert rows(table) == sorted([(i, changed.get(i, i)) for i in [*range(200), 300]], key=repr)
    assert decided[:2] == small
    found = metrics(table)
    assert (found["numTargetRowsUpdated"], found["numTargetRowsInserted"], found["numSourceRows"]) == (2, 1, 3)
    assert found["numTargetRowsCopied"] == (0 if vectors == "true" else 98)
    assert found["numTargetDeletionVectorsAdded"] == (1 if vectors == "true" else 0)
    assert len(table.actions(table.versions()[-1])["remove"]) == 1
    assert not list(table.path.rglob(SCRATCH))
    merge(
        table,
        "SELECT id, 0 AS v FROM range(0, 150)",
        [when_matched_delete("target.v > 90"), when_matched_update({"v": "target.v + 1"})],
    )
    kept = {i: changed.get(i, i) for i in [*range(200), 300]}
    kept = {i: v if i >= 150 else v + 1 for i, v in kept.items() if i >= 150 or v <= 90}
    assert rows(table) == sorted(kept.items(), key=repr)
    merge(table, "SELECT id, 7 AS v FROM range(10, 160)", [when_not_matched_by_source_delete()])
    kept = {i: v for i, v in kept.items() if 10 <= i < 160}
    assert rows(table) == sorted(kept.items(), key=repr)
    merge(table, "SELECT id, 7 AS v FROM range(10, 162)", [when_not_matched_insert()])
    kept = {**dict.fromkeys(range(10, 162), 7), **kept}
    assert rows(table) == sorted(kept.items(), key=repr)


@pytest.mark.slow
def test_rules_of_the_table(table):
    create(
        table,
        identity("key", 1, 1),
        column("id", "long", nullable=False),
        column("v", "integer"),
        field("twice", "integer", delta__generationExpression="v * 2"),
        **{"delta.constraints.small": "v < 1000"},
    )
    table.write("SELECT id, CAST(id AS INT) v FROM range(3)")
    merge(table, "SELECT id, CAST(id + 10 AS INT) AS v FROM range(2, 4)")
    assert sorted(row[1:] for row in rows(table)) == [(0, 0, 0), (1, 1, 2), (2, 12, 24), (3, 13, 26)]
    assert len({row[0] for row in rows(table)}) == 4
    with pytest.raises(ConstraintViolationException, match="small"):
        merge(table, "SELECT 1L AS id, 5000 AS v")
    with pytest.raises(IdentityInsertException, match="key"):
        merge(table, "SELECT 1L AS id", [when_matched_update({"key": "1"})])
    with pytest.raises(SchemaMismatchException, match="lacks"):
        merge(table, "SELECT 1L AS id")
    assert len(table.versions()) == 4


def test_refusals(table):
    made(table)
    for on, clauses, message in (
        ("target.id = source.nope", UPSERT, "nope"),
        ("id = source.id", UPSERT, "(?i)ambiguous"),
        (ON, [when_matched_update({"nope": "1"})], "does not have. The columns are id, v"),
        (ON, [when_matched_delete(), when_matched_update()], "only the last"),
        (ON, [when_matched_delete("rand() > 0.5")], "rand"),
        (ON, [when_not_matched_insert({"id": "target.id"})], "target"),
        (ON, [when_matched_update({"v": "(SELECT 1)"})], "subquery"),
        ("source.id", UPSERT, "not boolean"),
        (ON, [], "no clause"),
    ):
        with pytest.raises(DeltaAnalysisException, match=message):
            merge(table, "SELECT 1L AS id, 2 AS v", clauses, on=on)
    with pytest.raises(DeltaUnsupportedOperationException, match="several source rows"):
        merge(table, "SELECT 1L AS id, 2 AS v FROM range(2)")
    with pytest.raises(SchemaMismatchException, match="v"):
        merge(table, "SELECT 1L AS id, array(1) AS v")
    assert len(table.versions()) == 3


@pytest.mark.parametrize("more", [[], [when_not_matched_insert()]], ids=["alone", "with an insert"])
def test_a_row_that_is_deleted_twice(table, more):
    made(table)
    merge(table, "SELECT id, 0 AS v FROM VALUES (5L), (5L), (7L), (300L) AS t(id)", [when_matched_delete(), *more])
    assert rows(table) == sorted([(i, i) for i in range(200) if i not in (5, 7)] + [(300, 0)] * len(more), key=repr)
    found = metrics(table)
    assert (found["numTargetRowsDeleted"], found["numTargetRowsCopied"]) == (2, 98)


@pytest.mark.slow
def test_conflicts_with_what_the_condition_reads(table):
    create(table, column("id", "long"), column("p", "string"), partition_by=["p"])
    table.write("SELECT id, CASE WHEN id < 5 THEN 'a' ELSE 'b' END AS p FROM range(10)")
    for part, number, policy, conflict in (
        ("b", 1, None, False),
        ("a", 100, None, False),
        ("a", 100, CommitPolicy(conflict_detection="delta"), True),
        ("a", 1, None, True),
    ):
        handle = table.begin()
        staged = table.operate(
            handle, plan_merge, source="SELECT 1L AS id, 'a' AS p", condition=f"{ON} AND target.p = 'a'", clauses=UPSERT
        )
        table.write(f"SELECT {number}L AS id, '{part}' AS p")
        if conflict:
            with pytest.raises(ConcurrentAppendException):
                table.publish(handle, staged, policy=policy)
        else:
            table.publish(handle, staged, policy=policy)


@pytest.mark.slow
def test_a_source_of_other_names_and_types(table):
    made(table)
    source = "SELECT 5 AS `a.b c`, NULL AS nothing, current_timestamp() AS ts"
    clauses = [when_matched_update({"v": "s.nothing"}), when_not_matched_insert({"id": "1"})]
    merge(table, source, clauses, on="t.id <=> s.`a.b c`", source_alias="s", target_alias="t")
    assert (5, None) in rows(table)
    merge(table, "SELECT 5L AS id, 1 AS v, 'n' AS new", merge_schema=True)
    assert (5, 1, "n") in rows(table)


@pytest.mark.slow
@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
def test_bounds_of_the_source_rule_out_no_match(table, monkeypatch, zone):
    """Whatever the time zone of the driver, and for dates that Python does not have."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    columns = [column("ntz", "timestamp_ntz"), column("ts", "timestamp"), column("d", "date"), column("v", "integer")]
    create(table, *columns, **{"delta.feature.timestampNtz": "supported"})
    keys = "TIMESTAMP_NTZ'2024-03-10 02:30:00' AS ntz, TIMESTAMP'2024-03-10 02:30:00' AS ts, DATE'0012-01-01' AS d"
    table.write(f"SELECT {keys}, 1 AS v")
    for value, on in enumerate(("target.ntz = source.ntz", "target.ts = source.ts", "target.d = source.d"), 2):
        merge(table, f"SELECT {keys}, {value} AS v", [when_matched_update()], on=on)
        assert [row[3] for row in rows(table)] == [value]
    far = "SELECT TIMESTAMP_NTZ'+12024-01-01 00:00:00' AS ntz, DATE'+12024-01-01' AS d"
    merge(table, far, [when_matched_delete()], on="target.ntz = source.ntz AND target.d = source.d")
    assert len(rows(table)) == 1
    monkeypatch.undo()
    time.tzset()


def test_bounds_that_statistics_do_not_keep():
    """Files of other writers have NaN outside of minimum and maximum, and Parquet orders -0.0 before 0.0."""
    key = ComparedColumns(column="x", source="`x`", null_safe=False)

    def bounds(data_type: str, low: Any, high: Any) -> list[tuple[Any, Any]]:
        return [(found.low, found.high) for found in bounds_of([(key, data_type)], [low, high, 0, None])]

    assert bounds("double", 1.0, math.nan) == bounds("string", b"a", b"\xff") == bounds("string", b"\xed\xa0\x80", b"z") == []
    assert bounds("double", None, None) == bounds("string", None, None) == [(None, None)]
    assert bounds("string", b"a", bytearray("\ufffd", "utf-8")) == [("a", "\ufffd")]
    [zeros] = bounds("double", 0.0, -0.0)
    assert [math.copysign(1, bound) for bound in zeros] == [-1, 1]


def test_a_source_whose_columns_share_a_field_id(table, spark):
    """As those of two tables do whose columns are found by id."""
    from pyspark.sql import functions as sf

    made(table, **{"delta.columnMapping.mode": "id"})
    same = {"parquet.field.id": 1}
    columns = [sf.col(name).alias(name, metadata=same) for name in ("id", "v")]
    source = spark.sql("SELECT 5L AS id, CAST(-1 AS INT) AS v").select(*columns)
    merge(table, source, [when_matched_update()])
    assert (5, -1) in rows(table)


def test_columns_without_alias_where_only_the_table_counts(table):
    made(table)
    clauses = [when_not_matched_by_source_update({"v": "v + 1000"}, "v >= 190 AND id < 195")]
    merge(table, "SELECT id, CAST(7 AS INT) AS v FROM range(190, 192)", clauses)
    assert [row for row in rows(table) if row[1] > 999] == [(i, i + 1000) for i in (192, 193, 194)]


def array_of(element: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": True}


STRUCT = struct(column("a", "integer"), column("m", struct(column("x", "integer"), column("y", "string"))))


@pytest.mark.parametrize("small", [False, True])
def test_a_condition_that_is_null(table, monkeypatch, small):
    """NULL has no type, where Spark wants a boolean."""
    monkeypatch.setattr(merge_source.MergeSource, "is_small", lambda *_: small)
    made(table)
    before = rows(table)
    source = "SELECT 1L AS id, 5 AS v UNION ALL SELECT 1000L, 6"
    clauses = [when_matched_delete("NULL"), when_not_matched_insert(condition="NULL"), when_not_matched_by_source_delete("NULL")]
    merge(table, source, clauses)
    assert rows(table) == before
    merge(table, source, on="NULL")
    assert sorted(rows(table)) == sorted([*before, (1, 5), (1000, 6)])


@pytest.mark.parametrize("mapped", [False, True])
def test_bytes_in_the_names_of_directories(table, mapped):
    """Spark writes rows without bytes and rows of null into one directory, and makes of bytes that are no text another one."""
    mode = {"delta.columnMapping.mode": "name"} if mapped else {}
    create(table, column("id", "long"), column("p", "binary"), partition_by=("p",), **mode)
    values = ["NULL", "X''", "NULL", "X''", "encode('é€😀\u0001', 'UTF-8')", "X'41'"]
    for number, value in enumerate(values):
        table.write(f"SELECT {number}L AS id, {value} AS p")
    table.run(plan_update, set={"p": "IF(id % 2 = 0, p, IF(id < 4, X'', p))"})
    expected = [(0, None), (1, None), (2, None), (3, None), (4, bytearray("é€😀\u0001".encode())), (5, bytearray(b"A"))]
    assert sorted(rows(table)) == expected
    for lost in ("X'FF'", "X'C080'", "X'EDA080'", "X'F4908080'", "X'41E282'"):
        for write in (
            lambda lost=lost: table.write(f"SELECT 9L AS id, {lost} AS p"),
            lambda lost=lost: table.run(plan_update, set={"p": lost}, predicate="id = 5"),
        ):
            with pytest.raises(DeltaAnalysisException, match="Partition column p has bytes that are not UTF-8"):
                write()
    assert sorted(rows(table)) == expected


def test_fields_of_structs(table):
    create(table, column("id", "long"), column("s", STRUCT), column("l", array_of(struct(u="integer", w="string"))))
    made = "named_struct('a', CAST(id AS INT), 'm', IF(id = 1, NULL, named_struct('x', 1, 'y', 'y')))"
    table.write(f"SELECT id, IF(id = 2, NULL, {made}) AS s, array(named_struct('u', 1, 'w', 'w')) AS l FROM range(5)")
    source = "SELECT id, 7L AS wide, array(named_struct('w', 'z', 'u', 8L)) AS l FROM range(3)"
    clauses = [
        when_matched_update({"s.a": "target.s.a + 10", "S.M.X": "source.wide", "l": "source.l"}, "target.id <> 9"),
        when_not_matched_by_source_update({"s.m.y": "upper(s.m.y)"}, "id = 3"),
    ]
    merge(table, source, clauses)
    assert rows(table) == [
        (0, (10, (7, "y")), [(8, "z")]),
        (1, (11, (7, None)), [(8, "z")]),
        (2, (None, (7, None)), [(8, "z")]),
        (3, (3, (1, "Y")), [(1, "w")]),
        (4, (4, (1, "y")), [(1, "w")]),
    ]
    for value, where, message in (
        ("5000000000", "s.m.x", r"Column s\.m\.x holds a value of bigint that does not fit into int"),
        ("array(named_struct('u', 5000000000, 'w', ''))", "l", r"Column l\[element\]\.u holds a value of bigint that does not"),
        ("array(named_struct('u', 1))", "l", "sets l to lacks the fields w"),
        ("named_struct('x', 1, 'y', '', 'z', 2)", "s.m", "sets s.m to has the fields z, which the table lacks"),
        ("array(1)", "s.m.x", "sets s.m.x to is array<int>, and the table has int"),
        ("DATE'2020-01-01'", "s.m.x", "does not resolve: .*DATATYPE_MISMATCH"),
    ):
        with pytest.raises(DeltaAnalysisException, match=message):
            merge(table, "SELECT 1L AS id", [when_matched_update({where: value})])


def test_new_columns_and_fields_that_clauses_name(table):
    create(table, column("id", "long"), column("s", STRUCT), **{"delta.columnMapping.mode": "name"})
    table.write("SELECT id, named_struct('a', 1) AS s FROM range(2)", merge_schema=True)
    source = "SELECT id, 1 AS other, 2S AS z, 'y' AS y, named_struct('New', 5, 'more', 6) AS s FROM range(1, 3)"
    clauses = [when_matched_update({"s.new": "9", "y": "source.y"}), when_not_matched_insert({"id": "source.id", "z": "7"})]
    with pytest.raises(DeltaAnalysisException, match=r"there is no new \(FIELD_NOT_FOUND\)"):
        merge(table, source, clauses)
    with pytest.raises(DeltaAnalysisException, match="sets 'nope', which neither the table nor the source has"):
        merge(table, source, [when_matched_update({"nope": "1"})], merge_schema=True)
    merge(table, source, clauses, merge_schema=True)
    found = table.log().snapshot.schema
    assert [field.name for field in found.fields] == ["id", "s", "z", "y"]
    assert [(field.name, str(field.data_type)) for field in found.find("s").data_type.fields][2:] == [("New", "int")]
    assert rows(table) == [
        (0, (1, None, None), None, None),
        (1, (1, None, 9), None, "y"),
        (2, None, 7, None),
    ]
