"""Sources that SQL or a path names, read by the worker itself: the rows, reads and positions of Spark on the same statement."""

from __future__ import annotations

import copy
import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk import DAG

from airflow_delta.contract.merge import when_matched_delete, when_matched_update, when_not_matched_insert
from airflow_delta.contract.payloads import TransactionHandle
from airflow_delta.exceptions import (
    ConcurrentAppendException,
    DeltaFileNotFoundException,
    DeltaIllegalArgumentException,
    DeltaUnsupportedOperationException,
    SchemaMismatchException,
)
from airflow_delta.operators.merge import DeltaMergeOperator
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.read.read_table import read_table
from support import readers
from support.actions import column
from support.feature_tables import create
from support.running_tasks import context
from support.table import Table, WorkerTable
from support.watching import commit, start

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("outside_of_the_task_runner")]

POINT = {"type": "struct", "fields": [column("x", "integer"), column("y", "integer")]}
COLUMNS = [column("id", "long"), column("v", "integer"), column("Name", "string"), column("at", POINT), column("day", "date")]
ARROW = pa.schema(
    [
        ("id", pa.int64()),
        ("v", pa.int32()),
        ("Name", pa.string()),
        ("at", pa.struct([("x", pa.int32()), ("y", pa.int32())])),
        ("day", pa.date32()),
    ]
)


def rows_of(*ids: int, add: int = 0) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "id": number,
                "v": None if number % 5 == 0 else number + add,
                "Name": "abc"[number % 3],
                "at": {"x": number, "y": None},
                "day": dt.date(2026, 1, 1 + number % 2),
            }
            for number in ids
        ],
        ARROW,
    )


