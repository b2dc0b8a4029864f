"""Files of Avro, which Spark reads with a JAR that PySpark does not bring: each is loaded once, of one schema."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_delta.exceptions import SchemaMismatchException
from airflow_delta.log.storage.factory import store_for
from airflow_delta.spark.source_files import read_spark_files
from airflow_delta.table.positions.files.pattern import SourcePattern
from airflow_delta.table.positions.files.unloaded import CopyIntoOptions, SourceFiles, find_source_files
from support.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIELDS = [
    {"name": name, "type": kind, "nullable": True, "metadata": {}}
    for name, kind in (("id", "long"), ("day", "date"), ("price", "decimal(10,2)"), ("name", "string"))
]
SCHEMA = json.dumps({"type": "struct", "fields": FIELDS})
ROWS = "SELECT id, DATE'2026-01-01' + INT(id) AS day, CAST(id / 4 AS DECIMAL(10, 2)) AS price, 'n' || id AS name FROM range({})"


def test_each_file_once(delta: SparkSession, tmp_path: Path) -> None:
    table = Table(tmp_path / "t", delta)
    source = tmp_path / "in"

    def found() -> tuple[dict, SourceFiles]:
        handle = table.begin(schema=SCHEMA)
        pattern = SourcePattern.parse(f"{source}/*.avro")
        return handle, find_source_files(table.view(handle), store_for(pattern.base), pattern, CopyIntoOptions())

    for numbers in ("0, 3, 1, 1", "3, 5, 1, 1"):
        delta.sql(ROWS.format(numbers)).write.format("avro").mode("append").save(str(source))
        handle, files = found()
        files.check_one_avro_schema()
        paths = [f"{source}/{file.path}" for file in files.files]
        assert len(paths) == 1
        rows = read_spark_files(delta, paths, file_format="avro", options={}, table=json.loads(SCHEMA))
        table.publish(handle, dataclasses.replace(table.stage(handle, rows), loads=(files.load,)))
    assert not found()[1].files
    loaded = sorted(map(str, delta.sql(f"SELECT * FROM delta.`{table.path}`").collect()))
    assert loaded == sorted(map(str, delta.sql(ROWS.format("0, 5, 1, 1")).collect()))

    delta.sql("SELECT id FROM range(2)").write.format("avro").mode("append").save(str(source))
    delta.sql("SELECT id, 1 AS more FROM range(2)").write.format("avro").mode("append").save(str(source))
    with pytest.raises(SchemaMismatchException, match="different Avro schemas"):
        found()[1].check_one_avro_schema()
