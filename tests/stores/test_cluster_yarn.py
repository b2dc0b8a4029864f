"""YARN in cluster mode: the drivers run there too, in a Python that has neither Airflow nor this provider. Tables on S3."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from stores.airflow_home import AirflowHome
from stores.cluster_table import LOADED, Lake
from stores.clusters import SMALL, SPARK_HOME, WITH_S3, MiniCluster
from stores.servers import Versitygw

TRACKED = {"yarn_track_via_rm_api": True}


@pytest.fixture(scope="module")
def yarn(installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniCluster]:
    with MiniCluster("yarn", tmp_path_factory.mktemp("yarn")) as cluster:
        yield cluster


@pytest.fixture
def lake(airflow: AirflowHome, yarn: MiniCluster, versitygw: Versitygw, tmp_path: Path) -> Lake:
    lake = Lake.on_s3(versitygw)
    properties = {
        **{name: value for name, value in SMALL.items() if not name.startswith("spark.driver.") or name.endswith(("y", "s"))},
        **WITH_S3,
        "spark.executor.instances": "1",
        "spark.yarn.stagingDir": f"file://{tmp_path}/staging",
        # The node manager is on this machine: the JARs need no copy.
        "spark.yarn.jars": f"local:{SPARK_HOME}/jars/*",
    }
    address = f"http://{yarn.setting('yarn.resourcemanager.webapp.address')}"
    extra = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": address, **properties}
    airflow.connect("lake", lake.connection)
    airflow.connect("cluster", {"conn_type": "spark", "host": "yarn", "extra": extra})
    airflow.variables["HADOOP_CONF_DIR"] = str(yarn.configuration)
    return lake


def test_the_next_try_reconnects_to_the_driver(airflow: AirflowHome, yarn: MiniCluster, lake: Lake, tmp_path: Path) -> None:
    gate, before = tmp_path / "gate", yarn.applications()
    airflow.variables["CLUSTER_RETRIES"] = "1"
    first = airflow.start("one_stage", submit=TRACKED, CLUSTER_GATE=str(gate))
    first.wait_for("the stage", lambda: list(tmp_path.glob("gate.*.started")) and "Tracking YARN application" in first.log)
    first.popen.kill()
    second = airflow.start("one_stage", what="retry", submit=TRACKED, CLUSTER_GATE=str(gate))
    [application] = yarn.applications().keys() - before.keys()
    second.wait_for("its tracking", lambda: f"Tracking YARN application {application}" in second.log)
    gate.touch()
    run = second.result()
    assert run.tasks["load.rows"] == ["success", 2], run.log[-5000:]
    assert run.xcoms["load.rows"]["attempt"].startswith("1-")
    assert yarn.applications().keys() - before.keys() == {application}
    assert lake.rows() == LOADED


@pytest.mark.parametrize("submit", [{}, TRACKED], ids=["spark-submit waits", "tracked"])
def test_an_operation(airflow: AirflowHome, lake: Lake, tmp_path: Path, submit: dict[str, bool]) -> None:
    lake.load()
    (tmp_path / "gate").touch()
    run = airflow.run("one_operation", submit=submit, CLUSTER_GATE=str(tmp_path / "gate"))
    assert run.state == "success", run.log[-5000:]
    assert lake.rows() == {number: v for number, v in LOADED.items() if number >= 4}


@pytest.mark.parametrize("dag_id", ["one_stage", "one_operation"])
def test_ending_the_task_ends_the_application(
    airflow: AirflowHome, yarn: MiniCluster, lake: Lake, tmp_path: Path, dag_id: str
) -> None:
    lake.load()
    gate, before = tmp_path / "gate", yarn.applications()
    process = airflow.start(dag_id, submit=TRACKED, CLUSTER_GATE=str(gate))
    process.wait_for("the stage", lambda: list(tmp_path.glob("gate.*.started")))
    process.popen.send_signal(signal.SIGTERM)
    run = process.result()
    assert run.state == "failed"
    [application] = yarn.applications().keys() - before.keys()
    assert yarn.applications()[application] == "KILLED"
