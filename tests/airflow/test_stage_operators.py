"""Parts of the stage operators that need no run: arguments of the callable, Spark properties, durability of spark-submit."""

from __future__ import annotations

import functools
import json

import pytest
from airflow.sdk import ExceptionRetryPolicy, RetryAction

from airflow_delta.exceptions import ConcurrentAppendException, DeltaAnalysisException
from airflow_delta.operators.delete_update import DeltaDeleteOperator
from airflow_delta.operators.merge import DeltaMergeOperator
from airflow_delta.operators.optimize import DeltaAutoCompactOperator, DeltaOptimizeOperator
from airflow_delta.operators.pyspark import DeltaStagePySparkOperator
from airflow_delta.operators.statistics import DeltaComputeStatisticsOperator
from airflow_delta.operators.transaction import DeltaStartTransactionOperator
from airflow_delta.operators.vacuum import DeltaVacuumOperator
from airflow_delta.tasks.commit.commit_part import FINAL_ERRORS, REFUSALS
from airflow_delta.tasks.functions import call_injected, without_injected
from airflow_delta.tasks.spark.session import TaskSession
from support.versions import MAPPED_TASKS_HAVE_THE_DEFAULTS_OF_THEIR_CLASS

GIVEN = {"spark": "SPARK", "table": "TABLE", "transaction": "TXN"}


def only_spark(spark):
    return [spark]


def between(a, spark, b, table=None):
    return [a, spark, b, table]


def keywords(a, /, *args, spark, b=2, **kwargs):
    return [a, args, spark, b, kwargs]


def nothing(a=1, b=2):
    return [a, b]


def twice(function):
    @functools.wraps(function)
    def decorated(*args, **kwargs):
        return function(*args, **kwargs) * 2

    return decorated


@twice
def decorated(a, spark):
    return [a, spark]


CALLS = [
    # function, arguments, what it gets
    (only_spark, (), {}, ["SPARK"]),
    (between, (1, 2), {}, [1, "SPARK", 2, "TABLE"]),
    (between, (1,), {"b": 2}, [1, "SPARK", 2, "TABLE"]),
    (between, (), {"a": 1, "b": 2}, [1, "SPARK", 2, "TABLE"]),
    (keywords, (1, 5, 6), {"c": 3}, [1, (5, 6), "SPARK", 2, {"c": 3}]),
    (keywords, (1,), {"b": 7}, [1, (), "SPARK", 7, {}]),
    (nothing, (), {"b": 5}, [1, 5]),
    (decorated, (1,), {}, [1, "SPARK", 1, "SPARK"]),
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
    ("spark://master:7077", None, {"spark.master": "spark://master:7077"}),
    ("spark://yarn", None, {"spark.master": "yarn"}),
    ({**MASTER, "extra": {"spark.a": 1, "deploy-mode": "client"}}, None, {"spark.master": "local[3]", "spark.a": "1"}),
    (MASTER, {"spark.master": "local[1]", "spark.b": True}, {"spark.master": "local[1]", "spark.b": "True"}),
    ({"conn_type": "spark_connect", "host": "sc://connect", "port": 15002}, None, {"spark.remote": "sc://connect:15002/"}),
]


@pytest.mark.parametrize(("connection", "config", "properties"), PROPERTIES)
def test_spark_properties(monkeypatch, connection, config, properties):
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    if connection:
        text = connection if isinstance(connection, str) else json.dumps(connection)
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", text)
    stage = DeltaStagePySparkOperator(task_id="stage", python_callable=only_spark, config_kwargs=config)
    found = stage.hold(TaskSession).properties()
    assert found.pop("spark.app.name").endswith("-stage")
    assert found == properties


def test_a_named_spark_connection_must_exist():
    from airflow.sdk.exceptions import AirflowNotFoundException

    stage = DeltaStagePySparkOperator(task_id="stage", python_callable=only_spark, spark_conn_id="no_such_connection")
    with pytest.raises(AirflowNotFoundException):
        stage.hold(TaskSession).properties()


@pytest.mark.parametrize(
    ("operator", "policy"),
    [
        (DeltaDeleteOperator, REFUSALS),
        (DeltaMergeOperator, REFUSALS),
        (DeltaVacuumOperator, FINAL_ERRORS),
        (DeltaOptimizeOperator, REFUSALS),
        (DeltaAutoCompactOperator, REFUSALS),
        (DeltaStartTransactionOperator, FINAL_ERRORS),
        (DeltaComputeStatisticsOperator, FINAL_ERRORS),
    ],
)
def test_mapped_tasks_and_default_args_have_a_say_in_the_retry_policy(operator, policy):
    arguments = {"condition": "true"} if operator is DeltaMergeOperator else {}
    if MAPPED_TASKS_HAVE_THE_DEFAULTS_OF_THEIR_CLASS:
        mapped = operator.partial(task_id="mapped", **arguments).expand(table=["a", "b"])
        assert mapped.partial_kwargs["retry_policy"] is policy
    assert operator(task_id="one", table="a", **arguments).retry_policy is policy
    own = ExceptionRetryPolicy(rules=[])
    assert operator(task_id="own", table="a", default_args={"retry_policy": own}, **arguments).retry_policy is own


def test_a_conflict_is_retried_where_a_retry_begins_a_transaction():
    conflict, refused = ConcurrentAppendException("conflict"), DeltaAnalysisException("refused")
    assert [FINAL_ERRORS.evaluate(error, 1, 3).action for error in (conflict, refused)] == [RetryAction.FAIL, RetryAction.FAIL]
    assert REFUSALS.evaluate(conflict, 1, 3).action is not RetryAction.FAIL
    assert REFUSALS.evaluate(refused, 1, 3).action is RetryAction.FAIL
