"""The part of a task whose parameters hold SQL: values for it that a run gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from airflow_delta.contract.kinds import Kinds
from airflow_delta.contract.sql_parameters import SQL_PARAMETERS
from airflow_delta.tasks.base import Part


@dataclass(kw_only=True, eq=False, repr=False)
class SqlParameters(Part):
    """Values of named parameters in the SQL of a task.

    :param parameters: value of each named parameter (``:day``) in the task's SQL: a string, number, boolean, date, datetime or
        ``None``. It stays a value, whatever it holds; a template makes a string. (templated)
    """

    kinds: ClassVar[Kinds] = {"parameters": SQL_PARAMETERS}
    template_fields: ClassVar[tuple[str, ...]] = ("parameters",)

    parameters: Mapping[str, Any] | None = None
