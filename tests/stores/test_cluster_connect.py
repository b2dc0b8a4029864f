"""Spark Connect servers with and without settings of their own for the table's store, and one that takes none."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stores.airflow_home import AirflowHome
from stores.cluster_table import EVERYTHING, Lake
from stores.clusters import WITH_S3, ConnectServer
from stores.process import LOOPBACK
from stores.servers import Versitygw


@pytest.fixture(scope="module")
def bare(installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """A server that has the connector to S3, and no credentials."""
    with ConnectServer(tmp_path_factory.mktemp("connect"), WITH_S3) as server:
        yield server


def use(airflow: AirflowHome, lake: Lake, server: dict[str, Any]) -> None:
    airflow.connect("lake", lake.connection)
    airflow.connect("cluster", server)


def test_every_operation(airflow: AirflowHome, versitygw: Versitygw, bare: ConnectServer) -> None:
    """The server gets the credentials of the table's connection for the session of the task, and nowhere else."""
    lake = Lake.on_s3(versitygw)
    use(airflow, lake, bare.connection)
    run = airflow.run("every_operation")
    assert run.state == "success", run.log[-5000:]
    assert lake.rows() == EVERYTHING


def test_a_server_with_settings_of_its_own(airflow: AirflowHome, versitygw: Versitygw, installed: None, tmp_path: Path) -> None:
    lake = Lake.on_s3(versitygw, spark_credentials="own")
    properties = {**WITH_S3, **{f"spark.hadoop.{name}": value for name, value in versitygw.hadoop.items()}}
    with ConnectServer(tmp_path, properties) as server:
        use(airflow, lake, server.connection)
        run = airflow.run("every_operation")
    assert run.state == "success", run.log[-5000:]
    assert lake.rows() == EVERYTHING


def test_a_server_without_credentials_says_so(airflow: AirflowHome, versitygw: Versitygw, bare: ConnectServer) -> None:
    lake = Lake.on_s3(versitygw, spark_credentials="own")
    use(airflow, lake, bare.connection)
    run = airflow.run("every_operation")
    assert run.state == "failed"
    assert "[DELTA_SPARK_CREDENTIALS] Spark cannot reach s3a://" in run.log


@contextmanager
def refusing(server: ConnectServer) -> Iterator[int]:
    """Yield the port of a gateway to a server that refuses settings, as servers of several tenants do."""
    import grpc

    channel = grpc.insecure_channel(f"{LOOPBACK}:{server.port}")

    class Gateway(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, call: Any) -> Any:
            if call.method.endswith("/ReleaseExecute") or call.method.endswith("/Config"):
                forward = channel.unary_unary(call.method)

                def answer(request: bytes, context: Any) -> bytes:
                    if b"fs.s3a." in request and call.method.endswith("/Config") and b"lake-writer-secret" in request:
                        context.abort(grpc.StatusCode.PERMISSION_DENIED, "This setting is not available here")
                    return forward(request)  # type: ignore[no-any-return]

                return grpc.unary_unary_rpc_method_handler(answer)
            if call.method.endswith("/ExecutePlan") or call.method.endswith("/ReattachExecute"):
                stream = channel.unary_stream(call.method)
                return grpc.unary_stream_rpc_method_handler(lambda request, _: stream(request))
            other = channel.unary_unary(call.method)
            return grpc.unary_unary_rpc_method_handler(lambda request, _: other(request))

    gateway = grpc.server(concurrent.futures.ThreadPoolExecutor(8), handlers=[Gateway()])
    port = gateway.add_insecure_port(f"{LOOPBACK}:0")
    gateway.start()
    try:
        yield port
    finally:
        gateway.stop(None).wait()
        channel.close()


def test_a_server_that_does_not_take_the_settings(airflow: AirflowHome, versitygw: Versitygw, bare: ConnectServer) -> None:
    lake = Lake.on_s3(versitygw)
    with refusing(bare) as port:
        use(airflow, lake, {**bare.connection, "port": port})
        run = airflow.run("every_operation")
    assert run.state == "failed"
    assert "The Spark Connect server does not take the setting fs.s3a.bucket." in run.log
    assert "Set the credentials on the server" in run.log
    assert not list(lake.path.rglob("*.parquet"))
