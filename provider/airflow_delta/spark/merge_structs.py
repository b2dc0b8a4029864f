"""Structs in a MERGE: fields that clauses set, that a source lacks, or that only the source has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from airflow_delta.contract.merge_columns import NO_FIELDS, Assigned, absent_fields
from airflow_delta.contract.payloads import Json
from airflow_delta.contract.schema import Type, fields_by_name
from airflow_delta.spark.align import converted, not_null, spark_type
from airflow_delta.spark.row_errors import RowChecks

if TYPE_CHECKING:
    from pyspark.sql import Column


def merge_struct(column: Column, given: Type, wanted: Type, old: Column, known: Type, path: str, checks: RowChecks) -> Column:
    """Return a struct of the source with the table's values in the fields that it lacks.

    :param given: type of ``column``.
    :param wanted: type to return.
    :param old: the table's value; if it and the source's are null, the result is.
    :param known: type of ``old``.
    """
    columns, news, olds = [], fields_by_name(given), fields_by_name(known)
    for field in wanted["fields"]:
        name, here = field["name"].lower(), f"{path}.{field['name']}"
        mine, theirs = news.get(name), olds.get(name)
        if mine is not None and theirs is not None and absent_fields(mine["type"], theirs["type"]):
            new, before = column.getField(mine["name"]), old.getField(theirs["name"])
            value = merge_struct(new, mine["type"], field["type"], before, theirs["type"], here, checks)
        elif mine is not None:
            value = converted(column.getField(mine["name"]), mine["type"], field["type"], here, checks)
        else:
            value = _old_field(old, theirs, field, here, checks)
        columns.append(not_null(value, field, here, checks).alias(field["name"]))
    return sf.when(column.isNotNull() | old.isNotNull(), sf.struct(*columns))


def set_fields(assigned: Assigned, wanted: Type, old: Column, known: Type, path: str, checks: RowChecks) -> Column:
    """Return a struct of the table with some fields set. A null becomes a struct with the other fields null, as in Delta.

    :param wanted: type to return.
    :param old: the table's value.
    :param known: type of ``old``; a struct without fields if the table has none.
    """
    columns, olds = [], fields_by_name(known)
    for field in wanted["fields"]:
        name, here = field["name"].lower(), f"{path}.{field['name']}"
        new, theirs = assigned.get(name), olds.get(name)
        if isinstance(new, dict):
            before, kind = (old, NO_FIELDS) if theirs is None else (old.getField(theirs["name"]), theirs["type"])
            value = set_fields(new, field["type"], before, kind, here, checks)
        elif new is not None:
            value = stored(new, field, here, checks)
        else:
            value = _old_field(old, theirs, field, here, checks)
        columns.append(not_null(value, field, here, checks).alias(field["name"]))
    return sf.struct(*columns)


def stored(value: tuple[Column, Type], field: Json, path: str, checks: RowChecks) -> Column:
    """Return a value in the type of the field that gets it."""
    column, given = value
    return column.cast(spark_type(field["type"])) if given == "void" else converted(column, given, field["type"], path, checks)


def _old_field(old: Column, theirs: Json | None, field: Json, path: str, checks: RowChecks) -> Column:
    if theirs is None:
        return sf.lit(None).cast(spark_type(field["type"]))
    return converted(old.getField(theirs["name"]), theirs["type"], field["type"], path, checks)
