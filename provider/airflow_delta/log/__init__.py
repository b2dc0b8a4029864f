"""The Delta log on its own, without transactions: reading a table at a version, and writing commits and checkpoints.

Everything is imported on first use, so that a task pays only for what it needs. ``DeltaLog`` comes from the floor
above, with transactions; the package itself uses :class:`airflow_delta.log.delta_log.DeltaLog`.
"""

from __future__ import annotations

from airflow_delta.lazy import face

__getattr__, __dir__, __all__ = face(__name__)
