"""Delta Lake transactions across the tasks of an Apache Airflow Dag run.

``from airflow_delta import delta_transaction`` imports Airflow when it is asked for, not before: the log and the cluster side of
this package work without Airflow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_delta.task_groups import delta_transaction

__version__ = "0.1.0"
__all__ = ["__version__", "delta_transaction"]


def __getattr__(name: str) -> Any:
    if name == "delta_transaction":
        return import_module("airflow_delta.task_groups").delta_transaction
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
