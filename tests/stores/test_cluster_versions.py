"""Clusters whose Spark or Python is not the worker's: the work succeeds, or a typed error says why before data is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stores.airflow_home import AirflowHome
from stores.cluster_table import DELETED, Lake
from stores.clusters import SMALL, SPARK_HOME, ConnectServer, StandaloneCluster
from stores.install import OLDEST_SPARK


@pytest.fixture(scope="module")
def oldest(installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A cluster of Spark 4.0."""
    with StandaloneCluster(tmp_path_factory.mktemp("standalone"), workers=1, spark_home=OLDEST_SPARK) as cluster:
        yield cluster


@pytest.fixture
def lake(airflow: AirflowHome, tmp_path: Path) -> Lake:
    lake = Lake.in_folder(tmp_path / "lake")
    airflow.connect("lake", lake.connection)
    return lake


def test_spark_submit_of_the_clusters_version(airflow: AirflowHome, oldest: StandaloneCluster, lake: Lake) -> None:
    """The worker's PySpark is newer, and only ``spark-submit`` on its path is the cluster's."""
    airflow.connect("cluster", {"conn_type": "spark", "host": oldest.url, "extra": SMALL})
    airflow.spark_home = OLDEST_SPARK
    run = airflow.run("stage_and_merge", submit={})
    assert run.state == "success", run.log[-5000:]
    assert lake.rows() == DELETED


def test_a_driver_of_another_version_than_the_cluster(
    airflow: AirflowHome, oldest: StandaloneCluster, lake: Lake, tmp_path: Path
) -> None:
    """A session and an application, side by side: Spark gives up after a minute."""
    airflow.connect("cluster", {"conn_type": "spark", "host": oldest.url, "extra": SMALL})
    other = airflow.copy(tmp_path / "other")
    other.connect("lake", Lake.in_folder(tmp_path / "other-lake").connection)
    processes = [airflow.start("stage_and_merge"), other.start("stage_and_merge", submit={})]
    for run in [process.result() for process in processes]:
        assert run.state == "failed"
        assert f"[DELTA_SPARK_VERSION_MISMATCH] The master {oldest.url} is up, but did not answer" in run.log, run.log[-9000:]
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize(
    ("client", "server"), [(SPARK_HOME, OLDEST_SPARK), (OLDEST_SPARK, SPARK_HOME)], ids=["newer client", "older client"]
)
def test_spark_connect_across_versions(
    airflow: AirflowHome, lake: Lake, installed: None, tmp_path: Path, client: Path, server: Path
) -> None:
    airflow.python_path = [str(client.parent)]
    with ConnectServer(tmp_path, {}, spark_home=server) as running:
        airflow.connect("cluster", running.connection)
        run = airflow.run("stage_and_merge")
    assert run.state == "success", run.log[-9000:]
    assert lake.rows() == DELETED
