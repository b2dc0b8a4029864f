"""What a session gets of a table's connection, and what it is left with afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_delta.contract.payloads import ScanFile, ScanPlan
from airflow_delta.contract.request import StageRequest
from airflow_delta.exceptions import DeltaIllegalArgumentException, PathOutsideTableException
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.tasks.spark import storage as spark_storage
from airflow_delta.tasks.spark.packages import with_packages
from airflow_delta.tasks.spark.storage import SparkStorage, is_secret

LAKE = {
    "conn_type": "delta",
    "host": "s3://lake",
    "login": "the-key",
    "password": "very-secret",
    "extra": {"storage_options": {"AWS_REGION": "eu-west-1"}},
}
BUCKET = "fs.s3a.bucket.lake"


@pytest.fixture
def storage(monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(LAKE))
    return SparkStorage.of(DeltaHook("lake").get_log("t"), None, None)


@pytest.fixture
def configuration(spark):
    """Hadoop's configuration of the session; what a test sets is gone afterwards."""
    found = spark.sparkContext._jsc.hadoopConfiguration()
    yield found
    for name in ("fs.s3a.access.key", f"{BUCKET}.endpoint.region"):
        found.unset(name)


@pytest.mark.spark
def test_a_running_session_gets_the_keys_of_the_bucket_while_it_works(spark, configuration, storage):
    before = dict(configuration.getPropsWithPrefix("fs."))
    assert before
    with storage.in_session(spark, made=False):
        assert configuration.get(f"{BUCKET}.access.key") == "the-key"
        assert configuration.get(f"{BUCKET}.endpoint.region") == "eu-west-1"
        assert configuration.get("fs.s3a.access.key") is None
    assert dict(configuration.getPropsWithPrefix("fs.")) == before


@pytest.mark.spark
def test_what_the_author_has_set_stays(spark, configuration, storage):
    configuration.set(f"{BUCKET}.endpoint.region", "authors")
    with storage.in_session(spark, made=False):
        assert configuration.get(f"{BUCKET}.endpoint.region") == "authors"
        assert configuration.get(f"{BUCKET}.access.key") == "the-key"
    assert configuration.get(f"{BUCKET}.endpoint.region") == "authors"


@pytest.mark.spark
def test_a_session_of_the_task_reaches_other_buckets_too(spark, configuration, storage):
    with storage.in_session(spark, made=True):
        assert configuration.get("fs.s3a.access.key") == configuration.get(f"{BUCKET}.access.key") == "the-key"
    configuration.set("fs.s3a.access.key", "authors")
    with storage.in_session(spark, made=True):
        assert configuration.get("fs.s3a.access.key") == "authors"
        assert configuration.get(f"{BUCKET}.access.key") == "the-key"


def test_secrets_are_masked(storage, monkeypatch):
    masked = []
    monkeypatch.setattr(spark_storage, "mask_secret", masked.append)
    storage.settings()
    assert sorted(masked) == ["the-key", "very-secret"]


SECRET = [
    ("fs.s3a.bucket.lake.session.token", True),
    ("fs.azure.account.key.account.dfs.core.windows.net", True),
    ("fs.azure.sas.fixed.token.account.dfs.core.windows.net", True),
    ("fs.azure.account.oauth2.client.secret.account.dfs.core.windows.net", True),
    ("fs.s3a.bucket.lake.endpoint", False),
]


@pytest.mark.parametrize(("name", "secret"), SECRET)
def test_which_settings_are_secret(name, secret):
    assert is_secret(name) is secret


