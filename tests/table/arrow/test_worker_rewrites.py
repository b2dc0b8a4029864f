"""DELETE, OPTIMIZE and REORG in the worker: what is written, and what is left to Spark by name."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.exceptions import (
    DeltaAnalysisException,
    DeltaFileNotFoundException,
    DeltaUnsupportedOperationException,
    StagingException,
)
from airflow_delta.log.actions.actions import AddFile
from airflow_delta.table.arrow.rewrite.run import run_in_worker
from airflow_delta.table.operations.optimize.plan import plan_optimize
from airflow_delta.table.operations.optimize.reorg import plan_reorg
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.stage.scan import MAX_INLINE_WORDS
from support.actions import column
from support.feature_tables import create
from support.table import WorkerTable

VECTORS = {"delta.enableDeletionVectors": "true"}
IDS = column("id", "long")


@pytest.fixture
def table(tmp_path: Path) -> WorkerTable:
    return WorkerTable(tmp_path / "table")


def files(table: WorkerTable) -> list[AddFile]:
    return sorted(table.log().update().add_files(), key=lambda file: file.path)


def ids(table: WorkerTable) -> list[int]:
    return sorted(row[0] for row in table.rows())


def staged(table: WorkerTable) -> list[Path]:
    return list((table.path / "staged").rglob("*.parquet"))


@pytest.mark.parametrize("configuration", [{}, VECTORS], ids=["copy on write", "deletion vectors"])
def test_delete_in_place_and_across_files(table: WorkerTable, configuration: dict[str, str]) -> None:
    create(table, IDS, column("v", "integer"), **configuration)
    for first in (0, 200):
        table.write(pa.table({"id": range(first, first + 200), "v": pa.array([1] * 200, pa.int32())}))
    before = {file.path for file in files(table)}
    result = table.run(plan_delete, predicate="id IN (1, 3, 64, 199, 128) OR id >= 200")
    assert ids(table) == sorted(set(range(200)) - {1, 3, 64, 199, 128})
    [left] = files(table)
    metrics = table.info(result.version)["operationMetrics"]
    assert metrics["numDeletedRows"] == "205"
    if configuration:
        assert left.path in before
        assert left.deletion_vector is not None
        assert left.deletion_vector.cardinality == 5
        table.run(plan_delete, predicate="id < 10 OR id BETWEEN 60 AND 70")
        assert ids(table) == [i for i in range(10, 199) if i not in (128, *range(60, 71))]
    else:
        stored = pq.read_table(table.path / left.path, columns=["id"]).column(0).to_pylist()
        assert stored == ids(table), "in their order"


def test_vectors_too_large_for_the_plan(table: WorkerTable) -> None:
    create(table, IDS, **VECTORS)
    rows = 64 * (MAX_INLINE_WORDS + 10)
    table.write(pa.table({"id": range(rows)}))
    table.run(plan_delete, predicate=f"id IN ({', '.join(str(i) for i in range(0, rows, 64))})")
    request = plan_delete(table.view(table.begin()), predicate="id = 1").request
    assert request.rewrite.deleted_rows is not None
    table.run(plan_delete, predicate="id < 100")
    table.run(plan_reorg)
    [file] = files(table)
    assert file.deletion_vector is None
    assert ids(table) == [i for i in range(100, rows) if i % 64]


@pytest.mark.parametrize("words", [None, ""], ids=["none", "other rows"])
def test_a_plan_that_does_not_say_which_rows_are_deleted(table: WorkerTable, words: str | None) -> None:
    create(table, IDS, **VECTORS)
    table.write(pa.table({"id": range(10)}))
    table.run(plan_delete, predicate="id = 3")
    request = plan_delete(table.view(table.begin()), predicate="id = 1").request
    [file] = request.rewrite.files
    if words is not None:
        create(other := WorkerTable(table.path.parent / "other"), IDS, **VECTORS)
        other.write(pa.table({"id": range(10)}))
        other.run(plan_delete, predicate="id IN (4, 5)")
        [theirs] = plan_delete(other.view(other.begin()), predicate="id = 1").request.rewrite.files
        words = theirs.deletion_vector.words
    vector = dataclasses.replace(file.deletion_vector, words=words)
    plan = dataclasses.replace(request.rewrite, files=(dataclasses.replace(file, deletion_vector=vector),))
    with pytest.raises(StagingException, match="Clear the start task"):
        run_in_worker(table.log(), dataclasses.replace(request, rewrite=plan))


def test_a_compaction_makes_one_file_of_each_bin(table: WorkerTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where NaN is found after the file was begun, and where it is large."""
    monkeypatch.setattr("airflow_delta.table.arrow.files.ROW_GROUP_BYTES", 1000)
    monkeypatch.setattr("airflow_delta.table.arrow.files.FILE_BYTES", 1000)
    create(table, IDS, column("s", {"type": "struct", "fields": [column("f", "double")]}), **VECTORS)
    for first in (0, 1000):
        values = [{"f": float("nan") if first and i == 500 else float(i)} for i in range(1000)]
        table.write(pa.table({"id": range(first, first + 1000), "s": pa.array(values)}), options={"maxRecordsPerFile": 300})
    assert len(files(table)) == 8
    result = table.run(plan_optimize)
    [file] = files(table)
    assert result.num_removed_files == 8
    assert ids(table) == list(range(2000))
    stats = json.loads(file.stats or "")
    assert stats["minValues"] == {"id": 0}, "the greatest of the numbers is NaN"
    assert stats["nullCount"] == {"id": 0, "s": {"f": 0}}
    assert table.run(plan_optimize).committed_nothing or files(table) == [file], "nothing is left to compact"


