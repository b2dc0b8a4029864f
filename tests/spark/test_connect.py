"""The same through Spark Connect, without a gateway to the JVM. In a process of its own: one Python has one kind of session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession
from support.table import Table
from airflow_delta.table.operations.merge.plan import plan_merge
from airflow_delta.tasks.spark.storage import _connect_settings
from airflow_delta.spark import read as reading
from airflow_delta.spark.errors import storage_error
from airflow_delta.table.operations.merge.scd2 import history_columns, plan_history
from airflow_delta.contract.merge import when_matched_delete
from airflow_delta.contract.scd2 import HistoryArguments
from pyspark.errors import ParseException

spark = SparkSession.builder.remote("local[1]").getOrCreate()
table = Table(Path(sys.argv[1]), spark)
out = {"session": type(spark).__module__}
table.write("SELECT * FROM VALUES (1, 'a b', 10), (2, 'b', 30), (3, 'b', NULL) AS t(id, p, v)", begin={"partition_by": ["p"]})
table.write("SELECT 9 AS id, 'c' AS p, 99 AS v", mode="overwrite", replace_where="v >= 30")
handle = table.begin()
out["rows"], out["literals"] = table.rows(), table.read(handle)
reading.MAX_LITERAL_PARTITIONS = 0
out["joined"] = table.read(handle)
out["keys"] = []
for text in ("CAST(X'61FF' AS STRING)", "'ü'"):
    options = {"condition": "target.p = source.k AND target.v = source.v", "clauses": [when_matched_delete()]}
    reads = table.operate(handle, plan_merge, source=f"SELECT {text} AS k, 3000000000L AS v", **options).reads
    out["keys"] += [[key.columns, key.rows] for key in reads.keys]
out["errors"] = []
for rows, options in (
    ("SELECT 9 AS id, 'c' AS p, 1 AS v", {"mode": "overwrite", "replace_where": "v >= 30"}),
    ("SELECT 3000000000L AS id, 'c' AS p, 1 AS v", {}),
    ("SELECT 'x' AS id", {}),
):
    try:
        table.write(rows, **options)
    except Exception as error:
        out["errors"].append(type(error).__name__)
try:
    spark.sql("SELECT * FROM (WITH a AS (SELECT 1 AS id) INSERT INTO t SELECT * FROM a)")
except ParseException:
    out["errors"].append("ParseException")
numbered = Table(Path(sys.argv[1] + "-numbered"), spark)
numbered.write("SELECT 1 AS id, 2 AS part", begin={"partition_by": ["part"]})
numbered.write("SELECT 5 AS id, 2 AS part", mode="overwrite", replace_where="part = 2")
out["numbered"] = numbered.rows()
versions = Table(Path(sys.argv[1] + "-versions"), spark)
versions.write("SELECT 1 AS id, 'a' AS v, DATE'2026-01-01' AS valid_from, CAST(NULL AS DATE) AS valid_to, true AS is_current")
for text in ("'b' AS v, '2026-01-03' AS at", "'c' AS v, '2026-01-02' AS at"):
    handle = versions.begin()
    view = versions.view(handle)
    columns = history_columns(view, keys=["id"])
    history = HistoryArguments(columns=columns, effective_at="at")
    versions.publish(
        handle, versions.operate(handle, lambda view: plan_history(view, history), source="SELECT 1 AS id, " + text)
    )
out["versions"] = [list(map(str, row)) for row in versions.rows()]
with _connect_settings(spark, {"fs.s3a.impl": "no.such.FileSystem"}):
    try:
        spark.read.parquet("s3a://lake/t").collect()
    except Exception as error:
        out["inside"] = str(error)
try:
    spark.read.parquet("s3a://lake/t").collect()
except Exception as error:
    out["outside"] = str(storage_error(error))
out["setting"] = spark.conf.get("spark.sql.parquet.outputTimestampType", None)
print("RESULT " + json.dumps(out))
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.spark
def test_stages_and_scans_through_spark_connect(tmp_path):
    roots = [Path(__file__).parents[2] / name for name in ("provider", "tests")]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK", "SPARK"))}
    environment |= {"PYTHONPATH": os.pathsep.join(map(str, roots)), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["SPARK_TESTING"] = "1"  # a port of its own: another suite may have Spark Connect's at the same time
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "table")],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    [line] = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    out = json.loads(line.removeprefix("RESULT "))
    expected = [[1, "a b", 10], [3, "b", None], [9, "c", 99]]
    assert out["session"].startswith("pyspark.sql.connect")
    assert out["rows"] == out["literals"] == out["joined"] == expected
    assert out["numbered"] == [[5, 2]]  # a rule for rows, and no partition column of texts
    assert out["keys"] == [[["v"], [[3000000000]]], [["p", "v"], [["ü", 3000000000]]]]  # text that is not UTF-8 is no key
    assert out["errors"] == [
        "ReplaceWhereMismatchException",
        "SchemaMismatchException",
        "SchemaMismatchException",
        "ParseException",
    ]
    assert out["versions"] == [
        ["1", "a", "2026-01-01", "2026-01-02", "False"],
        ["1", "b", "2026-01-03", "None", "True"],
        ["1", "c", "2026-01-02", "2026-01-03", "False"],
    ]
    assert out["setting"] in (None, "INT96")
    assert "no.such.FileSystem" in out["inside"]  # a setting of the session is one of Hadoop, as long as the task works
    assert "hadoop-aws" in out["outside"]
