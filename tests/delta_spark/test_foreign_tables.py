"""Tables as other writers leave them, and what Delta Spark makes of them: we read and refuse the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.contract.casts import WIDENS, cast_of
from airflow_delta.log.schema.types import parse_type
from delta_spark.support import delta_log, jvm
from support.actions import ATOMIC_TYPES
from support.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def foreign(table: Table, configuration: dict[str, Any], partition: Any) -> None:
    """Write version 0 of a table with one file, as another writer would."""
    log = table.path / "_delta_log"
    log.mkdir(parents=True)
    data = table.path / "x.parquet"
    pq.write_table(pa.table({"a": pa.array([1, 2], pa.int64())}), data)
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in (("a", "long"), ("p", "string"))]
    meta = {
        "id": "m",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": ["p"],
        "configuration": configuration,
    }
    add = {
        "path": "x.parquet",
        "partitionValues": {"p": partition},
        "size": data.stat().st_size,
        "modificationTime": 1,
        "dataChange": True,
        "tags": {"t": 1, "u": None},
    }
    actions = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": meta}, {"add": add}]
    (log / f"{0:020}.json").write_text("".join(json.dumps(action) + "\n" for action in actions))


@pytest.mark.parametrize("partition", [5, True, 1.5, None, "x"])
def test_values_that_are_no_strings(tmp_path: Path, delta: SparkSession, partition: Any) -> None:
    table = Table(tmp_path / "table", delta)
    foreign(table, {"delta.checkpointInterval": 5, "n": None, "b": True, "s": "x"}, partition)
    values = {row["p"] for row in delta.table(f"delta.`{table.path}`").collect()}
    known = delta_log(delta, table.path).unsafeVolatileSnapshot().metadata().configuration()
    theirs = {key: known.apply(key) for key in ("delta.checkpointInterval", "n", "b", "s")}
    ours = table.log().snapshot
    assert ours.metadata.configuration == theirs
    assert {dict(row)["p"] for row in ours.files()["partition_values"].to_pylist()} == values
    table.write("SELECT 3L AS a, 'y' AS p")
    delta_log(delta, table.path).checkpoint()
    read = table.log().snapshot
    assert read.metadata == ours.metadata
    assert {dict(row)["p"] for row in read.files()["partition_values"].to_pylist()} == {*values, "y"}
    delta.sql(f"INSERT INTO delta.`{table.path}` VALUES (4, 'z')")
    assert table.log().snapshot.version == 2


def test_the_casts_of_delta_spark(delta: SparkSession) -> None:
    """Type widening is Delta's for each of 225 pairs of types, and no cast that keeps values is one that Spark calls lossy."""
    packages = jvm(delta).org.apache.spark.sql
    of = {name: packages.types.DataType.fromDDL(str(parse_type(name))) for name in ATOMIC_TYPES}
    widening = getattr(getattr(packages.delta, "TypeWidening$"), "MODULE$")
    casts = getattr(getattr(packages.catalyst.expressions, "Cast$"), "MODULE$")
    for given in ATOMIC_TYPES:
        for target in ATOMIC_TYPES:
            if given != target:
                answer = cast_of(given, target)
                assert widening.isTypeChangeSupported(of[given], of[target]) is (answer == WIDENS), (given, target)
                assert answer is None or casts.canUpCast(of[given], of[target]), (given, target)


@pytest.mark.parametrize("columns", ["a STRING COLLATE UTF8_LCASE, b INT", "a ARRAY<STRING COLLATE UNICODE>, b INT"])
def test_collations_are_refused_by_both(tmp_path: Path, delta: SparkSession, columns: str) -> None:
    from airflow_delta.exceptions import SchemaMismatchException

    with pytest.raises(Exception, match="DELTA_UNSUPPORTED_DATA_TYPES"):
        delta.sql(f"CREATE TABLE delta.`{tmp_path}/theirs` ({columns}) USING delta")
    table = Table(tmp_path / "ours", delta)
    with pytest.raises(SchemaMismatchException, match="column a has the collation"):
        table.write(delta.createDataFrame([], columns))
    assert not table.path.exists() or len(table.versions()) == 0
