"""Changes of a table between two versions: what the worker tells Spark to read."""

from __future__ import annotations

from airflow_delta.contract.payloads import CONTRACT, Payload, ScanFile
from airflow_delta.light_dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangeCommit(Payload):
    """Changes of one commit: its change data files, or its data files if it has none.

    :param timestamp: milliseconds since the epoch: the in-commit timestamp if the table has them, else the file's time.
    :param changes: change data files; each row names its kind of change.
    :param inserts: data files whose rows were inserted.
    :param deletes: data files whose rows were deleted.
    :param inserted_rows: files that stayed; the rows that the deletion vector marks came back.
    :param deleted_rows: files that stayed; the rows that the deletion vector marks were deleted.
    """

    version: int
    timestamp: int
    changes: tuple[ScanFile, ...] = ()
    inserts: tuple[ScanFile, ...] = ()
    deletes: tuple[ScanFile, ...] = ()
    inserted_rows: tuple[ScanFile, ...] = ()
    deleted_rows: tuple[ScanFile, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangePlan(Payload):
    """Changes of a table from one version to another, both included.

    :param transaction_id: the execution that planned it; names the directory of ``words``.
    :param table: URI of the table as Spark reaches it, not URL-encoded.
    :param schema_string: Spark's JSON form of the schema to read all changes with.
    :param column_mapping: ``none``, ``name`` or ``id``.
    :param commits: commits that changed rows, oldest first.
    :param words: Parquet file with the rows that deletion vectors mark, relative to the table, if they are too many for the plan
        (like ``ScanPlan.deletedRows``).
    """

    contract: int = CONTRACT
    transaction_id: str
    table: str
    starting_version: int
    ending_version: int
    schema_string: str
    partition_columns: tuple[str, ...] = ()
    column_mapping: str = "none"
    commits: tuple[ChangeCommit, ...] = ()
    words: str | None = None
