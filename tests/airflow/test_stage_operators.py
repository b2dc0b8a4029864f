"""Parts of the stage operators that need no run: arguments of the callable, Spark properties, durability of spark-submit."""

from __future__ import annotations

import json

import pytest

from airflow_delta.operators.pyspark import DeltaStagePySparkOperator, call_injected, without_injected

GIVEN = {"spark": "SPARK", "table": "TABLE", "transaction": "TXN"}


def only_spark(spark):
    return [spark]


def between(a, spark, b, table=None):
    return [a, spark, b, table]


def keywords(a, /, *args, spark, b=2, **kwargs):
    return [a, args, spark, b, kwargs]


def nothing(a=1, b=2):
    return [a, b]


CALLS = [
    # function, arguments, what it gets
    (only_spark, (), {}, ["SPARK"]),
    (between, (1, 2), {}, [1, "SPARK", 2, "TABLE"]),
    (between, (1,), {"b": 2}, [1, "SPARK", 2, "TABLE"]),
    (between, (), {"a": 1, "b": 2}, [1, "SPARK", 2, "TABLE"]),
    (keywords, (1, 5, 6), {"c": 3}, [1, (5, 6), "SPARK", 2, {"c": 3}]),
    (keywords, (1,), {"b": 7}, [1, (), "SPARK", 7, {}]),
    (nothing, (), {"b": 5}, [1, 5]),
]


@pytest.mark.parametrize(("function", "args", "kwargs", "result"), CALLS)
def test_injected_arguments(function, args, kwargs, result):
    # Airflow wraps it a second time when the task is decorated.
    for visible in (without_injected(function), without_injected(without_injected(function))):
        assert call_injected(visible, args, kwargs, GIVEN) == result


MASTER = {"conn_type": "spark", "host": "local[3]"}
PROPERTIES = [
    # connection, config_kwargs, properties
    (None, None, {"spark.master": "local[*]"}),
    ({**MASTER, "host": "spark://master", "port": 7077}, None, {"spark.master": "spark://master:7077"}),
    ({**MASTER, "extra": {"spark.a": 1, "deploy-mode": "client"}}, None, {"spark.master": "local[3]", "spark.a": "1"}),
    (MASTER, {"spark.master": "local[1]", "spark.b": True}, {"spark.master": "local[1]", "spark.b": "True"}),
    ({"conn_type": "spark_connect", "host": "sc://connect", "port": 15002}, None, {"spark.remote": "sc://connect:15002/"}),
]


@pytest.mark.parametrize(("connection", "config", "properties"), PROPERTIES)
def test_spark_properties(monkeypatch, connection, config, properties):
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    if connection:
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    stage = DeltaStagePySparkOperator(task_id="stage", python_callable=only_spark, config_kwargs=config)
    found = stage._spark_properties()
    assert found.pop("spark.app.name").endswith("-stage")
    assert found == properties


def test_a_named_spark_connection_must_exist():
    from airflow.sdk.exceptions import AirflowNotFoundException

    stage = DeltaStagePySparkOperator(task_id="stage", python_callable=only_spark, spark_conn_id="no_such_connection")
    with pytest.raises(AirflowNotFoundException):
        stage._spark_properties()
