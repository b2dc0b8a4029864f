"""What DESCRIBE tells, and what it costs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from pyroaring import BitMap64

from airflow_delta.exceptions import DeltaTableNotFoundException
from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.deletion_vectors import inline_deletion_vector
from airflow_delta.log.snapshot import Snapshot
from airflow_delta.table.observe.describe import COUNTED_FILES, describe
from airflow_delta.table.stage.plan_create import plan_create
from support.actions import TABLE_ID, add, protocol, txn
from support.actions import metadata as metadata_of
from support.table import Table
from support.tables import append, create_table, write_checkpoint_by_hand, write_commit


def described(path) -> dict:
    return describe(DeltaLog.for_table(str(path)))


def stats(rows: int) -> str:
    return json.dumps({"numRecords": rows})


def test_a_table_in_full(tmp_path):
    configuration = {"delta.constraints.positive": "id > 0", "owner": "flights"}
    create_table(
        tmp_path,
        add("a.parquet", part="x", size=10, stats=stats(3)),
        configuration=configuration,
        partition_columns=["part"],
        name="flights",
        description="a flight a row",
    )
    write_commit(tmp_path, 1, add("b.parquet", part="y", size=20, stats=stats(4)), at=1_700_000_100_000)
    assert described(tmp_path) == {
        "name": "flights",
        "id": TABLE_ID,
        "description": "a flight a row",
        "location": str(tmp_path),
        "format": "delta",
        "version": 1,
        "created_at": 1_700_000_000_000,
        "last_modified": 1_700_000_100_000,
        "partition_columns": ["part"],
        "clustering_columns": [],
        "num_files": 2,
        "size_in_bytes": 30,
        "num_records": 7,
        "min_reader_version": 1,
        "min_writer_version": 2,
        "table_features": ["appendOnly", "invariants"],
        "properties": configuration,
        "check_constraints": {"positive": "id > 0"},
        "schema": [
            {"name": "id", "type": "bigint", "nullable": True, "comment": None},
            {"name": "part", "type": "string", "nullable": True, "comment": None},
        ],
    }
    assert json.loads(json.dumps(described(tmp_path))) == described(tmp_path)


def test_where_there_is_no_table(tmp_path):
    with pytest.raises(DeltaTableNotFoundException, match=f"no Delta table at {tmp_path}"):
        described(tmp_path)


def test_a_table_without_files(tmp_path):
    create_table(tmp_path)
    found = described(tmp_path)
    assert (found["num_files"], found["size_in_bytes"], found["num_records"]) == (0, 0, 0)


@pytest.mark.depends("sqlglot")
def test_clustering_columns_and_comments_under_the_names_of_the_schema(tmp_path):
    table = Table(tmp_path / "table")
    columns = "id BIGINT COMMENT 'of the flight', place STRUCT<`a.b`: STRING>"
    properties = {"delta.columnMapping.mode": "name"}
    table.run(plan_create, schema=columns, cluster_by=["id", "place.`a.b`"], properties=properties)
    found = described(table.path)
    assert found["clustering_columns"] == ["id", "place.`a.b`"]
    assert found["schema"][0]["comment"] == "of the flight"
    assert found["schema"][1]["type"] == "struct<`a.b`:string>"
    assert {"clustering", "columnMapping", "domainMetadata"} <= set(found["table_features"])


def test_rows_that_are_deleted_do_not_count(tmp_path):
    vector = inline_deletion_vector(BitMap64([0, 2]))
    features = ["deletionVectors"]
    write_commit(
        tmp_path,
        0,
        protocol(3, 7, reader_features=features, writer_features=features),
        metadata_of(),
        add("a.parquet", stats=stats(10), deletion_vector=vector),
        *(add(f"{number}.parquet", stats=stats(1)) for number in range(3)),
    )
    assert described(tmp_path)["num_records"] == 11
    actions = [*(add(f"more-{number}.parquet", stats=stats(1)) for number in range(60))]  # more than a checksum lists
    write_commit(tmp_path, 1, *actions)
    assert described(tmp_path)["num_records"] == 71


@pytest.mark.parametrize("text", [None, "{}", "damaged"])
def test_rows_are_not_told_when_a_file_does_not_tell_its_own(tmp_path, text):
    create_table(tmp_path, add("a.parquet", stats=stats(3)), add("b.parquet", stats=text))
    assert described(tmp_path)["num_records"] is None


def test_a_table_of_an_unknown_feature_is_described_all_the_same(tmp_path):
    features = ["rowsFromTheFuture"]
    write_commit(tmp_path, 0, protocol(3, 7, reader_features=features, writer_features=features), metadata_of())
    found = described(tmp_path)
    assert found["table_features"] == features
    assert (found["min_reader_version"], found["min_writer_version"]) == (3, 7)


def test_number_size_and_rows_come_from_the_checkpoint_where_there_is_no_checksum(tmp_path):
    create_table(tmp_path)
    files = [add(f"{number}.parquet", size=5, stats=stats(2)) for number in range(100)]
    write_checkpoint_by_hand(tmp_path, 1, [protocol(), metadata_of(), txn("a", 1), *files])
    append(tmp_path, 1)
    append(tmp_path, 2, stats=stats(9), size=7)
    found = described(tmp_path)
    assert (found["num_files"], found["size_in_bytes"], found["num_records"]) == (101, 507, 209)


def test_of_a_large_table_no_list_of_files_is_read(tmp_path, monkeypatch):
    table = Table(tmp_path / "table")
    path = table.path
    create_table(path)
    log = table.log()
    log.update().complete_state()
    log.write_checksum(log.snapshot)
    files = [add(f"{number}.parquet", size=1, stats=stats(1)) for number in range(COUNTED_FILES + 1)]
    write_commit(path, 1, *files)
    log.update()
    log.write_checksum(log.snapshot)
    append(path, 2, size=1)

    def refuse(*_args, **_kwargs):
        raise AssertionError("the list of files is read")

    for name in ("files", "add_files", "read_with_checkpoint"):
        monkeypatch.setattr(Snapshot, name, refuse)
    found = described(path)
    assert (found["num_files"], found["num_records"]) == (COUNTED_FILES + 2, None)


def test_describing_a_small_table_imports_nothing_heavy(tmp_path):
    create_table(tmp_path, add("a.parquet", stats=stats(3)))
    code = (
        "import sys; from airflow_delta.log import DeltaLog; from airflow_delta.table.observe.describe import describe; "
        f"assert describe(DeltaLog.for_table({str(tmp_path)!r}))['num_records'] == 3; "
        "print(sorted({'pyarrow', 'pyspark', 'obstore', 'airflow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
