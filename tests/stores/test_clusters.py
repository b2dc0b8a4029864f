"""The clusters run Spark's work, and end with the tests."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from stores.clusters import SPARK_HOME, MiniCluster, StandaloneCluster, submit_environment

JOB = """
import sys, time
from pyspark.sql import SparkSession
spark, pause = SparkSession.builder.getOrCreate(), float(sys.argv[2])
rows = spark.range(40).repartition(8).rdd.map(lambda row: (time.sleep(pause), row.id)[1]).collect()
spark.createDataFrame([(sum(rows),)], "total long").coalesce(1).write.parquet(sys.argv[1])
spark.stop()
"""
SMALL = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.bindAddress": "127.0.0.1",
}


def submit(directory: Path, *arguments: object, settings: dict[str, str], **environment: str) -> subprocess.Popen[str]:
    """Start ``spark-submit`` with the job."""
    job = directory / "job.py"
    job.write_text(JOB)
    options = [part for key, value in {**SMALL, **settings}.items() for part in ("--conf", f"{key}={value}")]
    return subprocess.Popen(
        [SPARK_HOME / "bin" / "spark-submit", *options, job, *map(str, arguments)],
        env=submit_environment(**environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def total(path: Path) -> int:
    import pyarrow.parquet as pq

    return int(pq.read_table(path).column("total")[0].as_py())


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory):
    with MiniCluster("hdfs", tmp_path_factory.mktemp("hdfs")) as cluster:
        yield cluster


def test_standalone_outlives_a_worker(tmp_path):
    directory = tmp_path / "cluster"
    directory.mkdir()
    with StandaloneCluster(directory) as cluster:
        assert len(cluster.alive) == 2
        settings = {"spark.master": cluster.url, "spark.driver.host": "127.0.0.1"}
        job = submit(tmp_path, tmp_path / "out", 0.5, settings=settings)
        try:
            while not list((directory / "work-0").glob("app-*/*/stdout")):
                assert job.poll() is None, job.communicate()[0][-3000:]
            cluster.workers[0].kill()
            output, _ = job.communicate(timeout=200)
        finally:
            job.kill()
        assert job.returncode == 0, output[-3000:]
        assert total(tmp_path / "out") == sum(range(40))
        processes = [cluster.master.process, cluster.workers[1].process]
    assert not any(process.is_running() for process in processes)


def test_yarn_runs_a_driver_in_the_cluster(tmp_path):
    directory = tmp_path / "cluster"
    directory.mkdir()
    with MiniCluster("yarn", directory) as cluster:
        settings = {
            "spark.master": "yarn",
            "spark.submit.deployMode": "cluster",
            "spark.executor.instances": "1",
            "spark.yarn.stagingDir": f"file://{tmp_path}/staging",
            # The node manager is on this machine: the JARs need no copy.
            "spark.yarn.jars": f"local:{SPARK_HOME}/jars/*",
            "spark.yarn.appMasterEnv.PYSPARK_PYTHON": sys.executable,
        }
        job = submit(tmp_path, tmp_path / "out", 0, settings=settings, HADOOP_CONF_DIR=str(cluster.configuration))
        try:
            output, _ = job.communicate(timeout=280)
        finally:
            job.kill()
        assert job.returncode == 0, output[-3000:]
        assert "final status: SUCCEEDED" in output
        assert total(tmp_path / "out") == sum(range(40))
        started = [cluster.process, *cluster.process.children(recursive=True)]
    assert not [process for process in started if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def test_hdfs_renames_without_overwriting(hdfs, hadoop: Any):
    """What a log store needs: of eight that rename a file to one name, one succeeds."""
    path = hadoop.org.apache.hadoop.fs.Path
    configuration = hadoop.org.apache.hadoop.conf.Configuration()
    configuration.set("fs.defaultFS", hdfs.setting("fs.defaultFS"))
    files = hadoop.org.apache.hadoop.fs.FileSystem.get(configuration)

    def rename(writer: int, version: int) -> bool:
        source = path(f"/table/_delta_log/.{version}.{writer}.tmp")
        files.create(source, False).close()
        return bool(files.rename(source, path(f"/table/_delta_log/{version:020}.json")))

    files.mkdirs(path("/table/_delta_log"))
    with ThreadPoolExecutor(8) as pool:
        for version in range(50):
            assert sum(pool.map(lambda writer, version=version: rename(writer, version), range(8))) == 1


@pytest.fixture
def hadoop():
    """Hadoop's classes, in a JVM without Spark."""
    from py4j.java_gateway import JavaGateway

    from stores.hadoop import py4j_jar
    from stores.install import HADOOP_JARS

    gateway = JavaGateway.launch_gateway(jarpath=py4j_jar(), classpath=f"{HADOOP_JARS}/*", die_on_exit=True)
    yield gateway.jvm
    gateway.shutdown()
