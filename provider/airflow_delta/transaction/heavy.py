"""The door from light modules of transactions to heavy ones, which import pyarrow.

A blind append imports only light ones: a name is looked up when it is used. Types: ``heavy.pyi``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "CarriedRows": "airflow_delta.transaction.conflicts.carried_rows",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
