"""Delta Spark, which judges what we write and goes on from it; one JVM for the whole folder.

JARs that cannot be resolved (:mod:`support.delta_jars`) are an error of every test here, never a skip.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.delta_jars import AVRO, DELTA, EXTENSIONS, one_at_a_time
from support.programs import pyspark_environment
from support.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFIGURATION = {
    **EXTENSIONS,
    "spark.jars.packages": f"{DELTA},{AVRO}",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1536m",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
    "spark.default.parallelism": "2",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    # What Delta spends its time on with tables of a few rows: tasks, plans and code generation.
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    # Read back and compare every checksum, ours too, and fail when one is wrong.
    "spark.databricks.delta.incremental.commit.verify": "true",
    "spark.databricks.delta.checksum.mismatch.fatal": "true",
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.delta_spark)


@pytest.fixture(scope="session")
def delta(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A small local Spark with Delta Lake, SQL on ``delta.`/path```, in UTC."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        pytest.fail(
            "A Spark without Delta runs in this process: run tests/delta_spark on its own (make test-delta-spark)", pytrace=False
        )
    directory = tmp_path_factory.mktemp("delta-spark")
    os.environ.update(pyspark_environment())
    builder = SparkSession.builder.master("local[2]").appName("airflow-delta-judge")
    for key, value in CONFIGURATION.items():
        builder = builder.config(key, value)
    builder = builder.config("spark.sql.warehouse.dir", str(directory / "warehouse")).config(
        "spark.local.dir", str(directory / "local")
    )
    with one_at_a_time():
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def spark(delta: SparkSession) -> SparkSession:
    """The same session, for what uses Spark without Delta: a process has one."""
    return delta


@pytest.fixture
def table(tmp_path: Path, delta: SparkSession) -> Table:
    """A table that is written step by step, as the tasks of a Dag run do it."""
    return Table(tmp_path / "table", delta)
