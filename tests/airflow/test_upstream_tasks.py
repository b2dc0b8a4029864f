"""Whatever template field gets the output of a task, that task runs first."""

from __future__ import annotations

import inspect
from datetime import datetime

import pytest
from airflow.sdk import DAG, BaseOperator, task
from airflow.sdk.bases.decorator import DecoratedOperator

from airflow_delta.assets.delta import delta_asset
from airflow_delta.contract.kinds import kinds_of
from airflow_delta.operators.scd2 import DeltaScd2MergeOperator
from airflow_delta.sensors.partitions import DeltaPartitionSensor
from support.task_classes import task_classes

NAMES_OF_FIELDS = {"merge_source": "source", "copy_source": "source"}

REFUSED = {
    "DeltaMergePySparkOperator": ("source", "spark_submit", "application"),
}
"""Parameters of a part that an operator refuses."""

REQUIRED = {
    "python_callable": lambda: lambda: None,
    "clauses": lambda: [{"clause": "matchedDelete"}],
    "changes": lambda: [{"change": "DropColumns", "columns": ["a"]}],
    "format": lambda: "csv",
    "set": lambda: {"a": "1"},
    "keys": lambda: ["id"],
    "tables": lambda: ["/t"],
    "steps": lambda: ["vacuum"],
    "source": lambda: "SELECT 1 AS id",
}
"""What required parameters are given; the others are given text."""


def parameters(kind: type[BaseOperator]) -> dict[str, inspect.Parameter]:
    found: dict[str, inspect.Parameter] = {}
    for base in kind.__mro__:
        if "__init__" in vars(base):
            for name, parameter in inspect.signature(vars(base)["__init__"]).parameters.items():
                found.setdefault(name, parameter)
    return found


def _has(kind: type[BaseOperator], name: str) -> bool:
    if issubclass(kind, DecoratedOperator) and name in ("op_args", "op_kwargs"):
        return False  # Airflow fills them in with what the function is called with
    return name not in REFUSED.get(kind.__name__.lstrip("_").replace("Decorated", "PySpark"), ())


def fields() -> list[tuple[type[BaseOperator], str]]:
    found = []
    for kind in task_classes():
        if not inspect.isabstract(kind):
            names = {NAMES_OF_FIELDS.get(field, field) for field in kind.template_fields} & parameters(kind).keys()
            found += [(kind, name) for name in sorted(names) if _has(kind, name)]
    return found


def made(kind: type[BaseOperator], **arguments) -> BaseOperator:
    """Return a task with as little as it takes."""
    named = {
        each: REQUIRED.get(each, lambda: "text")()
        for each, parameter in parameters(kind).items()
        if parameter.default is parameter.empty and parameter.kind is parameter.KEYWORD_ONLY and each != "task_id"
    }
    if "new_files" in arguments:  # the function takes them by this name
        named["python_callable"] = lambda new_files: None
    if "expected_schema" in arguments:
        named["schema_policy"] = "strict"
    if "max_memory" in arguments and "engine" in parameters(kind):
        named["engine"] = "arrow"
    if kind is DeltaScd2MergeOperator:  # an application could pass it
        named["source"] = "SELECT 1 AS id"
    if kind is DeltaPartitionSensor:
        named["outlets"] = [delta_asset("/t")]
    return kind(**{"task_id": "t", **named, **arguments})


@pytest.mark.parametrize(("kind", "name"), fields(), ids=lambda each: getattr(each, "__name__", each))
def test_the_task_of_an_output_runs_first(kind, name):
    with DAG("outputs", schedule=None, start_date=datetime(2026, 1, 1)):

        @task
        def give(): ...

        operator = made(kind, **{name: give()})
    assert operator.upstream_task_ids == {"give"}


@pytest.mark.parametrize(
    "kind", [kind for kind in task_classes() if not inspect.isabstract(kind)], ids=lambda kind: kind.__name__
)
def test_parameters_of_a_kind_are_attributes(kind):
    """So a running task can take what they are rendered to."""
    names = kinds_of(kind).keys()
    assert names <= parameters(kind).keys()
    assert [name for name in names if not hasattr(made(kind), name)] == []


def test_all_fields_are_looked_at():
    assert len(fields()) > 400
