"""How Spark spells a location."""

from __future__ import annotations

import pytest

from airflow_delta.table.stage.spark_uri import spark_uri

ACCOUNT = "lake@account.dfs.core.windows.net"
EMULATOR = {"AZURE_STORAGE_ENDPOINT": "http://127.0.0.1:10000/account"}


@pytest.mark.parametrize(
    ("uri", "options", "expected"),
    [
        ("s3://lake/t", {}, "s3a://lake/t"),
        ("gs://lake/t", {}, "gs://lake/t"),
        ("hdfs://node:8020/t", {}, "hdfs://node:8020/t"),
        ("/lake/t", {}, "/lake/t"),
        (f"abfss://{ACCOUNT}/t", {}, f"abfss://{ACCOUNT}/t"),
        (f"abfs://{ACCOUNT}/t", {}, f"abfs://{ACCOUNT}/t"),
        (f"abfss://{ACCOUNT}/t", EMULATOR, f"abfs://{ACCOUNT}/t"),  # which has no TLS
        ("az://lake/t", {"account_name": "account"}, f"abfss://{ACCOUNT}/t"),
        ("az://lake/t", {"account_name": "account", **EMULATOR}, f"abfs://{ACCOUNT}/t"),
    ],
)
def test_the_spelling_of_hadoop(uri: str, options: dict[str, str], expected: str) -> None:
    assert spark_uri(uri, options) == expected