def test_files_of_a_clone_are_reached_too(monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(LAKE))
    files = (
        ScanFile(path="s3://source/t/a%20b.parquet", partition_values={}, size=1),
        ScanFile(path="own", partition_values={}, size=1),
    )
    plan = ScanPlan(transaction_id="t", table="s3a://lake/t", read_version=0, schema_string="{}", files=files)
    request = StageRequest(
        transaction_id="t", table="s3a://lake/t", read_version=0, stage="s", task_id="s", attempt="a", directory="d", scan=plan
    )
    with pytest.raises(PathOutsideTableException, match="files in s3a://source/t, in another store, account or bucket"):
        SparkStorage.of(DeltaHook("lake").get_log("t"), None, None, request)
    allowed = {**LAKE, "extra": {**LAKE.get("extra", {}), "other_locations": ["s3://source/t"]}}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(allowed))
    settings = SparkStorage.of(DeltaHook("lake").get_log("t"), None, None, request).settings()
    assert settings["fs.s3a.bucket.source.access.key"] == settings["fs.s3a.bucket.lake.access.key"] == "the-key"


def test_a_local_table_needs_nothing(tmp_path):
    assert SparkStorage.of(DeltaHook().get_log(str(tmp_path)), None, None).properties() == {}


def test_another_word_than_own_is_refused(storage):
    with pytest.raises(DeltaIllegalArgumentException, match="spark_credentials is a string other than 'own'"):
        SparkStorage.of(DeltaHook("lake").get_log("t"), None, "mine")


PACKAGES = [
    ({}, "auto", "s3a://lake/t", {"spark.jars.packages": "org.apache.hadoop:hadoop-aws:"}),
    ({"spark.jars.packages": "a:b:1"}, "auto", "s3a://lake/t", {"spark.jars.packages": "a:b:1,org.apache.hadoop:hadoop-aws:"}),
    ({}, "auto", "file:///t", {}),
    ({}, None, "s3a://lake/t", {}),
    ({}, "a:b:1", "file:///t", {"spark.jars.packages": "a:b:1"}),
]


@pytest.mark.parametrize(("properties", "packages", "uri", "expected"), PACKAGES)
def test_packages_of_a_session(properties, packages, uri, expected):
    from airflow_delta.spark.connectors import hadoop_version

    found = with_packages(properties, packages, uri)
    assert found == {name: value.replace("aws:", f"aws:{hadoop_version()}") for name, value in expected.items()}


def test_a_server_has_its_own_packages():
    with pytest.raises(DeltaIllegalArgumentException, match="Start the server with the packages"):
        with_packages({"spark.remote": "sc://h"}, "auto", "s3a://lake/t")


def test_packages_of_a_tables_connection_are_for_sessions_of_this_process():
    """The same connection serves Spark Connect, too."""
    remote = {"spark.remote": "sc://h"}
    assert with_packages(remote, "auto", "s3a://lake/t", of_connection=True) == remote


SCRIPT = """
import logging
from pathlib import Path
from types import SimpleNamespace
from airflow_delta.exceptions import MissingSparkConnectorException
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.tasks.spark.session import TaskSession

session = TaskSession()
session.task = SimpleNamespace(dag_id="d", task_id="t", log=logging.getLogger("x"), is_cancelled=False)
try:
    with session.session(DeltaHook("lake").get_log("t")) as spark:
        found = spark.sparkContext._jsc.hadoopConfiguration().get("fs.s3a.bucket.lake.secret.key")
        process = spark.sparkContext._gateway.proc.pid
        print("RESULT", found == "very-secret", b"very-secret" in Path(f"/proc/{process}/cmdline").read_bytes())
        spark.read.parquet("s3a://lake/t")
except MissingSparkConnectorException as error:
    print("ERROR", error)
"""


@pytest.mark.slow
@pytest.mark.spark
def test_a_session_of_the_task_has_no_secret_in_its_arguments(monkeypatch, tmp_path):
    spark = {"conn_type": "spark", "host": "local[1]", "extra": {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}}
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
    environment |= {"AIRFLOW_CONN_LAKE": json.dumps(LAKE), "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(spark)}
    environment |= {"PYTHONPATH": str(Path(__file__).parents[2] / "provider"), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False
    )
    assert "RESULT True False" in done.stdout, done.stderr[-3000:]
    assert "ERROR [DELTA_SPARK_CONNECTOR_MISSING] Spark has no connector for the store of s3a://lake/t" in done.stdout
