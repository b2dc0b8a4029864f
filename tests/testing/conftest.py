"""The fixtures under test."""

from airflow_delta.testing.lake import lake, run_dag

__all__ = ["lake", "run_dag"]
