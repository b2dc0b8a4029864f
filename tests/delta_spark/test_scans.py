"""Tables as Delta Spark writes them: the rows of our scan plans are the rows that Delta Spark reads, feature by feature."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from airflow_delta.contract.payloads import ScanPlan, TransactionHandle
from airflow_delta.exceptions import DeltaUnsupportedOperationException
from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.actions import AddFile
from airflow_delta.log.actions.deletion_vectors import (
    inline_deletion_vector,
    read_deletion_vector,
    read_deletion_vectors,
    write_deletion_vectors,
)
from airflow_delta.spark import read as reading
from airflow_delta.table.read.read_table import read_table
from airflow_delta.table.stage import scan
from airflow_delta.table.stage.view import view_of
from airflow_delta.table.state.read_snapshot import table_fields
from airflow_delta.transaction import Operation
from delta_spark.support import rows_of, sql_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAPPED = (
    "id LONG, p STRING, s STRUCT<a: INT, b: STRING>, arr ARRAY<STRUCT<x: INT, y: INT>>, m MAP<STRING, STRUCT<k: INT>>, d DATE"
)


def mapped(mode: str) -> list[str]:
    """A table with column mapping whose columns were renamed, dropped and added again under the same name."""
    return [
        f"CREATE TABLE {{t}} ({MAPPED}) USING delta PARTITIONED BY (p) TBLPROPERTIES('delta.columnMapping.mode'='{mode}', "
        "'delta.enableDeletionVectors'='true')",
        "INSERT INTO {t} SELECT /*+ REPARTITION(1) */ id, concat('p', id % 2), named_struct('a', int(id), 'b', concat('b', id)), "
        "array(named_struct('x', int(id), 'y', 2)), map('q', named_struct('k', int(id))), date'2024-01-01' FROM range(10)",
        "ALTER TABLE {t} RENAME COLUMN s TO `new s`",
        "ALTER TABLE {t} RENAME COLUMN `new s`.a TO aa",
        "ALTER TABLE {t} RENAME COLUMN p TO `part col`",
        "ALTER TABLE {t} RENAME COLUMN arr.element.x TO xx",
        "ALTER TABLE {t} DROP COLUMN d",
        "ALTER TABLE {t} ADD COLUMN (d STRING, id2 LONG)",
        "INSERT INTO {t} SELECT /*+ REPARTITION(1) */ id, if(id = 19, null, concat('p', id % 2)), named_struct('aa', int(id), "
        "'b', concat('b', id)), array(named_struct('xx', int(id), 'y', 2)), null, 'txt', 5 FROM range(10, 20)",
        "DELETE FROM {t} WHERE id % 4 = 0",
    ]


WIDENED = {
    "b": "INT",
    "s": "INT",
    "i": "LONG",
    "f": "DOUBLE",
    "d": "DECIMAL(12,4)",
    "dt": "TIMESTAMP_NTZ",
    "i2": "DOUBLE",
    "i3": "DECIMAL(12,2)",
    "l": "DECIMAL(22,2)",
    "st.x": "LONG",
    "arr.element": "INT",
    "m.key": "LONG",
    "m.value": "DOUBLE",
    "p": "LONG",
    "q": "TIMESTAMP_NTZ",
}

TABLES: dict[str, list[str]] = {
    "deletion vectors": [
        "CREATE TABLE {t} (id LONG, p STRING, v DOUBLE) USING delta PARTITIONED BY (p) "
        "TBLPROPERTIES('delta.enableDeletionVectors'='true')",
        "INSERT INTO {t} SELECT /*+ REPARTITION(1) */ id, concat('p %[1]ü ', id % 3), id * 1.5 FROM range(3000)",
        "DELETE FROM {t} WHERE id % 7 = 0 AND id % 3 < 2",
        "DELETE FROM {t} WHERE id in (1, 2, 3)",
        "UPDATE {t} SET v = -1 WHERE id = 500",
    ],
    "random prefixes": [
        "CREATE TABLE {t} (id LONG) USING delta "
        "TBLPROPERTIES('delta.enableDeletionVectors'='true', 'delta.randomizeFilePrefixes'='true')",
        "INSERT INTO {t} SELECT id FROM range(0, 100000, 1, 3)",
        "DELETE FROM {t} WHERE id % 3 = 0",
    ],
    "mapped by name": mapped("name"),
    "mapped by id": mapped("id"),
    "mapped later": [
        "CREATE TABLE {t} (id LONG, x INT) USING delta",
        "INSERT INTO {t} SELECT id, int(id) FROM range(5)",
        "ALTER TABLE {t} SET TBLPROPERTIES('delta.columnMapping.mode'='name', 'delta.minReaderVersion'='2', "
        "'delta.minWriterVersion'='5')",
        "ALTER TABLE {t} RENAME COLUMN x TO y",
        "ALTER TABLE {t} ADD COLUMN x STRING",
        "INSERT INTO {t} SELECT id, int(id), 's' FROM range(5, 8)",
    ],
    "widened": [
        "CREATE TABLE {t} (b BYTE, s SHORT, i INT, f FLOAT, d DECIMAL(5,2), dt DATE, i2 INT, i3 INT, l LONG, "
        "st STRUCT<x: SHORT>, arr ARRAY<BYTE>, m MAP<SHORT,INT>, p SHORT, q DATE) USING delta PARTITIONED BY (p, q) "
        "TBLPROPERTIES('delta.enableTypeWidening'='true', 'delta.feature.timestampNtz'='supported')",
        "INSERT INTO {t} SELECT 1Y, 2S, 3, float(1.1), 3.25BD, date'2024-02-29', 7, 8, 9L, named_struct('x', 4S), array(1Y, 2Y), "
        "map(1S, 2), 1S, date'2024-01-01'",
        "INSERT INTO {t} SELECT -1Y, -2S, -3, float(-1.1), -3.25BD, date'1000-02-28', -7, -8, -9L, named_struct('x', -4S), "
        "array(-1Y, null), map(-1S, -2), -1S, date'2024-01-02'",
        "INSERT INTO {t} (p) VALUES (null)",
        *[f"ALTER TABLE {{t}} ALTER COLUMN {column} TYPE {kind}" for column, kind in WIDENED.items()],
        "INSERT INTO {t} SELECT 100000, 100000, 5000000000, double(1.1), 3.2525BD, timestamp_ntz'2024-02-29 12:00:00.123456', "
        "7.5D, 8.25BD, 9.25BD, named_struct('x', 5000000000), array(100000), map(5000000000, 2.5D), 5000000000, "
        "timestamp_ntz'2024-01-01 12:00:00'",
    ],
    "variants": [
        "CREATE TABLE {t} (id INT, v VARIANT, s STRUCT<w: VARIANT>) USING delta "
        "TBLPROPERTIES('delta.enableDeletionVectors'='true')",
        "INSERT INTO {t} SELECT int(id), parse_json('{{\"a\": ' || id || '}}'), "
        "named_struct('w', parse_json('[1, 2]')) FROM range(6)",
        "DELETE FROM {t} WHERE id = 2",
    ],
    "shredded variants": [
        "CREATE TABLE {t} (id INT, v VARIANT) USING delta TBLPROPERTIES('delta.enableVariantShredding'='true')",
        'INSERT INTO {t} SELECT int(id), parse_json(\'{{"a": \' || id || \', "b": "x"}}\') FROM range(6)',
    ],
    "types": [
        "CREATE TABLE {t} (id INT, t TIMESTAMP, n TIMESTAMP_NTZ, s STRING, d DECIMAL(20,3), dt DATE, by BYTE, bo BOOLEAN, "
        "bin BINARY, p TIMESTAMP) USING delta PARTITIONED BY (p) TBLPROPERTIES('delta.feature.timestampNtz'='supported')",
        "INSERT INTO {t} SELECT /*+ REPARTITION(1) */ int(id), "
        "timestamp'2024-10-27 01:00:00.999999' + make_interval(0,0,0,0,int(id)), "
        "timestamp_ntz'2024-10-27 02:00:00.999999' + make_interval(0,0,0,0,int(id)), repeat('ä', int(id) * 20) || 'z''z', "
        "id || '.125', date'1500-01-01' + int(id), cast(id AS BYTE), id % 2 = 0, X'0a', "
        "timestamp'2024-10-27 00:30:00' + make_interval(0,0,0,0,int(id)) FROM range(6)",
        "INSERT INTO {t} (id) VALUES (99)",
    ],
}

PREDICATES: dict[str, list[str]] = {
    "deletion vectors": [
        "p = 'p %[1]ü 1'",
        "id < 100",
        "v = -1",
        "p = 'p %[1]ü 0' AND id BETWEEN 3 AND 40",
        "p like '%2' or id = 4",
        "v > id * 1.4 AND upper(p) LIKE 'P%0'",
        "id % 2 = 0 OR p = 'p %[1]ü 1' AND id < 50",
    ],
    "random prefixes": ["id >= 66666", "id IN (0, 1, 33333, 33334)"],
    "mapped by name": ["`part col` = 'p1'", "`new s`.aa > 15", "d IS NULL", "id2 = 5", "`part col` IS NULL or id < 3"],
    "mapped by id": ["`part col` = 'p1'", "`new s`.aa > 15", "d IS NULL", "id2 = 5"],
    "mapped later": ["y >= 3", "x = 's'"],
    "widened": [
        "b > 1",
        "i = 3",
        "f < 1.5",
        "d = 3.25",
        "dt >= timestamp_ntz'2024-02-29 00:00:00'",
        "st.x = 4",
        "i3 > 8",
        "p = 1",
        "q = timestamp_ntz'2024-01-01 12:00:00'",
        "p > 1 or i < 0",
    ],
    "variants": ["id > 1", "v IS NOT NULL"],
    "shredded variants": ["id = 3"],
    "types": [
        "t = timestamp'2024-10-27 03:00:00.999999'",
        "t > timestamp'2024-10-27 05:00:00.9995'",
        "n <= timestamp_ntz'2024-10-27 02:00:00.999999'",
        r"s = 'z\'z'",
        "s = 'z''z'",
        "d = 4.125",
        "dt < date'1500-01-03'",
        "by >= 4",
        "bo",
        "p = timestamp'2024-10-27 02:30:00'",
        "p IS NULL",
    ],
}

CASES = [(name, None) for name in TABLES] + [(name, text) for name, texts in PREDICATES.items() for text in texts]


@pytest.fixture(scope="module")
def made(delta: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Give the table of a name; Delta Spark writes it when it is asked for the first time."""
    root = tmp_path_factory.mktemp("scan tables %20")
    known: dict[str, Path] = {}

    def give(name: str) -> Path:
        if name not in known:
            known[name] = root / name
            for statement in TABLES[name]:
                delta.sql(statement.format(t=sql_name(known[name])))
        return known[name]

    return give


