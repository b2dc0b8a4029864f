"""Rows read in the worker, in the form that a task asks for."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk.exceptions import AirflowOptionalProviderFeatureException

from airflow_delta import engine
from airflow_delta.exceptions import DeltaIllegalArgumentException

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.read.read_table import Rows

DataFrameType = Literal["arrow", "pandas", "polars", "spark"]

DF_TYPES = ("arrow", "pandas", "polars", "spark")

ROW_LIMIT = 1_000_000
"""Default number of rows that ``get_df`` and ``read_changes`` return: what a worker's memory usually holds."""


def check_df_type(df_type: str, table: str) -> None:
    """Refuse what is not the name of a kind of frame, or needs a package that is not installed.

    :raises DeltaIllegalArgumentException: if it is not such a name.
    :raises AirflowOptionalProviderFeatureException: if the package is missing.
    """
    if df_type not in DF_TYPES:
        raise DeltaIllegalArgumentException(
            f"df_type must be one of {', '.join(DF_TYPES)}, got {df_type!r}. (table {table})", table=table
        )
    package = {"pandas": "pandas", "polars": "polars", "spark": "pyspark"}.get(df_type)
    if package is not None and importlib.util.find_spec(package) is None:
        raise AirflowOptionalProviderFeatureException(
            f'df_type="{df_type}" needs the package {package}, which is not installed on this worker: pip install {package}. '
            'df_type="arrow" needs none.'
        )


def as_frame(rows: Rows, df_type: str) -> Any:
    """Return rows as a :class:`pyarrow.Table`, a pandas or a Polars frame.

    Integers with nulls stay integers in pandas, in a column of objects: as floating-point numbers, large ones would change.
    """
    found = rows.to_table()
    if df_type == "pandas":
        return found.to_pandas(integer_object_nulls=True)
    if df_type == "polars":
        import polars

        return polars.from_arrow(found)
    return found


def read_with_spark(
    log: DeltaLog,
    spark: SparkSession | None,
    *,
    where: str | None,
    columns: Sequence[str] | None,
    version: int | None,
    timestamp: datetime | int | None,
) -> DataFrame:
    """Return the rows of a version as a lazy DataFrame; parameters as for ``get_df``."""
    session = _active_session(spark, log.uri)
    snapshot = engine.snapshot_of(log, version, timestamp)
    wanted = engine.wanted_fields(log, snapshot.version, snapshot.schema, columns)
    df = engine.read_scan_plan(session, engine.plan_version_scan(log, snapshot.version, where))
    return df if columns is None else _selected(df, [field.name for field in wanted])


def read_changes_with_spark(
    log: DeltaLog, spark: SparkSession | None, *, where: str | None, columns: Sequence[str] | None, **versions: Any
) -> DataFrame:
    """Return changed rows as a lazy DataFrame; parameters as for ``read_changes``."""
    session = _active_session(spark, log.uri)
    plan = engine.plan_changes(log, **versions)
    schema = engine.TableDefinition.of_rows(engine.change_schema(engine.TableDefinition.of_rows(plan.schema_string))).schema
    wanted = engine.wanted_fields(log, plan.ending_version, schema, columns)
    df = engine.read_change_plan(session, plan)
    if where is not None:
        df = df.where(engine.Predicate.parse(where, schema, table=log.uri, version=plan.ending_version).text)
    return df if columns is None else _selected(df, [field.name for field in wanted])


def _selected(df: DataFrame, columns: Sequence[str]) -> DataFrame:
    return df.select(*(f"`{name.replace('`', '``')}`" for name in columns))


def _active_session(spark: SparkSession | None, table: str) -> SparkSession:
    session = spark if spark is not None else engine.SparkSession.getActiveSession()
    if session is None:
        raise DeltaIllegalArgumentException(
            f'There is no Spark session to read table {table} with. Pass spark=, or use df_type="arrow".', table=table
        )
    return session
