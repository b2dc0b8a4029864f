"""Spark on Kubernetes: a real API server, drivers and executors in containers of their own. Tables on S3."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from stores.airflow_home import AirflowHome
from stores.cluster_table import LOADED, Lake
from stores.clusters import SMALL
from stores.install import AWS_JARS, KUBERNETES_PROGRAMS, KUBERNETES_PROVIDER
from stores.kubernetes_cluster.api_server import ACCOUNT, NAMESPACE, ApiServer
from stores.kubernetes_cluster.image import S3_CLASS_PATH, SPARK, spark_image
from stores.kubernetes_cluster.node import node_service
from stores.servers import Versitygw

TRACKED = {"track_driver_via_k8s_api": True}
CLIENT = {"deploy_mode": "client"}
SECRET = Versitygw.SECRET_KEY


@pytest.fixture(scope="session")
def installed() -> None:
    """What these tests need, instead of all that the others need."""
    if missing := [path.name for path in KUBERNETES_PROGRAMS if not path.exists()]:
        pytest.fail(f"Not installed: {', '.join(missing)}. Run make test-kubernetes", pytrace=False)


@pytest.fixture(scope="module")
def api(installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with ApiServer(tmp_path_factory.mktemp("kubernetes")) as server, node_service(server, {SPARK: spark_image()}):
        yield server


@pytest.fixture(scope="module")
def own_keys(api: ApiServer, versitygw: Versitygw) -> dict[str, str]:
    """Properties with which pods have the store's keys from a Secret."""
    keys = {"AWS_ACCESS_KEY_ID": versitygw.ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": versitygw.SECRET_KEY}
    api.put_secret("lake", keys)
    found = {f"spark.hadoop.{name}": value for name, value in versitygw.hadoop.items() if not name.endswith(".key")}
    for key in keys:
        found |= dict.fromkeys((f"spark.kubernetes.{role}.secretKeyRef.{key}" for role in ("driver", "executor")), f"lake:{key}")
    return found


@pytest.fixture
def lake(api: ApiServer, airflow: AirflowHome, versitygw: Versitygw, tmp_path: Path) -> Lake:
    lake = Lake.on_s3(versitygw)
    small = {name: value for name, value in SMALL.items() if name not in ("spark.driver.bindAddress", "spark.driver.host")}
    extra = {
        "deploy-mode": "cluster",
        "namespace": NAMESPACE,
        **small,
        "spark.driver.extraClassPath": S3_CLASS_PATH,
        "spark.executor.extraClassPath": S3_CLASS_PATH,
        "spark.executor.instances": "1",
        "spark.kubernetes.container.image": SPARK,
        "spark.kubernetes.authenticate.driver.serviceAccountName": ACCOUNT,
        "spark.kubernetes.driver.master": api.url,  # no cluster's DNS has a name for it
        "spark.kubernetes.file.upload.path": f"s3a://{lake.path.name}/uploads",
        "spark.kubernetes.submission.connectionTimeout": "60000",
    }
    # Where job.py finds its gate.
    for role in ("driver", "executor"):
        volume = f"spark.kubernetes.{role}.volumes.hostPath.gate"
        extra |= {f"{volume}.mount.path": str(tmp_path), f"{volume}.options.path": str(tmp_path)}
    airflow.connect("lake", lake.connection)
    airflow.connect("cluster", {"conn_type": "spark", "host": "k8s://https://127.0.0.1", "port": api.port, "extra": extra})
    airflow.python_path = [str(KUBERNETES_PROVIDER)]
    airflow.variables |= {
        "KUBECONFIG": str(api.kubeconfig()),
        "AIRFLOW__KUBERNETES_EXECUTOR__IN_CLUSTER": "False",
        "AIRFLOW__KUBERNETES_EXECUTOR__CONFIG_FILE": str(api.kubeconfig()),
        # The connector with which spark-submit puts the application where the cluster can fetch it.
        "SPARK_DIST_CLASSPATH": f"{AWS_JARS}/*",
    }
    return lake


def drivers(api: ApiServer, before: Collection[str] = ()) -> dict[str, Any]:
    return {name: pod for name, pod in api.pods("driver").items() if name not in before}


def told(api: ApiServer, before: Collection[str]) -> bool:
    """Return whether a new ConfigMap has the connection's key."""
    return any(SECRET in data for name, data in api.configuration().items() if name not in before)


@pytest.mark.parametrize("submit", [{}, TRACKED, CLIENT], ids=["spark-submit waits", "tracked", "client"])
def test_an_operation(api: ApiServer, airflow: AirflowHome, lake: Lake, tmp_path: Path, submit: dict[str, Any]) -> None:
    lake.load()
    (tmp_path / "gate").touch()
    before, configured = api.pods(), api.configuration()
    run = airflow.run("one_operation", submit=submit, CLUSTER_GATE=str(tmp_path / "gate"))
    assert run.state == "success", run.log[-5000:]
    assert lake.rows() == {number: v for number, v in LOADED.items() if number >= 4}
    assert SECRET not in run.log
    assert told(api, configured) == ("deploy_mode" not in submit), "Spark writes a driver's properties into its ConfigMap"
    left = {name: pod["status"]["phase"] for name, pod in drivers(api, before).items()}
    assert list(left.values()) == (["Succeeded"] if not submit else []), "Airflow removes a driver that it has tracked"


def test_an_operation_whose_pods_have_the_keys_from_a_secret(
    api: ApiServer, airflow: AirflowHome, lake: Lake, tmp_path: Path, own_keys: dict[str, str]
) -> None:
    lake.load()
    (tmp_path / "gate").touch()
    airflow.connect("lake", {**lake.connection, "extra": {**lake.connection["extra"], "spark_credentials": "own"}})
    cluster = json.loads(airflow.variables["AIRFLOW_CONN_CLUSTER"])
    airflow.connect("cluster", {**cluster, "extra": {**cluster["extra"], **own_keys}})
    # With which spark-submit uploads the program.
    airflow.variables |= {"AWS_ACCESS_KEY_ID": Versitygw.ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    configured = api.configuration()
    run = airflow.run("one_operation", submit=TRACKED, CLUSTER_GATE=str(tmp_path / "gate"))
    assert run.state == "success", run.log[-5000:]
    assert lake.rows() == {number: v for number, v in LOADED.items() if number >= 4}
    assert api.configuration().keys() > configured.keys()
    assert not told(api, configured)


def test_the_next_try_reconnects_to_the_driver(api: ApiServer, airflow: AirflowHome, lake: Lake, tmp_path: Path) -> None:
    gate, before = tmp_path / "gate", api.pods()
    airflow.variables["CLUSTER_RETRIES"] = "1"
    first = airflow.start("one_stage", submit=TRACKED, CLUSTER_GATE=str(gate))
    first.wait_for("the stage", lambda: list(tmp_path.glob("gate.*.started")) and "(phase: Running)" in first.log)
    first.popen.kill()
    [driver] = drivers(api, before)
    second = airflow.start("one_stage", what="retry", submit=TRACKED, CLUSTER_GATE=str(gate))
    second.wait_for("its tracking", lambda: "(phase: Running)" in second.log)
    gate.touch()
    run = second.result()
    assert run.tasks["load.rows"] == ["success", 2], run.log[-5000:]
    assert run.xcoms["load.rows"]["attempt"].startswith("1-")
    assert f"Deleted driver pod {driver}" in run.log
    assert lake.rows() == LOADED


@pytest.mark.parametrize("dag_id", ["one_stage", "one_operation"])
def test_ending_the_task_ends_the_driver(api: ApiServer, airflow: AirflowHome, lake: Lake, tmp_path: Path, dag_id: str) -> None:
    lake.load()
    gate, before = tmp_path / "gate", api.pods()
    process = airflow.start(dag_id, submit=TRACKED, CLUSTER_GATE=str(gate))
    process.wait_for("the stage", lambda: list(tmp_path.glob("gate.*.started")) and "(phase: Running)" in process.log)
    process.popen.send_signal(signal.SIGTERM)
    run = process.result()
    assert run.state == "failed"
    until = time.monotonic() + 90
    while found := drivers(api, before):  # the container has 30 seconds
        assert time.monotonic() < until, found
        time.sleep(0.5)
    assert lake.versions == 1


def test_a_job_by_airflows_own_operator(api: ApiServer, airflow: AirflowHome, lake: Lake, own_keys: dict[str, str]) -> None:
    """``delta_job``: one file with arguments is all that the driver gets, and the credentials are its own."""
    lake.load()
    airflow.dags = Path(__file__).with_name("dags") / "kubernetes_dags.py"
    properties = json.loads(airflow.variables["AIRFLOW_CONN_CLUSTER"])["extra"]
    conf = {name: value for name, value in properties.items() if name.startswith("spark.")} | own_keys
    before, configured = api.pods(), api.configuration()
    run = airflow.run("job_by_spark_submit", CLUSTER_CONF=json.dumps(conf))
    assert run.state == "success", run.log[-5000:]
    assert lake.rows() == {number: v for number, v in LOADED.items() if number >= 4}
    assert len(drivers(api, before)) == 1
    assert SECRET not in run.log
    assert api.configuration().keys() > configured.keys()
    assert not told(api, configured)
