"""Bring the columns of a DataFrame to the types and order to write, checking every row."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from airflow_delta.contract import schema as schemas
from airflow_delta.contract.payloads import Json
from airflow_delta.contract.queries import with_escaped_quotes
from airflow_delta.contract.table_rules import broken_rule
from airflow_delta.exceptions import SchemaMismatchException
from airflow_delta.spark.older_spark import try_cast
from airflow_delta.spark.row_errors import RowChecks

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType


def spark_value(text: str) -> Column:
    """Return a column of an expression that a user or the table has written: with the value that it has here, in any Spark."""
    return sf.expr(with_escaped_quotes(text))


def spark_name(name: str) -> str:
    """Return a column name that Spark takes literally, including dots and backticks."""
    return "`" + name.replace("`", "``") + "`"


def align(
    df: DataFrame,
    target: Json,
    checks: RowChecks,
    *,
    defaults: Mapping[str, Column] | None = None,
    without: Collection[str] = (),
) -> DataFrame:
    """Return the DataFrame with exactly the columns of ``target``; missing ones are null.

    :param target: schema in JSON form, made by :func:`airflow_delta.contract.schema.written_schema` from this DataFrame's.
    :param defaults: values for missing columns, by name in lower case.
    :param without: columns to leave out, in lower case.
    """
    given = df.schema.jsonValue()
    if _is_aligned(given, target):
        return df  # no projection for Spark to analyse and plan
    columns, there = [], schemas.fields_by_name(given)
    for field in target["fields"]:
        folded = field["name"].lower()
        if folded in without:
            continue
        source = there.get(folded)
        if source is None and defaults is not None and folded in defaults:
            column = not_null(defaults[folded], field, field["name"], checks)
        elif source is None:
            column = sf.lit(None).cast(spark_type(field["type"]))
        else:
            column = converted(sf.col(spark_name(source["name"])), source["type"], field["type"], field["name"], checks)
            column = not_null(column, field, field["name"], checks)
        columns.append(column.alias(field["name"]))
    return df.select(*columns)


def _is_aligned(given: Json, target: Json) -> bool:
    """Return whether the columns are as in the target, and no row needs a check."""
    return len(given["fields"]) == len(target["fields"]) and all(
        have["name"] == want["name"]
        and want.get("nullable", True)
        and schemas.same_type(have["type"], want["type"])
        and not _has_not_null(want["type"])
        for have, want in zip(given["fields"], target["fields"], strict=True)
    )


def spark_type(data_type: schemas.Type) -> DataType:
    """Return PySpark's form of a type in JSON form."""
    struct = StructType.fromJson(
        {"type": "struct", "fields": [{"name": "x", "type": data_type, "nullable": True, "metadata": {}}]}
    )
    return struct.fields[0].dataType


def not_null(column: Column, field: Json, path: str, checks: RowChecks) -> Column:
    """Return the column; if the field is NOT NULL, nulls raise."""
    if field.get("nullable", True):
        return column
    violated = checks.violated(*broken_rule("not_null", path))
    # Even if the source says it is not nullable: sources do not always keep that promise.
    return sf.when(column.isNull(), violated).otherwise(column)


def converted(column: Column, given: schemas.Type, target: schemas.Type, path: str, checks: RowChecks) -> Column:
    """Return a column in the type to store; values that do not fit raise.

    :param path: path of the column, for the message.
    """
    if schemas.same_type(given, target) and not _has_not_null(target):
        return column
    if isinstance(given, str) or isinstance(target, str):
        return _cast(column, given, target, path, checks)
    match target["type"]:
        case "struct":
            return sf.when(column.isNotNull(), sf.struct(*_struct_fields(column, given, target, path, checks)))
        case "array":
            return sf.transform(column, _each(given["elementType"], target["elementType"], f"{path}[element]", checks))
        case "map":
            key = _each(given["keyType"], target["keyType"], f"{path}[key]", checks)
            value = _each(given["valueType"], target["valueType"], f"{path}[value]", checks)
            entries = sf.transform(sf.map_entries(column), lambda e: sf.struct(key(e["key"]), value(e["value"])))
            return sf.map_from_entries(entries)
    return column


def _each(given: schemas.Type, target: schemas.Type, path: str, checks: RowChecks) -> Callable[[Column], Column]:
    return lambda element: converted(element, given, target, path, checks)


def _struct_fields(column: Column, given: Json, target: Json, path: str, checks: RowChecks) -> list[Column]:
    columns, there = [], schemas.fields_by_name(given)
    for field in target["fields"]:
        source = there.get(field["name"].lower())
        here = f"{path}.{field['name']}"
        if source is None:
            value = sf.lit(None).cast(spark_type(field["type"]))
            value = not_null(value, field, here, checks)
        else:
            value = converted(column.getField(source["name"]), source["type"], field["type"], here, checks)
            value = not_null(value, field, here, checks)
        columns.append(value.alias(field["name"]))
    return columns


def _cast(column: Column, given: schemas.Type, target: schemas.Type, path: str, checks: RowChecks) -> Column:
    if schemas.VARIANT in (given, target):
        return _cast_variant(column, given, target, path, checks)
    how = schemas.store_assignment(given, target) if isinstance(given, str) and isinstance(target, str) else schemas.WIDEN
    wanted = spark_type(target)
    if how == schemas.WIDEN:
        return column.cast(wanted)
    # try_cast does not depend on the session's ANSI setting: null if the value does not fit.
    cast = try_cast(column, wanted)
    error = "CAST_INVALID_INPUT" if given == "string" else "DELTA_CAST_OVERFLOW_IN_TABLE_WRITE"
    overflow = checks.violated(
        SchemaMismatchException,
        f"Column {path} holds a value of {schemas.type_name(given)} that does not fit into {schemas.type_name(target)} ({error})",
    )
    return sf.when(column.isNotNull() & cast.isNull(), overflow).otherwise(cast)


def _cast_variant(column: Column, given: schemas.Type, target: schemas.Type, path: str, checks: RowChecks) -> Column:
    """Return any value as a variant, or the value in a variant, as Spark casts it: text is text, also if it looks like JSON."""
    if given != "void" and not schemas.casts_variants(given, target):
        raise checks.error(
            SchemaMismatchException,
            f"Column {path} of table {checks.table} has the type {schemas.type_name(target)}, the value the type "
            f"{schemas.type_name(given)}, which Spark does not cast to it. {schemas.MAKE_VARIANTS}.",
        )
    wanted = spark_type(target)
    if target == schemas.VARIANT or not isinstance(target, str):
        return column.cast(wanted)  # a variant without the parts of the type fails, whatever the session's ANSI setting
    cast = try_cast(column, wanted)
    misfit = checks.violated(
        SchemaMismatchException,
        f"Column {path} holds a variant that does not fit into {schemas.type_name(target)} (INVALID_VARIANT_CAST)",
    )
    return sf.when(column.isNotNull() & ~sf.is_variant_null(column) & cast.isNull(), misfit).otherwise(cast)


def _has_not_null(data_type: schemas.Type) -> bool:
    if isinstance(data_type, str):
        return False
    match data_type["type"]:
        case "struct":
            return any(not f.get("nullable", True) or _has_not_null(f["type"]) for f in data_type["fields"])
        case "array":
            return _has_not_null(data_type["elementType"])
        case "map":
            return _has_not_null(data_type["keyType"]) or _has_not_null(data_type["valueType"])
    return False