def test_the_record_of_a_compaction_says_where_each_row_is(table: WorkerTable) -> None:
    create(table, IDS, **VECTORS)
    for first in (0, 100, 200):
        table.write(pa.table({"id": range(first, first + 100)}))
    table.run(plan_delete, predicate="id IN (0, 150, 151, 299)")
    handle = table.begin()
    gone = table.operate(handle, plan_delete, predicate="id IN (40, 160)")
    table.run(plan_optimize)  # moves the rows that the other has marked
    result = table.publish(handle, gone)
    assert "moved" in result.resolved
    assert ids(table) == sorted(set(range(300)) - {0, 40, 150, 151, 160, 299})


def test_what_only_spark_decides_is_refused_before_anything_is_written(table: WorkerTable) -> None:
    create(table, IDS, column("name", "string"))
    table.write(pa.table({"id": [1], "name": ["a"]}))
    before = staged(table)
    with pytest.raises(DeltaUnsupportedOperationException, match=r"xxhash64.*engine=.spark."):
        table.run(plan_delete, predicate="xxhash64(name) = 1")
    assert staged(table) == before


@pytest.mark.parametrize("configuration", [{}, VECTORS], ids=["copy on write", "deletion vectors"])
def test_variants_are_marked_and_not_copied(table: WorkerTable, configuration: dict[str, str]) -> None:
    create(table, IDS, column("v", "variant"), **{"delta.feature.variantType": "supported", **configuration})
    variant = pa.array([{"metadata": b"\x01\x00\x00", "value": b"\x0c\x01"}] * 2)
    put_file(table, pa.table({"id": [1, 2], "v": variant}))
    if configuration:
        table.run(plan_delete, predicate="id = 1")
        [file] = files(table)
        assert file.deletion_vector is not None
    else:
        with pytest.raises(DeltaUnsupportedOperationException, match="the variant column v"):
            table.run(plan_delete, predicate="id = 1")


def put_file(table: WorkerTable, rows: pa.Table, **partition: str) -> None:
    """Commit a file as another engine does."""
    pq.write_table(rows, table.path / "foreign.parquet")
    size = (table.path / "foreign.parquet").stat().st_size
    add = {"path": "foreign.parquet", "partitionValues": partition, "size": size, "modificationTime": 1, "dataChange": True}
    table.put_foreign(1, {"commitInfo": {"operation": "WRITE"}}, {"add": add})


def test_rows_stay_in_their_partition_as_the_log_spells_it(table: WorkerTable) -> None:
    create(table, IDS, column("t", "timestamp"), partition_by=("t",))
    put_file(table, pa.table({"id": [1, 2]}), t="2024-01-01 00:00:00")
    with pytest.raises(DeltaUnsupportedOperationException, match="whose t lacks a time zone"):
        table.run(plan_delete, predicate="id = 1 AND t < TIMESTAMP'2025-01-01 00:00:00 UTC'")
    table.run(plan_delete, predicate="id = 1")
    [file] = files(table)
    assert file.partition_values == {"t": "2024-01-01 00:00:00"}
    assert ids(table) == [2]


def test_a_value_that_directories_cannot_have(table: WorkerTable) -> None:
    create(table, IDS, column("p", "string"), partition_by=("p",))
    put_file(table, pa.table({"id": [1, 2]}), p="__HIVE_DEFAULT_PARTITION__")
    with pytest.raises(DeltaAnalysisException, match="spells null"):
        table.run(plan_delete, predicate="id = 1")
    table.run(plan_delete, predicate="id >= 1")  # nothing of the file is left to be written
    assert ids(table) == []


def test_a_file_that_is_gone(table: WorkerTable) -> None:
    create(table, IDS)
    table.write(pa.table({"id": [1, 2]}))
    [file] = files(table)
    (table.path / file.path).unlink()
    with pytest.raises(DeltaFileNotFoundException, match="is gone"):
        table.run(plan_delete, predicate="id = 1")


def test_options_of_the_writer(table: WorkerTable) -> None:
    create(table, IDS)
    table.write(pa.table({"id": range(100)}))
    table.run(plan_delete, predicate="id < 10", options={"maxRecordsPerFile": "40", "compression": "zstd"})
    found = files(table)
    assert sorted(json.loads(file.stats or "")["numRecords"] for file in found) == [10, 40, 40]
    assert all(pq.ParquetFile(table.path / file.path).metadata.row_group(0).column(0).compression == "ZSTD" for file in found)


def test_operations_of_spark_alone(table: WorkerTable) -> None:
    create(table, IDS)
    table.write(pa.table({"id": [1]}))
    request = plan_delete(table.view(table.begin()), predicate="id = 1").request
    with pytest.raises(StagingException, match="Only Spark does CONVERT"):
        run_in_worker(table.log(), dataclasses.replace(request, operation="CONVERT"))
    with pytest.raises(StagingException, match="without files"):
        run_in_worker(table.log(), dataclasses.replace(request, operation="OPTIMIZE", rewrite=None))
