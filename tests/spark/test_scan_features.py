"""Scan plans over tables with deletion vectors and column mapping, read by a Spark that has no Delta."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from airflow_delta.contract.payloads import ScanFile, ScanPlan, TransactionHandle
from airflow_delta.exceptions import StagingException
from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.deletion_vectors import inline_deletion_vector, write_deletion_vectors
from airflow_delta.spark import read as reading
from airflow_delta.spark import read_scan_plan
from airflow_delta.table.stage import scan
from airflow_delta.table.stage.view import view_of
from airflow_delta.table.state.read_snapshot import table_fields
from support.actions import add, metadata, protocol
from support.table import Table
from support.tables import write_commit

pytestmark = pytest.mark.spark

ROWS = 5000
NAMES = ["plain", "with space", "per%cent", "grüße", "q[1]{2}*?", "pl+us"]
DELETED = [BitMap64(), BitMap64([0, 63, 64, ROWS - 1]), BitMap64(range(0, ROWS, 3)), BitMap64(range(100, 4900)), BitMap64([4095])]
SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in (("id", "long"), ("p", "string"))],
    }
)


def mapped(name: str, data_type: object, identity: int, physical: str | None = None) -> dict:
    mapping = {"delta.columnMapping.id": identity, "delta.columnMapping.physicalName": physical or f"col-{identity}"}
    return {"name": name, "type": data_type, "nullable": True, "metadata": mapping}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of six files of several row groups, five of them with deletion vectors: a file of three, and two inline."""
    path = tmp_path / "ta ble%20[x]ü"
    adds = []
    log = DeltaLog.for_table(str(path))
    stored = iter(write_deletion_vectors(log.store, "aB", DELETED[2:]))
    for number, name in enumerate(NAMES):
        key = f"dir {name}/part-{number}.parquet"
        (path / key).parent.mkdir(parents=True)
        ids = pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64())
        pq.write_table(pa.table({"id": ids}), path / key, row_group_size=700)
        vector = None if not number else inline_deletion_vector(DELETED[number - 1]) if number < 3 else next(stored)
        size = (path / key).stat().st_size
        values = {"p": None if number == 5 else f"v{number % 2}"}
        stats = json.dumps({"numRecords": ROWS})
        adds.append(add(quote(key, safe="/=+"), partition_values=values, size=size, stats=stats, deletion_vector=vector))
    features = ["deletionVectors"]
    write_commit(
        path,
        0,
        protocol(3, 7, reader_features=features, writer_features=features),
        metadata(schema_string=SCHEMA, partition_columns=["p"]),
        *adds,
    )
    return path


def planned(path: Path, predicate: str | None = None) -> ScanPlan:
    plan = scan.plan_scan(view_of(DeltaLog.for_table(str(path)), handle(path)), predicate)
    return ScanPlan.from_dict(json.loads(json.dumps(plan.to_dict())))


def handle(path: Path) -> TransactionHandle:
    return TransactionHandle(
        transaction_id="t",
        table=str(path),
        read_version=0,
        staging_path=f"{path}/staged/t",
        app_id="a",
        txn_version=0,
        **table_fields(DeltaLog.for_table(str(path)).snapshot_at(0)),
    )


EXPECTED = sorted(
    number * ROWS + position
    for number, deleted in enumerate([BitMap64(), *DELETED])
    for position in range(ROWS)
    if position not in deleted
)


