"""Hadoop's file system as a log store would need it; Spark's clusters are in the other modules of this name."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from stores.clusters import MiniCluster


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory):
    with MiniCluster("hdfs", tmp_path_factory.mktemp("hdfs")) as cluster:
        yield cluster


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
