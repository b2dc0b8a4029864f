"""Arguments of ADD CONSTRAINT and SET NOT NULL, which check the table's rows on Spark."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_delta.staging.arguments import Arguments


@dataclass(frozen=True, kw_only=True, slots=True)
class ConstraintArguments(Arguments):
    """Arguments of a check of rows.

    :param constraints: Spark SQL conditions by name of the constraint.
    :param not_null: paths of columns that must not be null.
    :param staged: the staged write to return if the rows pass.
    """

    constraints: dict[str, str] = field(default_factory=dict)
    not_null: tuple[tuple[str, ...], ...] = ()
    staged: dict  # type: ignore[type-arg]