class Lake:
    """A table of ten rows, another one at two versions with deleted rows, and files; a merge begins with a copy of the table."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.table = WorkerTable(path / "table")
        create(self.table, *COLUMNS, partition_by=("day",), **{"delta.columnMapping.mode": "name"})
        self.table.write(rows_of(*range(10)))
        self.other = WorkerTable(path / "other")
        properties = {"delta.enableDeletionVectors": "true", "delta.columnMapping.mode": "name"}
        create(self.other, *COLUMNS, column("note", "string", comment="why"), partition_by=("day",), **properties)
        self.other.write(rows_of(*range(5, 25), add=100).append_column("note", pa.array(["n"] * 20)))
        self.other.run(plan_delete, predicate="id IN (7, 21)")
        self.version = self.other.log().update().version
        self.other.write(rows_of(90).append_column("note", pa.array(["late"])))
        (path / "landing").mkdir()
        for number in (0, 1):
            pq.write_table(rows_of(*range(8 + number, 20, 2), add=50), path / f"landing/part-{number}.parquet")
        self.copies = self.runs = 0

    def copy(self) -> Table:
        self.copies += 1
        table = Table(self.path / f"copy{self.copies}")
        table.copy_from(self.table)
        return table

    def merge(self, table: Table, source: Any, **arguments: Any) -> dict[str, Any]:
        """Stage a MERGE, and return what it has staged."""
        arguments = {"condition": "target.id = source.id", **arguments}
        self.runs += 1
        handle = start(table.uri, transaction_key=f"run-{self.runs}", delta_conn_id="lake")
        with DAG("merges", schedule=None) as dag:
            operator = DeltaMergeOperator(
                task_id="merged", transaction=handle, table=table.uri, delta_conn_id="lake", source=source, **arguments
            )
        operator = copy.copy(operator)
        running = context(operator, dag=dag)
        operator.render_template_fields(running)
        staged = operator.execute(running)
        table.publish(TransactionHandle.from_dict(handle), staged)
        return staged


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "delta", "host": str(tmp_path)}))
    return Lake(tmp_path)


def shown(table: Table) -> Any:
    """Return the rows, and all that is known of the columns but their ids and names in files."""
    rows = read_table(table.log()).to_table()
    fields = [(f.name, str(f.data_type), f.metadata.get("comment")) for f in table.log().update().schema]
    return fields, readers._comparable(rows.to_pylist())


def ordered(value: Any) -> Any:
    """Return a payload whose lists have one order."""
    if isinstance(value, dict):
        return {name: ordered(each) for name, each in value.items()}
    return sorted(map(ordered, value), key=repr) if isinstance(value, list) else value


UPSERT = [when_matched_update(), when_not_matched_insert()]
QUERIES: dict[str, tuple[str, dict[str, Any]]] = {
    "the table itself": (
        "SELECT id + 5 AS id, v * 2 v, upper(NAME) AS Name, `at`, day FROM {{ table }} WHERE id > 2 AND v IS NOT NULL",
        {},
    ),
    "a star": ("select * from other", {}),
    "some rows, with new columns": (
        "SELECT *, concat(o.name, '!') AS loud FROM other AS o WHERE o.at.x < 12 OR day = DATE'2026-01-01'",
        {"merge_schema": True},
    ),
    "a star of an alias": ("SELECT o.* FROM OTHER o -- all of it\n", {"merge_schema": True}),
    "fields of structs": (
        "SELECT id, at.X, other.at.y AS why, CAST(NULL AS INT) AS v FROM other WHERE id <> 9",
        {
            "merge_schema": True,
            "clauses": [
                when_matched_update({"v": "source.x", "at.y": "source.why"}),
                when_not_matched_insert({"id": "id", "X": "x"}),
            ],
        },
    ),
    "no column of it": (
        "SELECT 3L AS id, 1.5 AS d FROM other WHERE id = 6",
        {"clauses": [when_matched_update({"v": "CAST(source.d AS INT)"}, "source.d > 1")]},
    ),
    "no rows": ("SELECT id FROM other WHERE false", {"clauses": [when_matched_delete()]}),
    "files": ("SELECT id, v, name, at, day FROM parquet.`{landing}` f WHERE f.id < 15", {}),
}


@pytest.mark.spark
@pytest.mark.parametrize("query", QUERIES)
def test_the_same_as_on_spark(lake: Lake, spark: Any, query: str) -> None:
    sql, arguments = QUERIES[query]
    sql = sql.replace("{landing}", str(lake.path / "landing"))
    arguments = {"clauses": UPSERT, **arguments}
    if "other" in sql.lower():
        arguments["read_versions"] = {"other": lake.version}
    tables = [lake.copy(), lake.copy()]
    staged = [
        lake.merge(table, sql, engine=engine, **arguments) for table, engine in zip(tables, ("arrow", "spark"), strict=True)
    ]
    assert shown(tables[0]) == shown(tables[1])
    assert shown(tables[0]) != shown(lake.table) or query == "no rows"
    assert ordered(staged[0]["reads"]) == ordered(staged[1]["reads"])
    assert bool(staged[0]["reads"].get("wholeTable")) is ("table" in query)


@pytest.mark.spark
def test_new_rows_of_another_table(lake: Lake, spark: Any) -> None:
    """The commit records the position, from which the next run reads on."""
    tables = [lake.copy(), lake.copy()]
    for _ in range(2):
        staged = [
            lake.merge(
                table,
                "SELECT id, v, name, at, day FROM other",
                engine=engine,
                clauses=UPSERT,
                new_rows={
                    "other": {"consumer": "me", "ignore_deletes": True, "starting_version": 0, "skip_change_commits": True}
                },
            )
            for table, engine in zip(tables, ("arrow", "spark"), strict=True)
        ]
        assert shown(tables[0]) == shown(tables[1])
        positions = [{**each["sources"][0], "appId": None} for each in staged]
        assert positions[0] == positions[1]
        lake.other.write(rows_of(200).append_column("note", pa.array(["x"])))
    assert len(shown(tables[0])[1]) == 10 + 15 + 1 + 1


def test_what_reads_the_table_conflicts_with_new_rows(lake: Lake) -> None:
    table = lake.copy()
    handle = start(table.uri, transaction_key="mine")
    operator = DeltaMergeOperator(
        task_id="merged",
        transaction=handle,
        source="SELECT id, v FROM {{ table }} WHERE id = 1",
        condition="target.id = source.id",
        clauses=[when_matched_update({"v": "source.v + 1"})],
        engine="arrow",
    )
    running = context(operator)
    operator.render_template_fields(running)
    staged = operator.execute(running)
    table.write(rows_of(1000))
    committed = commit(handle, staged)
    with pytest.raises(ConcurrentAppendException):
        committed.execute(context(committed))


@pytest.mark.parametrize("named", ["path", "sql"])
@pytest.mark.parametrize("version", [None, 1])
def test_a_delta_table_at_a_path(lake: Lake, named: str, version: int | None) -> None:
    """Spark reads one with Delta's JARs only; so this has the rows of ``read_versions``."""
    path = str(lake.other.path)
    options = {} if version is None else {"options": {"versionAsOf": version}}
    if named == "sql" and version is not None:
        with pytest.raises(DeltaUnsupportedOperationException, match=r"'VERSION AS OF 1' is not read here.*engine=.spark."):
            lake.merge(lake.copy(), f"SELECT * FROM delta.`{path}` VERSION AS OF 1", engine="arrow")
        return
    source: Any = f"SELECT * FROM delta.`{path}`" if named == "sql" else {"format": "delta", "path": path, **options}
    here, there = lake.copy(), lake.copy()
    lake.merge(here, source, engine="arrow", merge_schema=True)
    newest = lake.other.log().update().version
    versions = {"other": newest if version is None else version}
    lake.merge(there, "SELECT * FROM other", engine="arrow", merge_schema=True, read_versions=versions)
    assert shown(here) == shown(there)
    assert len(shown(here)[1]) == 10 + (14 + 1 if version is None else 15)


