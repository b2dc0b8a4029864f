"""A parameter is declared once; whatever Airflow and the docs have of it follows from that."""

from __future__ import annotations

import inspect
from datetime import datetime
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator

from airflow_delta.contract.kinds import NAMES, TRUTH, WHOLE_NUMBER
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.tasks.base import DeltaOperator
from airflow_delta.tasks.declared import Parameters, parameter
from support.task_classes import documented, task_classes

OURS = [kind for kind in task_classes() if issubclass(kind, Parameters)]

OF_AIRFLOW = {"python_callable", "op_args", "op_kwargs", "outlets", "retry_policy"}
"""Parameters of Airflow's operators that constructors of ours name."""


def constructor_of(kind: type[BaseOperator]) -> dict[str, inspect.Parameter]:
    found: dict[str, inspect.Parameter] = {}
    for base in kind.__mro__:
        if base.__module__.startswith("airflow_delta.") and "__init__" in vars(base):
            for name, each in inspect.signature(vars(base)["__init__"]).parameters.items():
                found.setdefault(name, each)
    return found


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)
def test_the_constructor_takes_what_is_declared(kind):
    found = constructor_of(kind)
    assert found.keys() - {"self", "kwargs"} - OF_AIRFLOW == kind.declared.keys()
    for name, each in kind.declared.items():
        assert found[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert found[name].default is each.default
        assert found[name].annotation == each.annotation


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)
def test_fields_that_are_rendered_are_declared(kind):
    ours = {each.attribute for each in kind.declared.values() if each.templated}
    airflows = {
        name for base in kind.__mro__ if not issubclass(base, Parameters) for name in getattr(base, "template_fields", ())
    }
    assert {*kind.template_fields} - airflows == ours - airflows
    assert {*kind.template_fields_renderers} <= {*kind.template_fields} | airflows


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)
def test_what_is_declared_is_documented(kind):
    refused = {"source"} if "MergePySpark" in kind.__name__ or kind.__name__.startswith("_DeltaMerge") else set()
    assert kind.declared.keys() - refused <= documented(kind).keys()


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)
def test_nothing_is_declared_twice(kind):
    """Only what a class changes of a base stands in both."""
    changed = {("DeltaStartTransactionOperator", "table")}
    for base in kind.__mro__:
        own = inspect.get_annotations(base).keys() if base.__module__.startswith("airflow_delta.") else ()
        for above in base.__mro__[1:]:
            again = {name for name in getattr(above, "declared", {}) if name in own}
            assert {(base.__name__, name) for name in again} <= changed


class Shared(Parameters):
    columns: str | list[str] = parameter(default=(), templated=True, kind=NAMES)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.seen = self.columns


class Declares(DeltaOperator, Shared):
    remark = "annotations alone, and values alone, are no parameters"
    rows: int | str = parameter(templated=True, kind=WHOLE_NUMBER)
    word: str = parameter(default="a", choices=("a", "b"))
    is_test: bool = parameter(default=False, alias="dry_run", kind=TRUTH)

    def execute(self, context: Any) -> Any: ...


class TestATask:
    def test_attributes(self):
        task = Declares(task_id="t", rows="7", columns="id", dry_run="true")
        assert (task.rows, task.columns, task.word, task.is_test, task.seen) == (7, ("id",), "a", True, ("id",))
        assert not hasattr(Declares, "rows")

    def test_what_is_missing_or_unknown_is_refused(self):
        with pytest.raises(TypeError, match="rows"):
            Declares(task_id="t")
        with pytest.raises(TypeError, match="row_count"):
            Declares(task_id="t", rows=1, row_count=2)
        with pytest.raises(TypeError, match="is_test"):
            Declares(task_id="t", rows=1, is_test=True)

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ({"rows": "many"}, "rows must be a whole number, got 'many'"),
            ({"rows": 1, "word": "c"}, "word must be one of a, b, got 'c'"),
            ({"rows": 1, "dry_run": "perhaps"}, "dry_run must be true or false"),
        ],
    )
    def test_values_are_checked(self, given, says):
        with pytest.raises(DeltaIllegalArgumentException, match=says):
            Declares(task_id="t", **given)

    def test_default_args_partial_and_expand(self):
        with DAG("declared", schedule=None, start_date=datetime(2026, 1, 1), default_args={"columns": ["a", "b"]}):
            task = Declares(task_id="t", rows=1)
            mapped = Declares.partial(task_id="m", word="b").expand(rows=[1, 2])
        assert task.columns == ("a", "b")
        assert (mapped.unmap({"rows": 2}).rows, mapped.unmap({"rows": 2}).word) == (2, "b")
        with pytest.raises(TypeError, match="is_test"):
            Declares.partial(task_id="n", is_test=True)

    def test_a_run_gives_the_rest(self):
        task = Declares(task_id="t", rows="{{ params.rows }}", columns="{{ params.columns }}")
        task.render_template_fields({"params": {"rows": 3, "columns": "x"}})
        task.pre_execute({})
        assert (task.rows, task.columns) == (3, ("x",))
