"""The door from what a commit asks about checks to what reads rows, which imports pyarrow.

Most commits read no rows: a name is looked up when it is used. Types: ``heavy.pyi``.
"""

from __future__ import annotations

from airflow_delta.lazy import door

_HOMES = {
    "AuditedTable": "airflow_delta.table.audit.audit",
    "HeldKeys": "airflow_delta.table.audit.held_keys",
}

__all__ = sorted(_HOMES)

__getattr__ = door(__name__, _HOMES)
