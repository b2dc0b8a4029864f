"""Structs of a source that lack fields of the table: UPDATE SET * keeps those fields."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_delta.spark.align import RowChecks, converted, not_null, spark_type
from airflow_delta.staging.schema import Type, fields_by_name

if TYPE_CHECKING:
    from pyspark.sql import Column


def absent_fields(given: Type, known: Type) -> list[str]:
    """Return the fields of a struct, at every depth, that another struct lacks."""
    if isinstance(given, str) or isinstance(known, str) or {given["type"], known["type"]} != {"struct"}:
        return []
    found, there = [], fields_by_name(given)
    for field in known["fields"]:
        mine = there.get(field["name"].lower())
        inner = [] if mine is None else absent_fields(mine["type"], field["type"])
        found += [field["name"]] if mine is None else [f"{field['name']}.{name}" for name in inner]
    return found


def merge_struct(column: Column, given: Type, wanted: Type, old: Column, known: Type, path: str, checks: RowChecks) -> Column:
    """Return a struct of the source with the table's values in the fields that it lacks.

    :param given: type of ``column``.
    :param wanted: type to return.
    :param old: the table's value; if it and the source's are null, the result is.
    :param known: type of ``old``.
    """
    from pyspark.sql import functions as sf

    columns, news, olds = [], fields_by_name(given), fields_by_name(known)
    for field in wanted["fields"]:
        name, here = field["name"].lower(), f"{path}.{field['name']}"
        mine, theirs = news.get(name), olds.get(name)
        if mine is not None and theirs is not None and absent_fields(mine["type"], theirs["type"]):
            new, before = column.getField(mine["name"]), old.getField(theirs["name"])
            value = merge_struct(new, mine["type"], field["type"], before, theirs["type"], here, checks)
        elif mine is not None:
            value = converted(column.getField(mine["name"]), mine["type"], field["type"], here, checks)
        elif theirs is not None:
            value = converted(old.getField(theirs["name"]), theirs["type"], field["type"], here, checks)
        else:
            value = sf.lit(None).cast(spark_type(field["type"]))
        columns.append(not_null(value, field, here, checks).alias(field["name"]))
    return sf.when(column.isNotNull() | old.isNotNull(), sf.struct(*columns))
