"""Delta Lake transactions across the tasks of an Apache Airflow Dag run.

``from airflow_delta import delta_transaction`` imports Airflow when it is asked for, not before: the log and the cluster side of
this package work without Airflow. The types of these names are in ``__init__.pyi``.
"""

from __future__ import annotations

from airflow_delta.lazy import face
from airflow_delta.version import __version__

__all__ = ["__version__", "delta_publication", "delta_transaction", "staging_path"]

_HOMES = {
    "delta_publication": "publication_groups",
    "delta_transaction": "task_groups",
    "staging_path": "tasks.handle_check",
}

__getattr__, __dir__ = face(__name__, _HOMES)
