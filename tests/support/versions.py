"""What the lowest versions of Airflow that the metadata allow cannot do yet."""

from __future__ import annotations

from importlib.metadata import version

from packaging.version import Version

MAPPED_TASKS_HAVE_THE_DEFAULTS_OF_THEIR_CLASS = Version(version("apache-airflow-task-sdk")) >= Version("1.3.2")
"""``partial()`` of Airflow 3.3.1 fills in Airflow's own defaults, so that mapped tasks have no retry policy."""
