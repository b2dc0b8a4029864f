"""Read the change data feed as a DataFrame: exactly the files of a change plan.

What all rows of a file share (its commit, the kind of change of a data file) is one more partition value for the reader, so that
files of many commits are read at once.
"""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from functools import reduce
from typing import TYPE_CHECKING

from airflow_delta.contract.change_plan import ChangeCommit, ChangePlan
from airflow_delta.contract.delta_names import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from airflow_delta.contract.payloads import Json, ScanFile, ScanPlan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
from airflow_delta.spark.read import read_plan_files

_TYPES = {CHANGE_TYPE: "string", COMMIT_VERSION: "long", COMMIT_TIMESTAMP: "timestamp"}


def read_change_plan(spark: SparkSession, plan: ChangePlan) -> DataFrame:
    """Return the changed rows: the table's columns, ``_change_type``, ``_commit_version`` and ``_commit_timestamp``.

    ``_change_type`` is ``insert``, ``delete``, ``update_preimage`` or ``update_postimage``. Rows are in no particular order.
    """
    parts = [
        read_plan_files(spark, _scan_plan(plan, in_files=change_type is None), files, marked_rows=marked)
        for kind, change_type, marked in (
            ("changes", None, False),
            ("inserts", "insert", False),
            ("deletes", "delete", False),
            ("inserted_rows", "insert", True),
            ("deleted_rows", "delete", True),
        )
        for files in _batches(plan, kind, change_type)
    ]
    return reduce(lambda a, b: a.unionAll(b), parts) if parts else read_plan_files(spark, _scan_plan(plan, in_files=False), [])


def _scan_plan(plan: ChangePlan, *, in_files: bool) -> ScanPlan:
    """Return the plan of a scan over files of the change plan.

    :param in_files: the files have the kind of change of each row.
    """
    schema = json.loads(plan.schema_string)
    added: list[Json] = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in _TYPES.items()]
    given = (COMMIT_VERSION, COMMIT_TIMESTAMP) if in_files else tuple(_TYPES)
    return ScanPlan(
        transaction_id=plan.transaction_id,
        table=plan.table,
        read_version=plan.ending_version,
        schema_string=json.dumps({**schema, "fields": [*schema["fields"], *added]}),
        partition_columns=(*plan.partition_columns, *given),
        column_mapping=plan.column_mapping,
        deleted_rows=plan.words,
    )


def _batches(plan: ChangePlan, kind: str, change_type: str | None) -> Iterator[list[ScanFile]]:
    """Yield files of one kind in batches in which each path occurs once: a scan identifies files by path."""
    batches: list[list[ScanFile]] = []
    seen: dict[str, int] = defaultdict(int)
    for commit in plan.commits:
        values = _values(commit, change_type)
        files: tuple[ScanFile, ...] = getattr(commit, kind)
        for file in files:
            if seen[file.path] == len(batches):
                batches.append([])
            batches[seen[file.path]].append(dataclasses.replace(file, partition_values={**file.partition_values, **values}))
            seen[file.path] += 1
    yield from batches


def _values(commit: ChangeCommit, change_type: str | None) -> dict[str, str | None]:
    time = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=commit.timestamp)
    values: dict[str, str | None] = {COMMIT_VERSION: str(commit.version), COMMIT_TIMESTAMP: time.isoformat()}
    return values if change_type is None else {**values, CHANGE_TYPE: change_type}
