"""Bring the columns of a DataFrame to the types and order to write, checking every row.

Columns whose values the table computes: defaults, identity columns, generated columns.

Row checks of a write: ``replaceWhere``, CHECK constraints, generated columns, lengths of strings.

They are projections, not filters: the optimiser moves filters below joins, to rows that are never written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from airflow_delta.contract import schema as schemas
from airflow_delta.contract.payloads import Json
from airflow_delta.contract.queries import with_escaped_quotes
from airflow_delta.contract.request import StageRequest
from airflow_delta.contract.schema import IdentityRule, TableRules, broken_rule, fields_by_name, refused_rows
from airflow_delta.contract.sql_types import length_problems
from airflow_delta.contract.target import partition_fields
from airflow_delta.exceptions import DeltaError, IdentityInsertException, SchemaMismatchException

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType


class RowChecks:
    """Errors that rows may raise while they are written, by the text that Spark reports."""

    def __init__(self, table: str, version: int) -> None:
        self.table = table
        self.version = version
        self._errors: dict[str, type[DeltaError]] = {}

    def violated(self, error: type[DeltaError], message: str, values: Column | None = None) -> Column:
        """Return an expression that raises ``error`` for a row.

        :param values: the row's values as text, for the message.
        """
        tail = refused_rows(self.table, self.version)
        if values is None:
            self._errors[re.escape(message + tail)] = error
            return sf.raise_error(sf.lit(message + tail))
        self._errors[f"{re.escape(message)}: .*?{re.escape(tail)}"] = error
        return sf.raise_error(sf.concat(sf.lit(f"{message}: "), values, sf.lit(tail)))

    def error(self, error: type[DeltaError], message: str) -> DeltaError:
        """Return the error of rows none of which can be written, whatever their values."""
        return error(message, table=self.table, version=self.version)

    def error_in(self, failure: BaseException) -> DeltaError | None:
        """Return the error that a row raised in a failed Spark job, ``None`` if it failed for another reason."""
        text = str(failure)
        for pattern, error in self._errors.items():
            if found := re.search(pattern, text, re.DOTALL):
                return error(found[0], table=self.table, version=self.version)
        return None


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
    cast = column.try_cast(wanted)
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
    cast = column.try_cast(wanted)
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


_BLOCK = 13  # bits: rows of one task that get consecutive values
_TASKS = 16  # bits: tasks of one write
_ROW = 33  # bits that monotonically_increasing_id() keeps for the position in a task
_MIN_LONG, _MAX_LONG = -(2**63), 2**63 - 1
_UNIQUE = "__airflow_delta_unique"


def default_values(target: Json, rules: TableRules) -> dict[str, Column]:
    """Return values for columns that the data lack, by name in lower case."""
    found, there = {}, fields_by_name(target)
    for name, expression in rules.defaults.items():
        field = there.get(name.lower())
        if field is not None:
            found[name.lower()] = spark_value(expression).cast(spark_type(field["type"]))
    return found


def with_identities(df: DataFrame, identities: Collection[IdentityRule], checks: RowChecks) -> DataFrame:
    """Return the rows with values of identity columns: unique, and whole steps from the first."""
    if not identities:
        return df
    # In its own column: the function counts its own calls.
    numbered = df.select("*", sf.monotonically_increasing_id().alias(_UNIQUE))
    return numbered.select("*", *(_counted(identity, checks).alias(identity.column) for identity in identities)).drop(_UNIQUE)


def with_generated(df: DataFrame, target: Json, rules: TableRules, absent: Collection[str]) -> DataFrame:
    """Return the rows with generated columns, and the columns in the order of ``target``.

    :param absent: columns that the data lack, in lower case.
    """
    if not absent:
        return df
    expressions = {name.lower(): text for name, text in rules.generated.items()}
    columns = []
    for field in target["fields"]:
        folded = field["name"].lower()
        if folded in absent and folded in expressions:
            columns.append(spark_value(expressions[folded]).cast(spark_type(field["type"])).alias(field["name"]))
        else:
            columns.append(sf.col(spark_name(field["name"])))
    return df.select(*columns)


def _counted(identity: IdentityRule, checks: RowChecks) -> Column:
    """Return the value of a row: tasks count independently, in interleaved blocks.

    Values are dense up to the size of a block for each task, with gaps after that and between tasks.
    """
    unique = sf.col(_UNIQUE)
    row = unique.bitwiseAND(sf.lit((1 << _ROW) - 1))
    task = sf.shiftright(unique, _ROW)
    block = sf.shiftleft(sf.shiftright(row, _BLOCK), _TASKS) + task
    index = sf.shiftleft(block, _BLOCK) + row.bitwiseAND(sf.lit((1 << _BLOCK) - 1))
    left = _MAX_LONG - identity.first if identity.step > 0 else identity.first - _MIN_LONG
    room = min(left // abs(identity.step), _MAX_LONG)
    spent = checks.violated(
        IdentityInsertException,
        f"The identity column {identity.column} has run out of 64-bit values, or more than {1 << _TASKS} Spark tasks write it. "
        "Write with fewer partitions",
    )
    if room < 0:  # the first value itself exceeds 64 bits
        return spent.cast("long")
    fits = (task < sf.lit(1 << _TASKS)) & (index <= sf.lit(room))
    value = sf.lit(identity.first) + index * sf.lit(identity.step)
    return sf.when(fits, value).otherwise(spent).cast("long")


_VALUE_LENGTH = 2000


def checked(df: DataFrame, request: StageRequest, target: Json, computed: Collection[str], checks: RowChecks) -> DataFrame:
    """Return the rows; a row that violates a rule of the table or request raises.

    :param df: all columns of ``target`` in order.
    :param computed: columns computed by this write, in lower case.
    """
    violations = [
        *_outside_predicate(request, target, checks),
        *_constraints(request, target, checks),
        *_wrong_generated(request, target, computed, checks),
        *_too_long(target, checks),
    ]
    if violations:
        df = _empty_as_null(df, request, target)
    columns = []
    for field in target["fields"]:
        column = sf.col(spark_name(field["name"]))
        if field["name"].lower() in computed:
            column = not_null(column, field, field["name"], checks)
        columns.append(column)
    if violations:
        # The first column carries the checks of the row: every written column is evaluated.
        raising = sf.when(violations[0][0], violations[0][1])
        for wrong, error in violations[1:]:
            raising = raising.when(wrong, error)
        columns[0] = raising.otherwise(columns[0])
    if not violations and not any(f["name"].lower() in computed and not f.get("nullable", True) for f in target["fields"]):
        return df
    return df.select(*(column.alias(field["name"]) for column, field in zip(columns, target["fields"], strict=True)))


def _empty_as_null(df: DataFrame, request: StageRequest, target: Json) -> DataFrame:
    """Return the rows with the partition values that the log will have: an empty string is null (Delta's ``Empty2Null``)."""
    names = [field["name"] for field in partition_fields(target, request) if field["type"] in ("string", "binary")]
    if not names:  # Spark Connect takes no empty set of columns
        return df
    return df.withColumns({name: sf.when(sf.length(sf.col(spark_name(name))) > 0, sf.col(spark_name(name))) for name in names})


def _outside_predicate(request: StageRequest, target: Json, checks: RowChecks) -> list[tuple[Column, Column]]:
    if request.replace_where is None:
        return []

    expression = request.predicate or request.replace_where
    violated = checks.violated(*broken_rule("replace_where", request.replace_where), _values(expression, target))
    return [(_is_not_true(spark_value(expression)), violated)]


def _constraints(request: StageRequest, target: Json, checks: RowChecks) -> list[tuple[Column, Column]]:

    return [
        (
            _is_not_true(spark_value(expression)),
            checks.violated(*broken_rule("check", name, expression), _values(expression, target)),
        )
        for name, expression in request.rules.checks.items()
    ]


def _wrong_generated(
    request: StageRequest, target: Json, computed: Collection[str], checks: RowChecks
) -> list[tuple[Column, Column]]:
    found, there = [], fields_by_name(target)
    for name, expression in request.rules.generated.items():
        if name.lower() in computed or name.lower() not in there:
            continue
        violated = checks.violated(*broken_rule("generated", name, expression), _values(f"{name} {expression}", target))
        found.append((~sf.col(spark_name(name)).eqNullSafe(spark_value(expression)), violated))
    return found


def _too_long(target: Json, checks: RowChecks) -> list[tuple[Column, Column]]:
    found = []
    for field in target["fields"]:
        for path, wrong, limit in length_problems(field):
            violated = checks.violated(*broken_rule("length", path, limit))
            found.append((sf.coalesce(sf.expr(wrong), sf.lit(False)), violated))
    return found


def _is_not_true(expression: Column) -> Column:
    """Return whether a row violates a rule; a null does, as in Delta."""
    return ~sf.coalesce(expression, sf.lit(False))


def _values(expression: str, target: Json) -> Column:
    """Return the values of the columns of an expression, as JSON."""
    words = {word.lower() for word in re.findall(r"`[^`]+`|\w+", expression)}
    named = [f["name"] for f in target["fields"] if f["name"].lower() in words or spark_name(f["name"]).lower() in words]
    columns = [sf.col(spark_name(name)) for name in named or [f["name"] for f in target["fields"]]]
    return sf.substring(sf.to_json(sf.struct(*columns), {"ignoreNullFields": "false"}), 1, _VALUE_LENGTH)
