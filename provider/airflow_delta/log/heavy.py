"""The door from light modules of the log to heavy ones, which import pyarrow or sqlglot.

Start and the commit of a blind append import only light ones: a name of ``heavy.pyi`` is looked up when it is used.
"""

from __future__ import annotations

from airflow_delta.lazy import door

__getattr__, __all__ = door(__name__)
