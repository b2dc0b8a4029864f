"""Spark's standalone cluster, in client mode: a master and two workers, tables on S3, everything by the connections alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_delta.spark.package import build_package
from stores.airflow_home import AirflowHome
from stores.cluster_table import DELETED, EVERYTHING, LOADED, Lake
from stores.clusters import CLUSTER_PYTHON, SMALL, WITH_S3, StandaloneCluster
from stores.servers import Versitygw, s3_client
from support.programs import python_program

PROPERTIES = {**SMALL, **WITH_S3, "spark.cores.max": "2"}


@pytest.fixture(scope="module")
def cluster(installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("standalone")) as cluster:
        yield cluster


@pytest.fixture
def lake(airflow: AirflowHome, cluster: StandaloneCluster, versitygw: Versitygw) -> Lake:
    lake = Lake.on_s3(versitygw)
    airflow.connect("lake", lake.connection)
    airflow.connect("cluster", {"conn_type": "spark", "host": cluster.url, "extra": PROPERTIES})
    return lake


@pytest.mark.parametrize("submit", [None, {}], ids=["session", "submit"])
def test_every_operation(airflow: AirflowHome, cluster: StandaloneCluster, lake: Lake, submit: dict[str, str] | None) -> None:
    """One connection, whichever way Spark is used; the JARs come from the ``spark.*`` properties in its extra."""
    before = cluster.applications
    run = airflow.run("every_operation", submit=submit)
    assert run.state == "success", run.tasks
    assert lake.rows() == EVERYTHING
    assert cluster.applications - before == 9  # two stages, an audit, six operations: none ran anywhere else
    assert "lake-writer-secret" not in run.log


def test_the_package_lies_where_the_cluster_can_fetch_it(airflow: AirflowHome, cluster: StandaloneCluster, lake: Lake) -> None:
    package = Path(build_package())
    client = s3_client(lake.options)
    client.put_object(Bucket=lake.path.name, Key=package.name, Body=package.read_bytes())
    client.close()
    airflow.variables["CLUSTER_PACKAGE"] = f"s3a://{lake.path.name}/{package.name}"
    run = airflow.run("stage_and_merge", submit={})
    assert run.state == "success", run.tasks
    assert lake.rows() == DELETED


def test_a_stage_outlives_a_worker_of_the_cluster(
    airflow: AirflowHome, cluster: StandaloneCluster, lake: Lake, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    process = airflow.start("one_stage", submit={}, CLUSTER_GATE=str(gate))
    process.wait_for("the stage", lambda: len(list(tmp_path.glob("gate.*.started"))) == 2)
    cluster.workers[0].kill()
    try:
        gate.touch()
        run = process.result()
    finally:
        cluster.workers[0].start()
    assert run.state == "success", run.tasks
    assert run.tasks["load.rows"] == ["success", 1]
    assert lake.rows() == LOADED


def test_the_next_try_takes_over_a_driver_that_lives(
    airflow: AirflowHome, cluster: StandaloneCluster, lake: Lake, tmp_path: Path
) -> None:
    gate, before = tmp_path / "gate", cluster.applications
    airflow.variables["CLUSTER_RETRIES"] = "1"
    first = airflow.start("one_stage", submit={}, CLUSTER_GATE=str(gate))
    first.wait_for("the stage", lambda: list(tmp_path.glob("gate.*.started")))
    first.popen.kill()
    second = airflow.start("one_stage", what="retry", submit={}, CLUSTER_GATE=str(gate))
    second.wait_for("its wait", lambda: "is still running here: waiting for it" in second.log)
    gate.touch()
    run = second.result()
    assert run.tasks["load.rows"] == ["success", 2]
    assert run.xcoms["load.rows"]["attempt"].startswith("1-")
    assert cluster.applications - before == 1
    assert lake.rows() == LOADED


def test_a_python_driver_in_cluster_mode_is_refused(airflow: AirflowHome, cluster: StandaloneCluster, lake: Lake) -> None:
    """Spark refuses it, too, after the stage has been planned and with a stack trace."""
    before = cluster.applications
    run = airflow.run("one_stage", submit={"deploy_mode": "cluster"}, CLUSTER_GATE="-")
    assert run.state == "failed"
    assert f"cannot run the driver of a Python application on the standalone cluster {cluster.url}" in run.log
    assert cluster.applications == before
    assert not list(lake.path.rglob("request.json"))


OTHER_PYTHON = """\
import collections, runpy, sys
version = collections.namedtuple("version_info", "major minor micro releaselevel serial")
sys.version_info = version(3, 99, 0, "final", 0)
sys.argv = sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def test_python_code_that_executors_cannot_run(
    airflow: AirflowHome, cluster: StandaloneCluster, lake: Lake, tmp_path: Path
) -> None:
    """Code of the author's, such as a UDF: the executors' Python has to be of the driver's minor version."""
    program = python_program(tmp_path / "python", OTHER_PYTHON, python=CLUSTER_PYTHON)
    airflow.variables["PYSPARK_PYTHON"] = str(program)
    run = airflow.run("python_code")
    assert run.state == "failed"
    assert "[DELTA_SPARK_VERSION_MISMATCH] Python code cannot run on Spark's executors" in run.log, run.tasks
    assert not list(lake.path.rglob("*.parquet"))
