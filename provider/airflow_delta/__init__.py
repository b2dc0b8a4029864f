"""Delta Lake transactions across the tasks of an Apache Airflow Dag run.

``from airflow_delta import delta_transaction`` imports Airflow when it is asked for, not before: the log and the cluster side of
this package work without Airflow. The types of these names are in ``__init__.pyi``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from airflow_delta.version import __version__

__all__ = ["__version__", "delta_publication", "delta_transaction", "staging_path"]

_HOMES = {
    "delta_publication": "publication_groups",
    "delta_transaction": "task_groups",
    "staging_path": "tasks.handle_check",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"airflow_delta.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
