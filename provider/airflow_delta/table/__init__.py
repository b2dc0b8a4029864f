"""What a user does with a table, as functions over a :class:`~airflow_delta.log.delta_log.DeltaLog`, without Airflow.

Everything is imported on first use, so that a task pays only for what it needs.
"""

from __future__ import annotations

from airflow_delta.lazy import face

__getattr__, __dir__, __all__ = face(__name__)
