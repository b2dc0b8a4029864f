"""Command lines of ``spark-submit`` for clusters that no test starts: those of Airflow's own operator, and what we add."""

from __future__ import annotations

import json
from collections import Counter
from types import SimpleNamespace

import pyarrow as pa
import pytest
from airflow.providers.apache.spark.hooks import spark_submit as airflows
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from deltalake import write_deltalake

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.log import DeltaLog
from airflow_delta.operators.delete_update import DeltaDeleteOperator
from airflow_delta.operators.stage import DeltaStageSparkSubmitOperator
from airflow_delta.spark.package import application_path
from airflow_delta.table.start.begin import begin
from support.running_tasks import context

KUBERNETES = {
    "conn_type": "spark",
    "host": "k8s://https://kubernetes.example.org",
    "port": 443,
    "extra": {"deploy-mode": "cluster", "namespace": "spark", "spark.kubernetes.container.image": "apache/spark:4.2.0"},
}
YARN = {
    "conn_type": "spark",
    "host": "yarn",
    "extra": {"deploy-mode": "cluster", "queue": "etl", "yarn_resourcemanager_webapp_address": "http://rm:8088"},
}
CLUSTERS = {
    "kubernetes": (KUBERNETES, {"num_executors": 3, "conf": {"spark.kubernetes.driver.label.team": "lake"}}),
    "kubernetes, tracked": (KUBERNETES, {"track_driver_via_k8s_api": True, "env_vars": {"STAGE": "prod"}}),
    "kubernetes, client": ({**KUBERNETES, "extra": {"deploy-mode": "client", "namespace": "spark"}}, {}),
    "yarn": (YARN, {"yarn_track_via_rm_api": True, "executor_memory": "4g", "packages": "a:b:1"}),
}


class Submitted(Exception):
    """What was about to be submitted."""


@pytest.fixture
def handle(tmp_path, monkeypatch, outside_of_the_task_runner):
    def submit(hook, application="", **_):
        with open(hook._properties_file) as file:
            raise Submitted(hook._build_spark_submit_command(application), file.read())

    monkeypatch.setattr(airflows, "kube_client", SimpleNamespace(), raising=False)  # its provider need not be installed
    monkeypatch.setattr(SparkSubmitHook, "submit", submit)
    write_deltalake(tmp_path / "table", pa.table({"id": [1, 2]}))
    return begin(DeltaLog.for_table(str(tmp_path / "table")), transaction_key="a")


def submitted(operator):
    with pytest.raises(Submitted) as found:
        operator.execute(context(operator))
    return found.value.args


def check(command, parents, properties, connection):
    """A submission has the arguments of its parent's, and those that name the request, the package and the properties."""
    assert not Counter(parents) - Counter(command)
    own = (Counter(command) - Counter(parents)).elements()
    request, path, archive, *flags = sorted(own, key=lambda text: (text.startswith("--"), text.rpartition(".")[2], text))
    assert flags == ["--conf", "--properties-file", "--py-files"]
    assert request.startswith("spark.airflow_delta.request=file:///")
    assert (path.endswith(".properties"), archive.endswith(".zip")) == (True, True)
    extras = {name: value for name, value in connection["extra"].items() if name.startswith("spark.")}
    assert dict(line.split() for line in properties.splitlines()) == {"spark.test.given": "1", **extras}


@pytest.fixture(params=CLUSTERS)
def cluster(request, monkeypatch):
    connection, arguments = CLUSTERS[request.param]
    extra = {**connection["extra"], "spark.test.given": "1"}
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps({**connection, "extra": extra}))
    return connection, arguments


def test_a_stage(handle, cluster):
    connection, arguments = cluster
    given = {"application": "s3a://jobs/job.py", "application_args": ["2026-01-01"], "name": "job", **arguments}
    hook = SparkSubmitOperator(task_id="stage", conn_id="cluster", **given)._get_hook()
    parents = hook._build_spark_submit_command(given["application"])
    stage = DeltaStageSparkSubmitOperator(task_id="stage", transaction=handle.to_dict(), spark_conn_id="cluster", **given)
    command, properties = submitted(stage)
    check(command, parents, properties, connection)


def test_an_operation(handle, cluster):
    connection, arguments = cluster
    arguments = {"conf": {}, "name": "job", **arguments}
    parents = SparkSubmitHook(conn_id="cluster", **arguments)._build_spark_submit_command(application_path())
    delete = DeltaDeleteOperator(
        task_id="delete", transaction=handle.to_dict(), predicate="id = 1", spark_conn_id="cluster", spark_submit=arguments
    )
    command, properties = submitted(delete)
    check(command, parents, properties, connection)


TRACKED = [
    (YARN, {"yarn_track_via_rm_api": True}, "_start_yarn_application_status_tracking"),
    (KUBERNETES, {"track_driver_via_k8s_api": True}, "_poll_k8s_driver_via_api"),
]


@pytest.mark.parametrize(("connection", "arguments", "poll"), TRACKED, ids=["yarn", "kubernetes"])
def test_an_operation_waits_for_a_driver_that_airflow_tracks(handle, monkeypatch, connection, arguments, poll):
    """``spark-submit`` returns as soon as that has been submitted."""

    def wait(*_):
        raise Submitted("waited")

    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps(connection))
    monkeypatch.setattr(SparkSubmitHook, "submit", lambda *_: None)
    monkeypatch.setattr(SparkSubmitHook, poll, wait)
    delete = DeltaDeleteOperator(
        task_id="delete", transaction=handle.to_dict(), predicate="id = 1", spark_conn_id="cluster", spark_submit=arguments
    )
    assert submitted(delete) == ("waited",)


STANDALONE = {"conn_type": "spark", "host": "spark://master", "port": 7077}
REFUSED = [
    ({**STANDALONE, "extra": {"deploy-mode": "cluster"}}, {}, "standalone cluster spark://master:7077"),
    ({**STANDALONE, "extra": {"spark.submit.deployMode": "cluster"}}, {}, "standalone cluster"),
    ("spark://master:7077", {"deploy_mode": "cluster"}, "standalone cluster spark://master:7077"),
    (STANDALONE, {"conf": {"spark.submit.deployMode": "cluster"}}, "standalone cluster"),
    ({"conn_type": "spark_connect", "host": "sc://connect"}, {}, "'cluster' is one of Spark Connect"),
]


@pytest.mark.parametrize(("connection", "arguments", "message"), REFUSED)
def test_what_cannot_be_submitted_is_refused_before_anything_is_written(
    handle, monkeypatch, tmp_path, connection, arguments, message
):
    text = connection if isinstance(connection, str) else json.dumps(connection)
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", text)
    common = {"transaction": handle.to_dict(), "spark_conn_id": "cluster"}
    for operator in (
        DeltaStageSparkSubmitOperator(task_id="stage", application="job.py", **common, **arguments),
        DeltaDeleteOperator(task_id="delete", predicate="id = 1", spark_submit=arguments, **common),
    ):
        with pytest.raises(DeltaIllegalArgumentException, match=message):
            operator.execute(context(operator))
    assert not list(tmp_path.rglob("staged/**/request.json"))
