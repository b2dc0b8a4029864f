"""The door from light modules of transactions to heavy ones, which import pyarrow.

A blind append imports only light ones: a name of ``heavy.pyi`` is looked up when it is used.
"""

from __future__ import annotations

from airflow_delta.lazy import door

__getattr__, __all__ = door(__name__)
