"""CONVERT TO DELTA: what becomes of a directory of Parquet files, read back with delta-rs."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.exceptions import (
    ConcurrentWriteException,
    DeltaAnalysisException,
    DeltaFileNotFoundException,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    RowIdAssignmentWithoutStatsException,
    SchemaMismatchException,
)
from airflow_delta.log.schema.types import parse_schema
from airflow_delta.table.files import footers as table_footers
from airflow_delta.table.files.merged_schema import parse_partition_schema
from airflow_delta.table.files.parquet_schema import schema_of_footer
from airflow_delta.table.operations import convert, convert_files
from airflow_delta.table.operations import statistics as compute_statistics
from airflow_delta.table.operations.convert import convert_to_delta
from airflow_delta.table.read.read_table import read_table
from support import readers
from support.table import Table


def write(path: Path, columns: dict[str, Any], **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, **options)


def run(table: Table, key: str = "convert", **options: Any) -> Any:
    return convert_to_delta(table.log(), transaction_key=key, attempt="1-test", **options)


@pytest.fixture
def here(tmp_path: Path) -> Table:
    return Table(tmp_path / "a b%")


def stats(table: Table) -> dict[str, Any]:
    return {add["path"]: json.loads(add["stats"]) for add in table.actions(0)["add"]}


def test_partitions_escapes_and_later_columns(here: Table) -> None:
    write(here.path / "p=x%2Fy z" / "q=2020-01-02" / "ü+b%.parquet", {"id": [1, 2]})
    write(here.path / "p=__HIVE_DEFAULT_PARTITION__" / "q=2020-01-02" / "b.parquet", {"id": [3], "new": ["n"]})
    write(here.path / "_old" / "c.parquet", {"other": [3]})
    (here.path / "_SUCCESS").touch()
    (here.path / "p=x%2Fy z" / ".hidden.crc").touch()
    result = run(here, partition_schema="p STRING, q DATE")
    assert (result.version, result.num_files, result.operation) == (0, 2, "CONVERT")
    day = dt.date(2020, 1, 2)
    assert here.rows() == [(1, None, "x/y z", day), (2, None, "x/y z", day), (3, "n", None, day)]
    nulls = {path: each["nullCount"] for path, each in stats(here).items()}
    assert nulls == {
        "p=x%252Fy%20z/q=2020-01-02/%C3%BC+b%25.parquet": {"id": 0, "new": 2},
        "p=__HIVE_DEFAULT_PARTITION__/q=2020-01-02/b.parquet": {"id": 0, "new": 0},
    }
    info = here.info(0)
    assert info["operationParameters"]["partitionedBy"] == '["p","q"]'
    # The same run again finds its commit; another one finds a table.
    assert run(here, partition_schema="p STRING, q DATE").committed_before
    assert run(here, "other").attempts == 0
    assert len(here.versions()) == 1


def test_time_zones_of_directories(here: Table) -> None:
    write(here.path / "at=2020-07-01 10%3A00%3A00" / "a.parquet", {"id": [1]})
    write(here.path / "at=2020-07-01T08%3A00%3A00Z" / "b.parquet", {"id": [2]})
    run(here, partition_schema={"at": "TIMESTAMP"}, time_zone="Europe/Berlin")
    assert {add["partitionValues"]["at"] for add in here.actions(0)["add"]} == {"2020-07-01T08:00:00.000000Z"}


@pytest.mark.parametrize(
    ("path", "partitions", "message"),
    [
        ("p=1/a.parquet", None, "NUM_PARTITION_COLUMNS"),
        ("a.parquet", "p INT", "NUM_PARTITION_COLUMNS"),
        ("p=1/q=2/a.parquet", "q INT, p INT", "UNEXPECTED_PARTITION_COLUMN"),
        ("p=x/a.parquet", "p INT", "FAILED_CAST"),
        ("p=1_000/a.parquet", "p INT", "FAILED_CAST"),
        ("p=300/a.parquet", "p TINYINT", "FAILED_CAST"),
        ("p=20200101/a.parquet", "p DATE", "FAILED_CAST"),
        ("p=2020-13-01/a.parquet", "p DATE", "FAILED_CAST"),
        ("p=1/a.parquet", "p ARRAY<INT>", "cannot partition"),
        ("p=1/a.parquet", "p NOTYPE", "not a Spark SQL type"),
    ],
)
def test_directories_that_do_not_fit(here: Table, path: str, partitions: str | None, message: str) -> None:
    write(here.path / path, {"id": [1]})
    with pytest.raises(DeltaAnalysisException, match=message):
        run(here, partition_schema=partitions)
    assert not (here.path / "_delta_log").exists()


def test_files_that_do_not_fit(here: Table) -> None:
    with pytest.raises(DeltaFileNotFoundException, match="DELTA_EMPTY_DIRECTORY"):
        run(here)
    write(here.path / "a.parquet", {"id": [1], "s": pa.array([{"x": 1}])})
    write(here.path / "b.parquet", {"id": [2], "s": pa.array([{"x": "text"}])})
    with pytest.raises(SchemaMismatchException, match=r"s\.x: it is bigint in a\.parquet and string in b\.parquet"):
        run(here)
    write(here.path / "b.parquet", {"id": pa.array([2], pa.int32()), "s": pa.array([{"x": 2}])})
    write(here.path / "a.parquet", {"id": pa.array([1], pa.int8()), "s": pa.array([{"x": 1}])})
    write(here.path / "c.parquet", {"id": ["text"]})
    with pytest.raises(SchemaMismatchException, match=r"id: it is int in b\.parquet and string in c\.parquet"):
        run(here)
    (here.path / "c.parquet").unlink()
    (here.path / "b.parquet").write_text("a,b\n")
    with pytest.raises(DeltaAnalysisException, match=r"b\.parquet.*DELTA_FAILED_READ_FILE_FOOTER"):
        run(here)
    write(here.path / "b.parquet", {"at": pa.array([1], pa.timestamp("ns"))}, version="2.6")
    with pytest.raises(DeltaAnalysisException, match=r"b\.parquet .*column at has the Parquet type INT64"):
        run(here)
    write(here.path / "b.parquet", {"a b": [1]})
    with pytest.raises(DeltaAnalysisException, match="INVALID_CHARACTERS"):
        run(here)
    (here.path / "b.parquet").unlink()
    with pytest.raises(DeltaIllegalArgumentException, match="COLUMN_MAPPING"):
        run(here, properties={"delta.columnMapping.mode": "name"})
    with pytest.raises(RowIdAssignmentWithoutStatsException):
        run(here, properties={"delta.enableRowTracking": "true"}, collect_stats=False)
    staged = here.path / "staged" / "0b54bd2e-3d7c-4ae5-a1ba-9d4e2eb2b5a1" / "x" / "1-a"
    write(staged / "c.parquet", {"id": [1]})
    with pytest.raises(DeltaIllegalStateException, match="never committed"):
        run(here)
    (staged / "c.parquet").unlink()
    write(here.path / "d" / "inner" / "c.parquet", {"id": [1]})
    (here.path / "d" / "inner" / "_delta_log").mkdir()
    (here.path / "d" / "inner" / "_delta_log" / f"{0:020}.json").touch()
    with pytest.raises(DeltaIllegalStateException, match="another Delta table in d/inner"):
        run(here)
    assert not (here.path / "_delta_log").exists()


@pytest.mark.parametrize(
    ("column", "names", "says"),
    [
        (None, ["a", "A"], "columns a and A, which only differ in case"),
        (None, ["a", "a"], "column a twice"),
        ("s", ["x", "X"], "columns s.x and s.X"),
        ("l", ["x", "x"], r"column l\[element\].x twice"),
    ],
)
@pytest.mark.parametrize("others", [0, 1])
def test_a_file_with_a_column_twice(here: Table, column: str | None, names: list[str], says: str, others: int) -> None:
    both = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names)
    offsets = pa.array([0, 1], pa.int32())
    found = pa.Table.from_batches([pa.RecordBatch.from_struct_array(both)])
    if column is not None:
        found = pa.table({column: both if column == "s" else pa.ListArray.from_arrays(offsets, both)})
    for number in range(others):
        write(here.path / f"a{number}.parquet", {"a": [3]})
    here.path.mkdir(parents=True, exist_ok=True)
    pq.write_table(found, here.path / "b.parquet")
    with pytest.raises(SchemaMismatchException, match=rf"b\.parquet has the {says}.*DELTA_DUPLICATE_COLUMNS_FOUND"):
        run(here)
    assert not (here.path / "_delta_log").exists()


@pytest.mark.parametrize("numbers", [[1, 2**63, 2**64 - 1], [2**63, 2**64 - 2], [2**64 - 1], [1, 2]])
def test_unsigned_numbers_of_64_bits_are_decimals(here: Table, numbers: list[int]) -> None:
    """As in Spark; their bounds are unknown, since footers hold them as signed numbers."""
    write(here.path / "a.parquet", {"u": pa.array(numbers, pa.uint64())})
    run(here)
    assert [field["type"] for field in json.loads(here.log().update().metadata.schema_string)["fields"]] == ["decimal(20,0)"]
    [file] = stats(here).values()
    assert (file["minValues"], file["maxValues"], file["nullCount"]) == ({}, {}, {"u": 0})
    judged = [readers.READERS[name](here.uri, None).to_pylist() for name in ("delta-rs", "DuckDB")]  # Polars refuses the type
    assert read_table(here.log()).to_table().to_pylist() == judged[0] == judged[1] == [{"u": Decimal(each)} for each in numbers]
    for number in numbers:
        assert read_table(here.log(), where=f"u = {number}").to_table().to_pylist() == [{"u": Decimal(number)}]


def test_properties_and_features(here: Table) -> None:
    write(here.path / "a.parquet", {"id": [1, 2], "n": pa.array([1, 2], pa.timestamp("ms"))})
    properties = {"delta.enableDeletionVectors": "true", "delta.enableRowTracking": "true", "mine": "1"}
    run(here, properties=properties)
    snapshot = here.log().update()
    assert properties.items() <= snapshot.metadata.configuration.items()
    assert {"timestampNtz", "deletionVectors", "rowTracking"} <= set(snapshot.protocol.writer_features or ())
    [add] = here.actions(0)["add"]
    assert (add["baseRowId"], add["defaultRowCommitVersion"]) == (0, 0)
    assert json.loads(add["stats"])["tightBounds"] is True


def test_more_files_than_footers_in_memory(here: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (convert, table_footers):
        monkeypatch.setattr(module, "FILES_AT_ONCE", 3)
    for number in range(8):
        write(here.path / f"{number}.parquet", {"id": [number], f"c{number % 4}": [number]})
    run(here)
    assert len(here.rows()) == 8
    assert {len(each["nullCount"]) for each in stats(here).values()} == {5}
    assert compute_statistics.compute_statistics(here.log()).attempts == 0


def test_somebody_else_makes_the_table(here: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    write(here.path / "a.parquet", {"id": [1]})
    footers = convert_files.footers_of

    def slow(*arguments: Any) -> Any:
        run(Table(here.path), "faster") if not (here.path / "_delta_log").exists() else None
        return footers(*arguments)

    monkeypatch.setattr(convert, "footers_of", lambda *a: (monkeypatch.setattr(convert, "footers_of", footers), slow(*a))[1])
    with pytest.raises(ConcurrentWriteException):
        run(here)
    assert len(here.versions()) == 1


def test_what_spark_noted_goes_first(tmp_path: Path) -> None:
    fields = [
        {"name": "a", "type": "short", "nullable": False, "metadata": {"comment": "c", "delta.identity.start": 1}},
        {"name": "t", "type": "timestamp_ntz", "nullable": True, "metadata": {}},
    ]
    noted = json.dumps({"type": "struct", "fields": fields})
    table = pa.table({"a": pa.array([1], pa.int16()), "t": pa.array([1], pa.timestamp("us"))})
    table = table.replace_schema_metadata({"org.apache.spark.sql.parquet.row.metadata": noted})
    pq.write_table(table, tmp_path / "a.parquet")
    fields[0] |= {"nullable": True, "metadata": {"comment": "c"}}
    expected = parse_schema(json.dumps({"type": "struct", "fields": fields}))
    assert schema_of_footer(pq.read_metadata(tmp_path / "a.parquet")) == expected


def test_forms_of_a_partition_schema() -> None:
    text = parse_partition_schema("p STRING, `a,b` DECIMAL(5, 2)")
    assert text == parse_partition_schema({"p": "string", "a,b": "decimal(5,2)"})
    assert text.names == ("p", "a,b")
    form = '{"type":"struct","fields":[{"name":"p","type":"integer","nullable":false,"metadata":{}}]}'
    assert str(parse_partition_schema(form)) == "struct<p:int>"
    assert len(parse_partition_schema(None)) == 0