def plan(path: Path, predicate: str | None = None) -> ScanPlan:
    log = DeltaLog.for_table(str(path))
    snapshot = log.snapshot
    handle = TransactionHandle(
        transaction_id="5f0e5a0e-0000-4000-8000-000000000001",
        table=str(path),
        read_version=snapshot.version,
        staging_path=f"{path}/staged/t",
        app_id="a",
        txn_version=0,
        **table_fields(snapshot),
    )
    planned = scan.plan_scan(view_of(log, handle), predicate)
    return ScanPlan.from_dict(json.loads(json.dumps(planned.to_dict())))


def file_name(add: AddFile) -> str:
    return add.path.rpartition("/")[2]


def assert_same_rows(delta: SparkSession, path: Path, predicate: str | None) -> None:
    condition = "" if predicate is None else f" WHERE {predicate}"
    expected = delta.sql(f"SELECT * FROM {sql_name(path)}{condition}")
    found = reading.read_scan_plan(delta, plan(path, predicate))
    assert found.schema.simpleString() == expected.schema.simpleString()
    assert rows_of(found) == rows_of(expected) != []


@pytest.mark.parametrize(("name", "predicate"), CASES)
def test_the_rows_of_a_scan_plan_are_those_that_delta_spark_reads(delta, made, name, predicate):
    assert_same_rows(delta, made(name), predicate)


