"""How the rows of a stage go into the table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_delta import engine
from airflow_delta.contract.choices import (
    CREATE_FROM_ROWS,
    ENFORCE,
    SCHEMA_POLICIES,
    STRICT,
    WRITE_MODES,
    Given,
    is_literal,
    replace_where_problem,
)
from airflow_delta.contract.kinds import MAYBE_TRUTH, NAMES, NAMES_AS_GIVEN, PROPERTIES, SCHEMA, TEXT, TRUTH
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.tasks.base import Part
from airflow_delta.tasks.declared import Parameters, parameter

if TYPE_CHECKING:
    from airflow_delta.table.stage.stage_view import SparkWork, StageView
    from airflow_delta.tasks.declared import Taken


class WriteParameters(Parameters):
    """Parameters of a task that stages rows: how they go into the table.

    :param mode: ``append``, ``overwrite`` or ``dynamic`` (overwrite the partitions that the rows are in). (templated)
    :param replace_where: Spark SQL predicate for an ``overwrite``: it replaces only rows that satisfy it, and every new row must
        satisfy it. (templated)
    :param merge_schema: add columns that the table does not have. (templated)
    :param overwrite_schema: let an ``overwrite`` replace the table's schema and partitioning. (templated)
    :param partition_by: partition columns; default: the transaction's. (templated)
    :param optimize_write: shuffle the rows into files near the target size before writing; default: the table's property
        ``delta.autoOptimize.optimizeWrite``.
    :param data_change: false if the rows are those of the table, only in other files (Delta's ``dataChange``).
    :param replace_on: condition between rows ``t`` of the table and new rows ``s``: an ``overwrite`` replaces the rows of the
        table that match any new row. (templated)
    :param replace_using: columns; the same for rows that are equal in all of them. (templated)
    :param create: create the table from the rows: ``create`` (CREATE TABLE AS SELECT), ``create_or_replace`` or ``replace``.
        (templated)
    :param cluster_by: with ``create``: columns to cluster the table by. (templated)
    :param properties: with ``create``: table properties. (templated)
    :param description: with ``create``: comment of the table. (templated)
    :param schema_policy: ``enforce`` (default): rows are cast where no value can be lost, and missing columns are null;
        ``strict``: rows that do not have exactly the expected columns and types are refused before anything is written.
    :param expected_schema: with ``strict``: columns as in SQL (``id BIGINT, tags ARRAY<STRING>``), or Spark's JSON form of a
        schema; default: that of the table. (templated)
    """

    has_write_mode: ClassVar[bool] = True

    mode: str = parameter(default="append", templated=True, choices=WRITE_MODES)
    replace_where: str | None = parameter(default=None, templated=True)
    merge_schema: Taken[bool | str, bool] = parameter(default=False, templated=True, kind=TRUTH)
    overwrite_schema: Taken[bool | str, bool] = parameter(default=False, templated=True, kind=TRUTH)
    partition_by: Taken[str | Sequence[str], tuple[str, ...]] = parameter(default=(), templated=True, kind=NAMES)
    optimize_write: bool | None = parameter(default=None, kind=MAYBE_TRUTH)
    data_change: bool = parameter(default=True, kind=TRUTH)
    replace_on: str | None = parameter(default=None, templated=True)
    replace_using: Taken[str | Sequence[str], tuple[str, ...]] = parameter(default=(), templated=True, kind=NAMES_AS_GIVEN)
    create: str | None = parameter(default=None, templated=True, choices=CREATE_FROM_ROWS)
    cluster_by: Taken[str | Sequence[str], tuple[str, ...]] = parameter(default=(), templated=True, kind=NAMES)
    properties: Mapping[str, str] | None = parameter(default=None, templated=True, kind=PROPERTIES)
    description: str | None = parameter(default=None, templated=True, kind=TEXT)
    schema_policy: str = parameter(default=ENFORCE, choices=SCHEMA_POLICIES)
    expected_schema: Taken[str | Mapping[str, Any] | None, str | None] = parameter(default=None, templated=True, kind=SCHEMA)

    def __post_init__(self) -> None:
        """Refuse a contract that could not hold, while the Dag is parsed."""
        super().__post_init__()
        changes = [name for name in ("merge_schema", "overwrite_schema") if getattr(self, name) is True]
        changes += ["create"] if self.create else []
        if self.schema_policy == ENFORCE and self.expected_schema is not None:
            raise DeltaIllegalArgumentException("expected_schema goes with schema_policy='strict'.")
        if self.schema_policy == STRICT and self.expected_schema is None and changes:
            raise DeltaIllegalArgumentException(
                f"schema_policy='strict' holds the rows to the table's schema, which {changes[0]} would change. Give "
                f"expected_schema, or leave {changes[0]} out."
            )

    @staticmethod
    def literal_problems(given: Given) -> Iterator[str]:
        """Yield a ``replace_where`` with a mode that has none; an empty one is found where predicates are parsed."""
        mode, where = given("mode") or "append", given("replace_where")
        if given("create") is None and is_literal(where) and where.strip() and is_literal(mode) and mode in WRITE_MODES:
            problem = replace_where_problem(mode, where)
            yield from () if problem is None else (f"{problem}.",)


class WriteOptions(Part, WriteParameters):
    """The part of a task that stages rows: how they go into the table."""

    def options(self) -> dict[str, Any]:
        """Return the options as the commands take them."""
        self._check_replacement()
        more: dict[str, Any] = {
            "replace_on": self.replace_on,
            "replace_using": self.replace_using,
            "create": self.create,
            "cluster_by": self.cluster_by,
            "properties": self.properties,
            "description": self.description,
        }
        return {
            "mode": self.mode,
            "replace_where": self.replace_where,
            "merge_schema": self.merge_schema,
            "overwrite_schema": self.overwrite_schema,
            "partition_by": self.partition_by,
            **{name: value for name, value in more.items() if value},
            **({} if self.optimize_write is None else {"optimize_write": self.optimize_write}),
            **({} if self.data_change else {"data_change": False}),
            **({} if self.expected_schema is None else {"expected_schema": self.expected_schema}),
            **({} if self.schema_policy == ENFORCE else {"schema_policy": self.schema_policy}),
        }

    def _check_replacement(self) -> None:
        """Refuse an empty condition, as a template without a value gives: the overwrite would replace the whole table."""
        using = self.replace_using
        given = {
            "replace_on": self.replace_on is None or bool(self.replace_on.strip()),
            "replace_using": using is None or using == () or any(name.strip() for name in using),
        }
        if empty := [name for name, fits in given.items() if not fits]:
            raise DeltaIllegalArgumentException(
                f"{empty[0]} of the stage {self.task.task_id!r} is empty, so its overwrite would replace the whole table. Check "
                "the template, or leave the parameter out."
            )

    def plan(self, stage: StageView, **more: Any) -> SparkWork:
        """Plan the write of rows.

        :param more: further arguments of :func:`airflow_delta.table.stage.write.plan.plan_stage`.
        """
        return engine.SparkWork(engine.plan_stage(stage, **self.options(), **more), partial(engine.collect_stage, stage))
