"""The task that changes a table itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta.operators.table import DeltaSparkTableOperator
from airflow_delta.staging.changes import Change
from airflow_delta.staging.contract import StagedWrite

if TYPE_CHECKING:
    from airflow_delta.commands.stage.stage_view import SparkWork, StageView


class DeltaAlterTableOperator(DeltaSparkTableOperator):
    """ALTER TABLE: one change or several, made in their order, in one version.

    Spark is only asked where rows have to be looked at: ADD CONSTRAINT, and SET NOT NULL where statistics do not count nulls.

    :param changes: values of :mod:`airflow_delta.staging.changes` (``AddColumns``, ``RenameColumn``, ...) or their JSON form,
        ``{"change": "RenameColumn", "column": "a", "newName": "b"}``. (templated)

    The other parameters are those of :class:`~airflow_delta.operators.table.DeltaSparkTableOperator`.
    """

    template_fields: Sequence[str] = (*DeltaSparkTableOperator.template_fields, "changes")
    template_fields_renderers = {**DeltaSparkTableOperator.template_fields_renderers, "changes": "json"}

    def __init__(self, *, changes: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.changes = _as_json(changes)

    def plan(self, stage: StageView) -> SparkWork | StagedWrite:
        """Return the staged write, or what Spark has to check before."""
        from airflow_delta.commands.stage.plan_alter import plan_alter

        return plan_alter(
            stage,
            changes=self.changes,
        )

    def _mode(self) -> str:
        return "alter"


def _as_json(changes: Any) -> Any:
    """Return changes so that their texts are rendered; what only a run can tell stays as it is."""
    if isinstance(changes, Change):
        return [changes.to_dict()]
    if isinstance(changes, list | tuple):
        return [change.to_dict() if isinstance(change, Change) else change for change in changes]
    return changes