@pytest.mark.parametrize(("name", "predicate"), [case for case in CASES if "variants" not in case[0]])
def test_the_same_rows_without_spark(delta, made, name, predicate):
    path = made(name)
    log = DeltaLog.for_table(str(path))
    condition = "" if predicate is None else f" WHERE {predicate}"
    expected = delta.sql(f"SELECT * FROM {sql_name(path)}{condition}")
    assert rows_of(delta.createDataFrame(read_table(log, where=predicate).to_table())) == rows_of(expected) != []


@pytest.mark.parametrize("name", ["variants", "shredded variants"])
def test_variants_need_spark(made, name):
    log = DeltaLog.for_table(str(made(name)))
    with pytest.raises(DeltaUnsupportedOperationException, match="Column v cannot be read without Spark"):
        read_table(log)
    assert len(read_table(log, columns=["id"]).to_table()) in (5, 6)


@pytest.mark.parametrize("name", ["deletion vectors", "random prefixes", "mapped by name", "mapped by id", "types"])
def test_the_same_when_values_are_joined_and_deleted_rows_come_from_a_file(delta, made, monkeypatch, name):
    monkeypatch.setattr(reading, "MAX_LITERAL_PARTITIONS", 0)
    monkeypatch.setattr(scan, "MAX_INLINE_WORDS", 0)
    monkeypatch.setattr(reading, "MAX_BROADCAST_WORDS", 0)
    assert_same_rows(delta, made(name), None)