def test_a_function_that_reads_the_table(lake: Lake) -> None:
    def source(table, transaction):
        assert transaction.read_version == 1
        return table.read("id = 3", columns=["id", "v"])

    table = lake.copy()
    staged = lake.merge(
        table, source, engine="arrow", clauses=[when_matched_update({"v": "source.v + 1"})], condition="target.id = source.id"
    )
    assert "id = 3" in staged["reads"]["predicates"]
    assert [row["v"] for row in read_table(table.log(), where="id = 3").to_table().to_pylist()] == [4]
    with pytest.raises(DeltaIllegalArgumentException, match="a parameter spark: there is no Spark session"):
        DeltaMergeOperator(task_id="t", table="t", condition="a = b", source=lambda spark: spark.range(1), engine="arrow")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("SELECT count(1) AS id FROM {{ table }}", "count"),
        ("SELECT id FROM {{ table }} ORDER BY id", "'ORDER BY id' is not read here"),
        ("SELECT DISTINCT id FROM {{ table }}", "'DISTINCT id"),
        ("SELECT t.id FROM {{ table }} t JOIN {{ table }} s ON s.id = t.id", "'JOIN"),
        ("WITH a AS (SELECT 1 AS id) SELECT * FROM a", "'WITH a"),
        ("SELECT id + 1 FROM {{ table }}", "'id \\+ 1' has no name: write AS"),
        ("SELECT id AS a, a + 1 AS b FROM {{ table }}", "a is the name of another column"),
        ("SELECT id FROM somewhere", "somewhere is not a table that it knows"),
        ("SELECT at.* FROM {{ table }}", r"at\.\* is not of its only relation"),
        ("SELECT * FROM csv.`/x`", "is not read here"),
        ({"format": "jdbc", "options": {"dbtable": "x"}}, "its format is jdbc"),
        ({"format": "csv", "path": "/x"}, "its format is csv"),
        ({"format": "parquet", "path": "/x", "options": {"mergeSchema": "true"}}, "it has the options mergeSchema"),
        ({"format": "delta", "path": "/x", "options": {"timestampAsOf": "2026-01-01"}}, "it has the option timestampAsOf"),
        ({"format": "parquet", "path": "x"}, "'x' is not an absolute path"),
        ({"format": "parquet", "path": "/x", "conn_id": "landing"}, "with the connection 'landing'"),
    ],
)
def test_what_only_spark_reads_is_refused(lake: Lake, source: Any, says: str) -> None:
    table = lake.copy()
    before = sorted(table.path.rglob("*.parquet"))
    with pytest.raises(DeltaUnsupportedOperationException, match=f"(?s)source that is not read here .*{says}.*engine=.spark."):
        lake.merge(table, source, engine="arrow")
    assert sorted(table.path.rglob("*.parquet")) == before


def test_files_that_spark_may_read_otherwise(lake: Lake) -> None:
    landing = lake.path / "landing"
    source = {"path": str(landing)}
    pq.write_table(pa.table({"id": [1]}), landing / "part-2.parquet")
    with pytest.raises(SchemaMismatchException, match=r"part-0\.parquet and .*part-2\.parquet .* different columns or types"):
        lake.merge(lake.copy(), source, engine="arrow")
    (landing / "part-2.parquet").unlink()
    (landing / "day=2026-01-01").mkdir()
    pq.write_table(rows_of(1), landing / "day=2026-01-01/x.parquet")
    with pytest.raises(DeltaUnsupportedOperationException, match="of which Spark may make columns"):
        lake.merge(lake.copy(), source, engine="arrow")
    with pytest.raises(DeltaFileNotFoundException, match="has no files"):
        lake.merge(lake.copy(), {"path": str(lake.path / "nothing") + "/"}, engine="arrow")
    table = lake.copy()
    link = lake.path / "link"
    link.symlink_to(table.path)
    for spelled in (table.uri, f"{table.path}/", str(link)):
        with pytest.raises(DeltaIllegalArgumentException, match=r"itself by its path.*\{\{ table \}\}"):
            lake.merge(table, f"SELECT * FROM delta.`{spelled}`", engine="arrow")


def test_what_goes_with_spark_is_said_when_the_dag_is_parsed() -> None:
    with pytest.raises(DeltaIllegalArgumentException, match="spark_submit is for Spark"):
        DeltaMergeOperator(task_id="t", table="t", condition="a = b", source="SELECT 1", engine="arrow", spark_submit={})


def test_a_decimal_is_one(lake: Lake) -> None:
    table = lake.copy()
    sql = "SELECT id, CAST(v AS DECIMAL(5,2)) AS d FROM {{ table }}"
    lake.merge(table, sql, engine="arrow", merge_schema=True, clauses=[when_matched_update({"d": "source.d"})])
    assert read_table(table.log(), where="id = 3").to_table().column("d").to_pylist() == [Decimal("3.00")]
