"""Arguments of a ``WRITE``, beyond the fields of its request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from airflow_delta.staging.arguments import Arguments
from airflow_delta.staging.contract import Payload
from airflow_delta.staging.merge import ComparedColumns


def replace_where_problem(mode: Any, replace_where: str) -> str | None:
    """Return why a mode and a ``replace_where`` do not go together; ``None`` if they do."""
    if mode == "overwrite" and replace_where.strip():
        return None
    return f"replace_where needs mode='overwrite' and a predicate, got mode={mode!r} and {replace_where!r}"


@dataclass(frozen=True, kw_only=True, slots=True)
class CreateArguments(Payload):
    """The table to create (CREATE TABLE AS SELECT).

    :param mode: ``create``, ``create_or_replace`` or ``replace``.
    """

    mode: str
    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    properties: dict[str, str] = field(default_factory=dict)
    description: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class WriteArguments(Arguments):
    """Arguments of a ``WRITE``.

    :param replace_on: Spark SQL condition over rows ``t`` of the table and new rows ``s``; matching rows of the table are
        replaced.
    :param keys: columns that the condition compares: of the table, and of the new rows as ``source``.
    :param parameters: ``operationParameters`` of the condition.
    :param optimize_write: bytes of shuffled rows per file of an optimised write.
    :param data_change: false if the table's rows stay the same and only move to other files.
    :param replaced_schema: schema of the replaced table, whose columns keep their ids and physical names.
    :param expected_schema: schema that the rows must have (``schema_policy="strict"``).
    """

    create: CreateArguments | None = None
    replace_on: str | None = None
    keys: tuple[ComparedColumns, ...] = ()
    parameters: dict | None = None  # type: ignore[type-arg]
    optimize_write: int | None = None
    data_change: bool = True
    replaced_schema: str | None = None
    expected_schema: str | None = None
