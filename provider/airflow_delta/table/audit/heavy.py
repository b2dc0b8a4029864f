"""The door from what a commit asks about checks to what reads rows, which imports pyarrow.

Most commits read no rows: a name of ``heavy.pyi`` is looked up when it is used.
"""

from __future__ import annotations

from airflow_delta.lazy import door

__getattr__, __all__ = door(__name__)
