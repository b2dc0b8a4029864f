"""The part of a task whose parameters hold SQL: values for it that a run gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_delta.contract.sql_parameters import SQL_PARAMETERS
from airflow_delta.tasks.declared import Parameters, parameter


class SqlParameters(Parameters):
    """Values of named parameters in the SQL of a task.

    :param parameters: value of each named parameter (``:day``) in the task's SQL: a string, number, boolean, date, datetime or
        ``None``. It stays a value, whatever it holds; a template makes a string. (templated)
    """

    parameters: Mapping[str, Any] | None = parameter(default=None, templated=True, kind=SQL_PARAMETERS, renderer="json")
