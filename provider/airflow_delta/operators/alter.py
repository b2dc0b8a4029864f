"""The task that changes a table itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_delta import engine
from airflow_delta.contract.changes import Change, kind_problem
from airflow_delta.contract.choices import Given, is_literal
from airflow_delta.contract.payloads import StagedWrite
from airflow_delta.tasks.declared import parameter
from airflow_delta.tasks.operation import DeltaTableOperator
from airflow_delta.tasks.spark.runner import RunnerParameters

if TYPE_CHECKING:
    from airflow_delta.table.stage.stage_view import SparkWork, StageView


class DeltaAlterTableOperator(DeltaTableOperator, RunnerParameters):
    """ALTER TABLE: one or several changes, in order, in one version.

    Spark starts only if rows have to be checked: for ADD CONSTRAINT, and for SET NOT NULL if statistics do not count nulls.

    :param changes: values of :mod:`airflow_delta.contract.changes` (``AddColumns``, ``RenameColumn``, ...) or their JSON form,
        ``{"change": "RenameColumn", "column": "a", "newName": "b"}``. (templated)

    The other parameters are those of :class:`~airflow_delta.tasks.operation.DeltaTableOperator` and of
    :class:`~airflow_delta.tasks.spark.runner.RunnerParameters`.
    """

    by_job: ClassVar[bool | str] = True
    staged_mode = "alter"

    changes: Any = parameter(templated=True, renderer="json")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.changes = _as_json(self.changes)

    @staticmethod
    def literal_problems(given: Given) -> Iterator[str]:
        """Yield what is wrong with the names of changes and of their fields."""
        changes = given("changes")
        for change in changes if isinstance(changes, list | tuple) else ():
            if isinstance(change, Mapping) and is_literal(change.get("change")):
                yield from () if (problem := kind_problem(change)) is None else (problem,)

    def plan_stage(self, stage: StageView) -> SparkWork | StagedWrite:
        """Return the staged write, or what Spark has to check first."""
        return engine.plan_alter(stage, changes=self.changes)


def _as_json(changes: Any) -> Any:
    """Return changes as JSON, so that their texts are rendered; XComs are left as they are."""
    if isinstance(changes, Change):
        return [changes.to_dict()]
    if isinstance(changes, list | tuple):
        return [change.to_dict() if isinstance(change, Change) else change for change in changes]
    return changes
