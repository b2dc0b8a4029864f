"""What the error of a driver says of its master."""

from __future__ import annotations

import socket

from airflow_delta.exceptions import SparkVersionException
from airflow_delta.operators.spark_connection import registration_error

STOPPED = """java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.
\tat org.apache.spark.SparkContext.assertNotStopped(SparkContext.scala:128)
\tat org.apache.spark.sql.classic.SparkSession.<init>(SparkSession.scala:125)"""


def test_a_master_that_listens_and_does_not_answer():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        failure = RuntimeError(STOPPED)
        for master in (f"spark://127.0.0.1:{port}", f"spark://127.0.0.1:1,127.0.0.1:{port}"):
            assert isinstance(registration_error(failure, master), SparkVersionException)
        assert registration_error(failure, f"k8s://127.0.0.1:{port}") is None
        assert registration_error(RuntimeError("something else"), f"spark://127.0.0.1:{port}") is None
    # One that is down may be up for the next try.
    assert registration_error(failure, f"spark://127.0.0.1:{port}") is None
