"""MERGE on a Spark without Delta: what is read and written, and what rows have to fulfil."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_delta.commands.merge import plan_merge
from airflow_delta.exceptions import (
    ConcurrentAppendException,
    ConstraintViolationException,
    DeltaAnalysisException,
    DeltaUnsupportedOperationException,
    IdentityInsertException,
    SchemaMismatchException,
)
from airflow_delta.spark import merge_source
from airflow_delta.staging.merge import (
    when_matched_delete,
    when_matched_update,
    when_not_matched_by_source_delete,
    when_not_matched_insert,
)
from commands.flow import Table, column
from commands.test_table_features import create, field, identity

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
    info = table.commit(table.versions() - 1)["commitInfo"][0]
    return {name: int(value) for name, value in info["operationMetrics"].items()}


@pytest.mark.parametrize("large", [False, True], ids=["broadcast", "shuffled"])
@pytest.mark.parametrize("vectors", ["false", "true"])
def test_only_files_with_changed_rows_are_rewritten(table, monkeypatch, large, vectors):
    if large:
        monkeypatch.setattr(merge_source, "SMALL_CELLS", -1)
    made(table, **{"delta.enableDeletionVectors": vectors})
    merge(table, "SELECT id, CAST(-1 AS INT) AS v FROM VALUES (5L), (6L), (300L) AS t(id)")
    changed = {5: -1, 6: -1, 300: -1}
    assert rows(table) == sorted([(i, changed.get(i, i)) for i in [*range(200), 300]], key=repr)
    found = metrics(table)
    assert (found["numTargetRowsUpdated"], found["numTargetRowsInserted"], found["numSourceRows"]) == (2, 1, 3)
    assert found["numTargetRowsCopied"] == (0 if vectors == "true" else 98)
    assert found["numTargetDeletionVectorsAdded"] == (1 if vectors == "true" else 0)
    assert len(table.commit(table.versions() - 1)["remove"]) == 1
    assert not list(table.path.rglob("_merge"))
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
    assert table.versions() == 4


def test_refusals(table):
    made(table)
    for on, clauses, message in (
        ("target.id = source.nope", UPSERT, "nope"),
        ("id = source.id", UPSERT, "(?i)ambiguous"),
        (ON, [when_matched_update({"nope": "1"})], "the table has id, v"),
        (ON, [when_matched_delete(), when_matched_update()], "only the last"),
        (ON, [when_matched_delete("rand() > 0.5")], "rand"),
        (ON, [when_not_matched_insert({"id": "target.id"})], "target"),
        (ON, [when_matched_update({"v": "(SELECT 1)"})], "subquery"),
        ("source.id", UPSERT, "no condition"),
        (ON, [], "no clause"),
    ):
        with pytest.raises(DeltaAnalysisException, match=message):
            merge(table, "SELECT 1L AS id, 2 AS v", clauses, on=on)
    with pytest.raises(DeltaUnsupportedOperationException, match="several rows of the source"):
        merge(table, "SELECT 1L AS id, 2 AS v FROM range(2)")
    with pytest.raises(SchemaMismatchException, match="v"):
        merge(table, "SELECT 1L AS id, array(1) AS v")
    assert table.versions() == 3


def test_conflicts_with_what_the_condition_reads(table):
    create(table, column("id", "long"), column("p", "string"), partition_by=["p"])
    table.write("SELECT id, CASE WHEN id < 5 THEN 'a' ELSE 'b' END AS p FROM range(10)")
    for part, conflict in (("b", False), ("a", True)):
        handle = table.begin()
        staged = table.operate(
            handle, plan_merge, source="SELECT 1L AS id, 'a' AS p", condition=f"{ON} AND target.p = 'a'", clauses=UPSERT
        )
        table.write(f"SELECT 100L AS id, '{part}' AS p")
        if conflict:
            with pytest.raises(ConcurrentAppendException):
                table.publish(handle, staged)
        else:
            table.publish(handle, staged)


def test_a_source_of_other_names_and_types(table):
    made(table)
    source = "SELECT 5 AS `a.b c`, NULL AS nothing, current_timestamp() AS ts"
    clauses = [when_matched_update({"v": "s.nothing"}), when_not_matched_insert({"id": "1"})]
    merge(table, source, clauses, on="t.id <=> s.`a.b c`", source_alias="s", target_alias="t")
    assert (5, None) in rows(table)
    merge(table, "SELECT 5L AS id, 1 AS v, 'n' AS new", merge_schema=True)
    assert (5, 1, "n") in rows(table)