def test_files_of_other_values_are_left_out(made):
    path = made("mapped by name")
    everything = len(plan(path).files)
    for predicate in ("`part col` = 'p1'", "`new s`.aa > 15", "id >= 10"):
        assert 0 < len(plan(path, predicate).files) < everything


def test_vectors_that_we_write_are_read_by_delta_spark(delta, made, tmp_path):
    source = made("random prefixes")
    delta.sql(f"CREATE TABLE {sql_name(tmp_path / 'copy')} SHALLOW CLONE {sql_name(source)}")
    path = tmp_path / "copy"
    log, copy = DeltaLog.for_table(str(source)), DeltaLog.for_table(str(path))
    files, copied = (sorted(each.snapshot.add_files(), key=file_name) for each in (log, copy))  # a clone orders them anew
    assert all(add.deletion_vector is not None for add in files)
    bitmaps = read_deletion_vectors(log.store, [add.deletion_vector for add in files])
    assert [read_deletion_vector(copy.store, add.deletion_vector) for add in copied] == bitmaps
    for bitmap in bitmaps:
        bitmap.add_range(100, 20000)
    new = write_deletion_vectors(copy.store, "staged/tx/stage/1-ab", bitmaps)
    new[0] = inline_deletion_vector(bitmaps[0])
    transaction = copy.start_transaction()
    actions = []
    for add, descriptor in zip(copied, new, strict=True):
        stats = json.dumps({**json.loads(add.stats), "tightBounds": False})
        actions += [add.remove(1), replace(add, deletion_vector=descriptor, data_change=True, stats=stats)]
    transaction.filter_files()
    transaction.commit(actions, Operation("DELETE", {}))
    assert delta.sql(f"SELECT count(*) FROM {sql_name(path)}").collect()[0][0] == 100000 - sum(map(len, bitmaps))
    assert_same_rows(delta, path, None)
    assert_same_rows(delta, path, "id < 150")
