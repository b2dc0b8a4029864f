"""What the tasks that merge share: the MERGE without its source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta import engine
from airflow_delta.contract.choices import Given, is_literal
from airflow_delta.contract.kinds import TRUTH
from airflow_delta.contract.merge import clauses_problem, when_matched_update, when_not_matched_insert
from airflow_delta.tasks.base import Part
from airflow_delta.tasks.declared import Parameters, parameter

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import StagedWrite
    from airflow_delta.table.stage.stage_view import SparkWork, StageView
    from airflow_delta.tasks.declared import Taken


class MergeParameters(Parameters):
    """Parameters of a task that merges: the MERGE without its source.

    :param condition: Spark SQL over a row of the table and one of the source: whether they match. (templated)
    :param clauses: made with :func:`when_matched_update`, :func:`when_not_matched_insert`, ...; of each kind, the first clause
        whose condition holds applies to a row. (templated)
    :param source_alias: name of the source in conditions and expressions. (templated)
    :param target_alias: name of the table in conditions and expressions. (templated)
    :param merge_schema: add columns and struct fields that only the source has to the table: those that clauses name, and all if
        one has ``*``. (templated)
    :param options: options of Spark's Parquet writer. (templated)
    """

    condition: str = parameter(templated=True, renderer="sql")
    clauses: Sequence[Mapping[str, Any]] | None = parameter(default=None, templated=True, renderer="json")
    source_alias: str = parameter(default="source", templated=True)
    target_alias: str = parameter(default="target", templated=True)
    merge_schema: Taken[bool | str, bool] = parameter(default=False, templated=True, kind=TRUTH)
    options: Mapping[str, str] | None = parameter(default=None, templated=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clauses is None:
            self.clauses = [when_matched_update(), when_not_matched_insert()]

    @staticmethod
    def literal_problems(given: Given) -> Iterator[str]:
        """Yield what is wrong with the clauses; templates may be in their SQL only."""
        clauses = given("clauses")
        if isinstance(clauses, list | tuple) and all(map(_is_literal_clause, clauses)):
            problem = clauses_problem(clauses)
            yield from () if problem is None else (f"the MERGE {problem}.",)


class MergeStatement(Part, MergeParameters):
    """The part of a task that merges: the MERGE without its source."""

    def plan(self, stage: StageView, **source: Any) -> SparkWork | StagedWrite:
        """Plan the MERGE.

        :param source: what the request says of the source, as of :func:`~airflow_delta.table.operations.merge.plan.plan_merge`.
        """
        return engine.plan_merge(
            stage,
            condition=self.condition,
            clauses=self.clauses or (),
            **source,
            source_alias=self.source_alias,
            target_alias=self.target_alias,
            merge_schema=self.merge_schema,
            options=self.options,
        )


def _is_literal_clause(clause: Any) -> bool:
    """Return whether the Dag file says what a clause is; other values than text, such as outputs of tasks, are known later."""
    if not isinstance(clause, Mapping):
        return False
    return all(is_literal(clause.get(name, "")) for name in ("kind", "action")) and all(
        value is None or isinstance(value, str | Mapping) for value in clause.values()
    )
