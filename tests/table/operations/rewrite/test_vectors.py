"""Deletion vectors from the words that a report names, without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from airflow_delta.contract.payloads import StagedWrite
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.exceptions import StagedFileException, StagingException
from airflow_delta.log.actions.deletion_vectors import inline_deletion_vector, read_deletion_vector
from airflow_delta.spark.rewrite import FILE, NUMBER, WORD
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.stage.stage_view import SparkWork
from support.actions import add, column, metadata, protocol, schema
from support.table import Table
from support.tables import write_commit

ROWS = 200
NAMES = ("a b%20.parquet", "plain.parquet", "ü[1].parquet")
OLD = BitMap64([0, 63, 64, 199])


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table of three files: without statistics, with a vector, and ordinary."""
    table = Table(tmp_path / "ta ble")
    table.path.mkdir()
    adds = []
    for name in NAMES:
        pq.write_table(pa.table({"id": pa.array(range(ROWS), pa.int64())}), table.path / name)
        size = (table.path / name).stat().st_size
        vector = inline_deletion_vector(OLD) if name == NAMES[1] else None
        stats = None if name == NAMES[0] else json.dumps({"numRecords": ROWS, "tightBounds": vector is None})
        adds.append(add(quote(name), partition_values={}, size=size, stats=stats, deletion_vector=vector))
    about = metadata(
        schema_string=schema(column("id", "long")), partition_columns=[], configuration={"delta.enableDeletionVectors": "true"}
    )
    features = ["deletionVectors"]
    write_commit(table.path, 0, protocol(3, 7, reader_features=features, writer_features=features), about, *adds)
    return table


def collect(table: Table, marked: dict[str, BitMap64], *, rewritten: tuple[str, ...] | None = None) -> tuple[Any, StagedWrite]:
    """Delete rows as a report of Spark says it."""
    handle = table.begin()
    work = plan_delete(table.view(handle), predicate="id % 2 = 7")
    assert isinstance(work, SparkWork)
    request = work.request
    assert isinstance(request, StageRequest)
    assert request.deletion_vectors
    words: dict[tuple[str, int], int] = {}
    for name, rows in marked.items():
        uri = f"file:{quote(f'{table.path}/{name}')}"
        for row in rows:
            words[uri, row >> 6] = words.get((uri, row >> 6), 0) | 1 << (row & 63)
    directory = table.path / request.directory / "vector"
    directory.mkdir(parents=True)
    signed = [word - (1 << 64) if word >> 63 else word for word in words.values()]
    columns = {FILE: [key[0] for key in words], NUMBER: pa.array([key[1] for key in words], pa.int64())}
    pq.write_table(pa.table({**columns, WORD: pa.array(signed, pa.int64())}), directory / "part-0.parquet")
    report = StageReport(
        transaction_id=request.transaction_id,
        stage=request.stage,
        attempt=request.attempt,
        vector_directories=("vector",),
        written={"vector": {"numFiles": None, "numRows": len(words), "numBytes": None}},
        rewritten_files=tuple(map(quote, marked)) if rewritten is None else rewritten,
        metrics={"numDeletedRows": sum(map(len, marked.values()))},
        schema_string=request.schema_string or "",
    )
    return handle, work.collect(request, report)


def test_vectors_are_merged_and_empty_files_go(table):
    everything = BitMap64(range(ROWS))
    rows = {NAMES[0]: BitMap64([1, 62, 63, 127, 128, 191]), NAMES[1]: BitMap64([1, 65, 127]), NAMES[2]: everything}
    result = table.publish(*collect(table, rows))
    files = {f.path: f for f in table.log().update().add_files()}
    assert files.keys() == {quote(NAMES[0]), NAMES[1]}
    log = table.log()
    found = {path: read_deletion_vector(log.store, file.deletion_vector) for path, file in files.items()}
    assert found == {quote(NAMES[0]): rows[NAMES[0]], NAMES[1]: rows[NAMES[1]] | OLD}
    assert len({file.deletion_vector.path_or_inline_dv for file in files.values()}) == 1  # one file for all
    stats = json.loads(files[quote(NAMES[0])].stats)  # of its footer
    assert (stats["numRecords"], stats["maxValues"], stats["tightBounds"]) == (ROWS, {"id": 199}, False)
    metrics = table.info(result.version)["operationMetrics"]
    names = ("numRemovedFiles", "numDeletionVectorsAdded", "numDeletionVectorsRemoved", "numDeletionVectorsUpdated")
    assert [metrics[name] for name in names] == ["1", "2", "1", "1"]
    # The rest of the file that had a vector.
    table.publish(*collect(table, {NAMES[1]: everything - rows[NAMES[1]] - OLD}))
    assert [f.path for f in table.log().update().add_files()] == [quote(NAMES[0])]


@pytest.mark.parametrize(
    ("marked", "rewritten", "message"),
    [
        ({NAMES[1]: BitMap64([63])}, None, "already deleted"),
        ({NAMES[2]: BitMap64([ROWS])}, None, "row 200"),
        ({NAMES[2]: BitMap64([1])}, (), "does not list"),
        ({"other.parquet": BitMap64([1])}, (), "not in the scan plan"),
        ({NAMES[2]: BitMap64([1])}, ("other.parquet",), "not among the files"),
    ],
)
def test_reports_that_do_not_fit_the_table_are_refused(table, marked, rewritten, message):
    with pytest.raises(StagingException, match=message):
        collect(table, marked, rewritten=rewritten)


def test_a_vector_file_that_is_gone_is_found_before_the_commit(table):
    handle, staged = collect(table, {NAMES[2]: BitMap64([5])})
    [vector] = table.path.glob("staged/**/deletion_vector_*.bin")
    vector.unlink()
    with pytest.raises(StagedFileException):
        table.publish(handle, staged)


def test_nulls_that_a_footer_counts_are_those_of_the_file(tmp_path):
    table = Table(tmp_path / "table")
    table.path.mkdir()
    pq.write_table(pa.table({"id": pa.array([None, *range(1, 5)] + [None] * 4 + [9], pa.int64())}), table.path / NAMES[0])
    vector = inline_deletion_vector(BitMap64(range(5)))  # as many rows are left as the file has nulls
    file = add(
        quote(NAMES[0]), partition_values={}, size=(table.path / NAMES[0]).stat().st_size, stats=None, deletion_vector=vector
    )
    about = metadata(
        schema_string=schema(column("id", "long")), partition_columns=[], configuration={"delta.enableDeletionVectors": "true"}
    )
    features = ["deletionVectors"]
    write_commit(table.path, 0, protocol(3, 7, reader_features=features, writer_features=features), about, file)
    table.publish(*collect(table, {NAMES[0]: BitMap64([6])}))
    [left] = table.log().update().add_files("id = 9")
    stats = json.loads(left.stats)
    assert (stats["numRecords"], stats["nullCount"], stats["tightBounds"]) == (10, {"id": 5}, False)


def test_the_predicate_whose_rows_are_all_marked(table):
    _, staged = collect(table, {NAMES[2]: BitMap64([5])})
    assert staged.reads.marked == staged.reads.predicates == ("(id % 2 = 7)",)
    assert staged.reads.files == (quote(NAMES[2]),)
