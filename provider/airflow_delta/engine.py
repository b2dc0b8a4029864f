"""The door from what Airflow imports to the engine: the log, its transactions, what is done with tables, and work on Spark.

A Dag file is parsed every few seconds and starts none of this: a name of ``engine.pyi`` is looked up when a task uses it.
"""

from __future__ import annotations

from airflow_delta.lazy import door

__getattr__, __all__ = door(__name__)
