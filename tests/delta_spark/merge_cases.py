"""MERGE statements as SQL and as clauses, run by Delta Spark on one copy of a table and by us on another."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_delta.contract.merge import (
    when_matched_update,
    when_not_matched_insert,
)
from airflow_delta.exceptions import DeltaError
from airflow_delta.table.operations.merge.plan import plan_merge
from delta_spark.support import delta_rows, delta_snapshot, sql_name
from support.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def source(columns: str, ids: str = "(0L), (1L), (2L), (3L), (9L)") -> str:
    return f"SELECT id, {columns} FROM VALUES {ids} AS t(id)"


ON = "t.id = s.id"


@dataclass(frozen=True)
class Case:
    """A statement, as SQL and as clauses.

    :param error: Delta's error class.
    :param ours: what our error says, where that is not Delta's class.
    """

    name: str
    source: str
    sql: str
    clauses: list[dict[str, Any]]
    evolve: bool = False
    error: str | None = None
    ours: str | None = None


def updated(name: str, columns: str, values: dict[str, str], **more: Any) -> Case:
    text = ", ".join(f"{column} = {value}" for column, value in values.items())
    return Case(name, source(columns), f"WHEN MATCHED THEN UPDATE SET {text}", [when_matched_update(values)], **more)


def inserted(name: str, columns: str, values: dict[str, str], **more: Any) -> Case:
    text = f"({', '.join(values)}) VALUES ({', '.join(values.values())})"
    return Case(name, source(columns), f"WHEN NOT MATCHED THEN INSERT {text}", [when_not_matched_insert(values)], **more)


def star(name: str, columns: str, **more: Any) -> Case:
    sql = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    return Case(name, source(columns), sql, [when_matched_update(), when_not_matched_insert()], **more)


def compare(delta: SparkSession, ours: Table, theirs: Path, case: Case) -> None:
    """Run a statement by both, and compare rows and schemas, or the error class."""
    if case.error is None:
        run_theirs(delta, theirs, case)
        run_ours(ours, case)
        assert columns_of(delta, ours.path) == columns_of(delta, theirs)
        assert delta_rows(delta, ours.path) == delta_rows(delta, theirs)
        return
    version = ours.versions()[-1]
    with pytest.raises(Exception) as refused:  # noqa: PT011 - its text is not that of a Python exception
        run_theirs(delta, theirs, case)
    assert case.error in text_of(refused.value)
    with pytest.raises(DeltaError, match=case.ours or case.error):
        run_ours(ours, case)
    assert ours.versions()[-1] == version


def run_theirs(delta: SparkSession, path: Path, case: Case) -> None:
    evolution = "WITH SCHEMA EVOLUTION " if case.evolve else ""
    delta.sql(f"MERGE {evolution}INTO {sql_name(path)} t USING ({case.source}) s ON {ON} {case.sql}")


def run_ours(table: Table, case: Case) -> None:
    table.run(
        plan_merge,
        source=case.source,
        condition=ON,
        clauses=case.clauses,
        source_alias="s",
        target_alias="t",
        merge_schema=case.evolve,
    )


def columns_of(delta: SparkSession, path: Path) -> str:
    """Return the schema as SQL, without names in files."""
    return str(delta_snapshot(delta, path).metadata().schema().toDDL())


def text_of(error: Exception) -> str:
    """Return the text of an error of Spark; PySpark fails to make that of some of Delta's, and says so with their class."""
    try:
        return str(error)
    except Exception as failure:
        return str(failure)
