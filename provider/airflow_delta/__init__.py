"""Delta Lake transactions across the tasks of an Apache Airflow Dag run.

``from airflow_delta import delta_transaction`` imports Airflow when it is asked for, not before: the log and the cluster side of
this package work without Airflow. The names are in ``__init__.pyi``.
"""

from __future__ import annotations

from airflow_delta.lazy import face
from airflow_delta.version import __version__ as __version__

__getattr__, __dir__, __all__ = face(__name__)