@pytest.mark.parametrize(
    ("where", "values", "reader"),
    [
        ("in the plan", "as literals", "vectorised, split"),
        ("in a file", "joined by path", "vectorised, split"),
        ("in the plan", "joined by path", "row by row"),
        ("in a file", "as literals", "sort merge"),
    ],
)
@pytest.mark.slow
def test_deleted_rows_are_left_out(spark, table, monkeypatch, where, values, reader):
    monkeypatch.setattr(scan, "MAX_INLINE_WORDS", 10**6 if where == "in the plan" else 0)
    monkeypatch.setattr(reading, "MAX_LITERAL_PARTITIONS", 100 if values == "as literals" else 0)
    settings = {
        "spark.sql.parquet.enableVectorizedReader": str(reader != "row by row").lower(),
        "spark.sql.files.maxPartitionBytes": "5000" if "split" in reader else "134217728",
        "spark.sql.files.openCostInBytes": "1",
    }
    if reader == "sort merge":
        monkeypatch.setattr(reading, "MAX_BROADCAST_WORDS", 0)
    plan = planned(table)
    assert (plan.deleted_rows is None) == (where == "in the plan")
    assert [f.deletion_vector and f.deletion_vector.cardinality for f in plan.files] == [None, *map(len, DELETED)]
    before = {key: spark.conf.get(key) for key in settings}
    try:
        for key, value in settings.items():
            spark.conf.set(key, value)
        df = read_scan_plan(spark, plan)
        assert ("SortMergeJoin" in df._jdf.queryExecution().toString()) == (reader == "sort merge")
        assert sorted(row["id"] for row in df.collect()) == EXPECTED
        # Filters are pushed into the files; positions stay those in the whole file.
        found = read_scan_plan(spark, planned(table, "id % 1000 = 999 AND id > 7000 AND (p = 'v0' OR p IS NULL)")).collect()
        wanted = [i for i in EXPECTED if i % 1000 == 999 and i > 7000 and i // ROWS in (2, 4, 5)]
        assert sorted(row["id"] for row in found) == wanted != []
    finally:
        for key, value in before.items():
            spark.conf.set(key, value)


def test_the_cost_follows_the_vectors(table):
    plan = planned(table)
    assert [f.deletion_vector and f.deletion_vector.num_words for f in plan.files] == [None, 0, 3, 79, 76, 1]
    assert len(json.dumps(plan.to_dict())) < 6000


def test_a_plan_that_lost_its_words_is_refused(spark, table):
    payload = planned(table).to_dict()
    for file in payload["files"]:
        if file["deletionVector"] is not None:
            file["deletionVector"]["words"] = None
    with pytest.raises(StagingException, match="not which"):
        read_scan_plan(spark, ScanPlan.from_dict(payload))


def test_a_rewrite_copies_live_rows_only_and_removes_the_file_with_its_vector(spark, table, monkeypatch):
    monkeypatch.setattr(scan, "MAX_INLINE_WORDS", 0)
    flow = Table(table, spark)
    flow.write("SELECT 1L AS id, 'v1' AS p WHERE false", mode="overwrite", replace_where="id = 15001")
    commit = flow.actions(1)
    [removed] = commit["remove"]
    assert removed["deletionVector"]["cardinality"] == len(DELETED[2])
    assert all("deletionVector" not in written for written in commit["add"])
    assert sum(json.loads(written["stats"])["numRecords"] for written in commit["add"]) == ROWS - len(DELETED[2]) - 1
    assert commit["commitInfo"][0]["operationMetrics"]["numDeletedRows"] == "1"
    assert not list(table.glob("staged/*/_scans/*"))  # no VACUUM would find it
    assert sorted(row[0] for row in flow.read(flow.begin())) == [i for i in EXPECTED if i != 15001]


@pytest.mark.parametrize("by_id", [True, False])
def test_columns_are_found_by_id_or_by_physical_name(spark, tmp_path, by_id):
    """By id: whatever the columns of the file are called."""

    def column(kind: pa.DataType, identity: int) -> pa.Field:
        physical = f"another {identity}" if by_id else f"col-{identity}"
        return pa.field(physical, kind, metadata={"PARQUET:field_id": str(identity)})

    inner = pa.struct([column(pa.int32(), 4), column(pa.string(), 5)])
    items = pa.list_(pa.field("element", pa.struct([column(pa.int32(), 7)])))
    schema = pa.schema([column(pa.int64(), 1), column(inner, 3), column(items, 6), column(pa.int64(), 8)])
    rows = [pa.array([1, 2], pa.int64()), pa.array([{inner[0].name: 7, inner[1].name: "b"}, None], inner)]
    rows += [pa.array([[{items.value_type[0].name: 5}], []], items), pa.array([0, 0], pa.int64())]
    pq.write_table(pa.table(rows, schema=schema), tmp_path / "a.parquet")
    struct_type = {"type": "struct", "fields": [mapped("B b", "string", 5), mapped("a.a", "integer", 4)]}
    list_type = {"type": "array", "elementType": {"type": "struct", "fields": [mapped("xx", "integer", 7)]}, "containsNull": True}
    fields = [
        mapped("l", list_type, 6),
        mapped("col-8", "string", 2),
        mapped("part", "integer", 20),
        mapped("_metadata", "long", 1),
        mapped("s s", struct_type, 3),
        mapped("added", "string", 21),
    ]
    plan = ScanPlan(
        transaction_id="t",
        table=f"file://{tmp_path}",
        read_version=1,
        schema_string=json.dumps({"type": "struct", "fields": fields}),
        partition_columns=("part",),
        column_mapping="id" if by_id else "name",
        predicate="part = 3",
        files=(ScanFile(path="a.parquet", partition_values={"col-20": "3"}, size=1),),
    )
    df = read_scan_plan(spark, plan)
    assert df.schema.simpleString() == (
        "struct<l:array<struct<xx:int>>,col-8:string,part:int,_metadata:bigint,s s:struct<B b:string,a.a:int>,added:string>"
    )
    assert not [f.metadata for f in df.schema.fields if any(key.startswith("delta.") for key in f.metadata)]
    assert [row.asDict(recursive=True) for row in df.orderBy("_metadata").collect()] == [
        {"l": [{"xx": 5}], "col-8": None, "part": 3, "_metadata": 1, "s s": {"B b": "b", "a.a": 7}, "added": None},
        {"l": [], "col-8": None, "part": 3, "_metadata": 2, "s s": None, "added": None},
    ]
