"""What a Spark connection says, read alike by sessions and by submitted applications."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_delta.exceptions import (
    DeltaIllegalArgumentException,
    SparkJobException,
    SparkVersionException,
)
from airflow_delta.hooks.extra import extra_of
from airflow_delta.hooks.named_connection import named_connection
from airflow_delta.lazy_patterns import lazy_pattern

DEFAULT_SPARK_CONN_ID = "spark_default"

_DEPLOY_MODE = "spark.submit.deployMode"

# The context was stopped before it had a session. Only the driver's log says why: "All masters are unresponsive! Giving up."
_NOT_REGISTERED = lazy_pattern(
    r"SparkContext\.assertNotStopped\S*\s+at org\.apache\.spark\.sql\.\S*SparkSession\.<init>|All masters are unresponsive"
)

_TIMEOUT = 5.0


def spark_master(conn: Any) -> str:
    """Return the master of a connection as Airflow's ``SparkSubmitHook`` does, also of one that is written as a URI."""
    whole = "://" in conn.host or (conn.conn_type == "spark" and not conn.port)
    master = conn.host if whole else f"{conn.conn_type}://{conn.host}"
    return f"{master}:{conn.port}" if conn.port else str(master)


def spark_extras(conn: Any) -> dict[str, Any]:
    """Return the Spark properties in the extra of a Spark connection."""
    return {key: value for key, value in extra_of(conn).items() if key.startswith("spark.")}


def check_submission(spark_conn_id: str, application: str, deploy_mode: str | None, conf: Mapping[str, Any] | None) -> None:
    """Refuse a submission that cannot succeed.

    :param deploy_mode: that of the task; default: the connection's.
    :raises DeltaIllegalArgumentException: if the connection is one of Spark Connect, or the application's Python driver would
        have to run on a standalone cluster.
    """
    try:
        conn = named_connection(spark_conn_id, "spark_conn_id", "spark")
    except AirflowNotFoundException:
        if spark_conn_id != DEFAULT_SPARK_CONN_ID:
            raise
        return  # Airflow's hook submits to YARN then
    if conn.conn_type == SparkConnectHook.conn_type:
        raise DeltaIllegalArgumentException(
            f"The connection {spark_conn_id!r} is one of Spark Connect, which takes sessions, not applications. Submit to a "
            "connection of type spark, or leave spark_submit and application out to work in a session."
        )
    extra = extra_of(conn, spark_conn_id)
    mode = deploy_mode or extra.get("deploy-mode") or (conf or {}).get(_DEPLOY_MODE) or extra.get(_DEPLOY_MODE)
    master = spark_master(conn) if conn.host else ""
    if mode == "cluster" and master.startswith("spark://") and application.endswith(".py"):
        raise DeltaIllegalArgumentException(
            f"Spark cannot run the driver of a Python application on the standalone cluster {master}. Set the deploy mode of "
            f"the connection {spark_conn_id!r} to 'client'; cluster mode needs YARN or Kubernetes."
        )


def registration_error(failure: BaseException, master: str) -> SparkVersionException | SparkJobException | None:
    """Return the typed error if a standalone master did not answer a driver: one that listens cannot read what that sends.

    :param master: the driver's master; of several, one that listens is enough.
    """
    if not master.startswith("spark://") or _NOT_REGISTERED.search(str(failure)) is None:
        return None
    if not any(_listens(address) for address in master.removeprefix("spark://").split(",")):
        return SparkJobException(  # another try may find it
            f"The master {master} did not answer this driver, and nothing listens there now. Check that it runs, and the host "
            "and port of the connection."
        )
    return SparkVersionException(
        f"The master {master} is up, but did not answer this driver: its Spark is of another version than the driver's. Submit "
        "with the cluster's own spark-submit, or install its version of PySpark. See docs/how-to/cluster.md."
    )


def registration_error_of(failure: BaseException, spark_conn_id: str) -> SparkVersionException | SparkJobException | None:
    """Return the same for an application that was submitted to a connection."""
    try:
        conn = BaseHook.get_connection(spark_conn_id)
    except AirflowNotFoundException:
        return None
    return registration_error(failure, spark_master(conn)) if conn.host else None


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_TIMEOUT).close()
    except (OSError, ValueError):
        return False
    return True
