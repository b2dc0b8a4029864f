"""UPDATE on Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf

from airflow_delta.contract.operations import Assignment, UpdateArguments, assignment_tree
from airflow_delta.contract.payloads import ScanFile
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.contract.schema import VARIANT, Type, same_type, type_name
from airflow_delta.exceptions import SchemaMismatchException
from airflow_delta.spark.align import align, converted, spark_name, spark_type, spark_value
from airflow_delta.spark.rewrite import RewriteAttempt, row_errors

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_CHANGED = "__airflow_delta_changed"


def run(spark: SparkSession, request: StageRequest) -> StageReport:
    """Set columns in the rows that ``request.predicate`` selects, in all rows without one."""
    work = RewriteAttempt(spark, request)
    arguments = UpdateArguments.of(request)
    with row_errors(work):
        touched = work.marked() if request.deletion_vectors else work.touched()
        work.lap("scanTimeMs")
        if touched:
            _write(work, touched, arguments)
        work.metrics["numUpdatedRows"] = work.num_rows
        work.lap("rewriteTimeMs")
    return work.report()


def _write(work: RewriteAttempt, touched: Sequence[ScanFile], arguments: UpdateArguments) -> None:
    request, values = work.request, arguments.set
    if work.version_column is not None:
        values = (*values, Assignment(path=(work.version_column,), expression="CAST(NULL AS BIGINT)"))
    change_data = request.rules.change_data
    # Change data must be what was written: values that may differ on each evaluation are read back, from separate files.
    apart = request.deletion_vectors or request.predicate is None or (change_data and not arguments.repeatable)
    if apart:
        new = work.write(work.aligned(updated(work, work.where(work.read(touched)), values)), "new")
        kept = [] if request.deletion_vectors or request.predicate is None else work.partly(touched)
        if kept:
            work.write(work.aligned(work.read(kept).where(~work.condition)), "copied")
    else:
        new = work.write(work.aligned(updated(work, work.read(touched), values, where=work.condition)), "new")
    if not change_data:
        return
    before = work.where(work.read(touched))
    work.write(align(before, work.target, work.checks), "change", change_type="update_preimage")
    if apart:
        work.write_again(new, "update_postimage")
    else:
        work.write(work.aligned(updated(work, before, values)), "change", change_type="update_postimage")


def updated(work: RewriteAttempt, rows: DataFrame, values: Sequence[Assignment], where: Column | None = None) -> DataFrame:
    """Return rows with new values, computed from the old ones; generated columns are computed from the new ones.

    :param where: change only rows for which it is true.
    """
    assigned = assignment_tree(values)
    given = rows.select(*(spark_value(v.expression).alias(str(i)) for i, v in enumerate(values))).schema.jsonValue()["fields"]
    types = {v.expression: field["type"] for v, field in zip(values, given, strict=True)}
    changes = rows.withColumn(_CHANGED, sf.lit(True) if where is None else where)  # once, from the old values

    def stored(expression: str, data_type: Type, path: str) -> Column:
        return _stored(work, expression, types[expression], data_type, path)

    columns = []
    for field in work.stored["fields"]:
        column = sf.col(spark_name(field["name"]))
        if (change := assigned.get(field["name"])) is not None:
            new = stored(change, field["type"], field["name"]) if isinstance(change, str) else None
            new = _struct(column, field["type"], change, field["name"], stored) if new is None else new
            column = sf.when(sf.col(_CHANGED), new).otherwise(column)
        columns.append(column.alias(field["name"]))
    changed = changes.select(*columns, sf.col(_CHANGED))
    explicit = {v.path[0].lower() for v in values}
    generated = {name.lower(): text for name, text in work.request.rules.generated.items() if name.lower() not in explicit}
    columns = []
    for field in work.stored["fields"]:
        column = sf.col(spark_name(field["name"]))
        if (expression := generated.get(field["name"].lower())) is not None:
            column = sf.when(sf.col(_CHANGED), spark_value(expression).cast(spark_type(field["type"]))).otherwise(column)
        columns.append(column.alias(field["name"]))
    return changed.select(*columns)


def _stored(work: RewriteAttempt, expression: str, given: Type, target: Type, path: str) -> Column:

    kinds = ["atomic" if isinstance(kind, str) else kind["type"] for kind in (given, target)]
    if given != "void" and VARIANT not in (given, target) and kinds[0] != kinds[1]:
        raise work.request.error(
            SchemaMismatchException,
            f"Column {path} of table {work.request.table} has the type {type_name(target)}, the value {expression!r} the type "
            f"{type_name(given)}. Cast it.",
        )
    column = spark_value(expression)
    if given == "void" or same_type(given, target):
        return column.cast(spark_type(target))
    return converted(column, given, target, path, work.checks)


def _struct(column: Column, data_type: Type, changes: Mapping[str, Any], path: str, stored: Any) -> Column:
    """Return a struct with some fields changed. A null becomes a struct with the other fields null, as in Delta."""
    if isinstance(data_type, str):
        return column  # the plan has checked the path
    fields = []
    for field in data_type["fields"]:
        value, here = column.getField(field["name"]), f"{path}.{field['name']}"
        change = changes.get(field["name"])
        if isinstance(change, str):
            value = stored(change, field["type"], here)
        elif change is not None:
            value = _struct(value, field["type"], change, here, stored)
        fields.append(value.alias(field["name"]))
    return sf.struct(*fields)
