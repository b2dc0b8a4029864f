"""Operators are made of parts: what they share is held; they inherit parameters alone."""

from __future__ import annotations

import inspect
from datetime import datetime

import pytest
from airflow.sdk import DAG, BaseOperator

from airflow_delta.operators.delete_update import DeltaDeleteOperator, DeltaTruncateOperator
from airflow_delta.operators.merge import DeltaMergePySparkOperator
from airflow_delta.operators.optimize import DeltaReorgOperator
from airflow_delta.operators.statistics import DeltaComputeStatisticsOperator
from airflow_delta.tasks.base import DeltaOperator
from airflow_delta.tasks.spark.session import TaskSession
from support.task_classes import documented, task_classes
from support.versions import MAPPED_TASKS_HAVE_THE_DEFAULTS_OF_THEIR_CLASS

CLASSES = task_classes()

DEPTH = 4
"""Classes of ours that an operator may be: itself, the base of its family, the template of all stages, and the base of all."""


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_few_levels_of_inheritance(kind):
    ours = [base.__name__ for base in kind.__mro__ if _is_ours(base) and issubclass(base, BaseOperator)]
    decorated = kind.__name__.endswith("DecoratedOperator")  # Airflow derives these from the operator that they decorate
    assert len(ours) <= DEPTH + decorated, ours


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_parameter_is_documented(kind):
    constructors = [vars(base)["__init__"] for base in kind.__mro__ if _is_ours(base) and "__init__" in vars(base)]
    named = [name for init in constructors for name in inspect.signature(init).parameters]
    inherited = {"self", "kwargs", "python_callable", "op_args", "op_kwargs", "retry_policy"}
    refused = {"source"} if issubclass(kind, DeltaMergePySparkOperator) else set()
    assert {*named} - inherited - refused <= {*documented(kind)}


STAGES = [kind for kind in CLASSES if getattr(kind, "transaction_role", None) == "stage"]


@pytest.mark.parametrize("kind", STAGES, ids=lambda kind: kind.__name__)
def test_every_stage_runs_the_template(kind):
    """Opening, the look whether it is done, and the report are the same for all; Airflow's decorated classes call it."""
    assert len(STAGES) > 12
    assert [base.__name__ for base in kind.__mro__ if _is_ours(base) and "execute" in vars(base)] == ["StageOperator"]


def _is_ours(base: type) -> bool:
    return base.__module__.startswith("airflow_delta.")


@pytest.mark.parametrize("kind", [DeltaDeleteOperator, DeltaReorgOperator, DeltaTruncateOperator])
def test_default_args_reach_the_parameters_of_parts(kind):
    """With and without a constructor of the operator's own."""
    with DAG(
        "defaults", schedule=None, start_date=datetime(2026, 1, 1), default_args={"table": "/t", "user_metadata": "nightly"}
    ):
        operator = kind(task_id="task", user_metadata="this one")
    assert (operator.table, operator.user_metadata) == ("/t", "this one")


def test_only_an_operator_with_the_part_has_its_parameters():
    with pytest.raises(TypeError, match="spark_conn_id"):
        DeltaTruncateOperator(task_id="task", table="/t", spark_conn_id="cluster")
    with pytest.raises(TypeError, match="spark_conn_id"):
        DeltaTruncateOperator.partial(task_id="task", spark_conn_id="cluster")


def test_the_parameters_of_parts_can_be_mapped_over():
    with DAG("mapped", schedule=None, start_date=datetime(2026, 1, 1)):
        mapped = DeltaReorgOperator.partial(task_id="task", spark_conn_id="cluster").expand(table=["/a", "/b"])
    made = mapped.unmap({"table": "/b"})
    assert (made.table, made.spark_conn_id) == ("/b", "cluster")
    if MAPPED_TASKS_HAVE_THE_DEFAULTS_OF_THEIR_CLASS:
        assert made.retry_policy == DeltaReorgOperator.default_retry_policy


def test_a_class_of_a_users_own():
    class Nightly(DeltaDeleteOperator):
        def __init__(self, *, days: int, **kwargs):
            super().__init__(predicate=f"age > {days}", **kwargs)

    operator = Nightly(task_id="task", days=3, table="/t", spark_table_uri="s3a://lake/t")
    assert (operator.predicate, operator.spark_table_uri) == ("age > 3", "s3a://lake/t")


def test_a_part_has_the_parameters_as_they_are_rendered():
    operator = DeltaDeleteOperator(task_id="task", table="/t", spark_conn_id="{{ params.at }}")
    operator.render_template_fields({"params": {"at": "night"}})
    assert operator.hold(TaskSession).spark_conn_id == "night"


def test_a_kill_reaches_the_parts_that_are_held():
    ended = []
    operator = DeltaDeleteOperator(task_id="task", table="/t")
    operator.hold(TaskSession).on_kill = lambda: ended.append("session")
    operator.on_kill()
    assert (ended, operator.is_cancelled) == (["session"], True)


def test_the_parts_of_a_run_are_not_those_of_the_next():
    """Airflow runs copies of a task: what one holds is not told of the other's end."""
    operator = DeltaComputeStatisticsOperator(task_id="task", table="/t")
    running = operator.prepare_for_execution()
    running.on_kill()
    assert not operator.is_cancelled
    assert isinstance(running, DeltaOperator)
    assert running.is_cancelled
