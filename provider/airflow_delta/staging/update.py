"""Arguments of an UPDATE."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_delta.staging.arguments import RewriteArguments
from airflow_delta.staging.contract import Payload


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment(Payload):
    """A column or field, and its new value.

    :param path: names from the column to the field, as in the schema.
    :param expression: Spark SQL over the old row.
    """

    path: tuple[str, ...]
    expression: str


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateArguments(RewriteArguments):
    """Arguments of an UPDATE.

    :param repeatable: the expressions give the same values each time they are evaluated.
    """

    set: tuple[Assignment, ...]
    repeatable: bool
