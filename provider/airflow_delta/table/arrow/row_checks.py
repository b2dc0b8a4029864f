"""Checks of the rows of a write without Spark: constraints, lengths, NOT NULL. As on Spark, a condition that is null is violated.

What only Spark can evaluate is refused before anything is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from airflow_delta.contract.char_lengths import length_problems
from airflow_delta.contract.payloads import Json
from airflow_delta.contract.request import StageRequest
from airflow_delta.contract.schema import variant_columns
from airflow_delta.contract.table_rules import broken_rule, refused_rows
from airflow_delta.exceptions import DeltaError, DeltaUnsupportedOperationException, PredicateException
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.log.arrow.values import readable
from airflow_delta.log.expressions.predicate import Predicate
from airflow_delta.log.schema.types import ArrayType, DataType, MapType, StructField, StructType
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.table.read.row_filter import check_decidable, selected

Check = Callable[["pa.RecordBatch"], None]

_LIMITED = lazy_pattern(r"char_length\(.*\) > (\d+)", re.DOTALL)

_VALUE_LENGTH = 2000


def row_checks(request: StageRequest, target: Json, schema: StructType) -> list[Check]:
    """Return the checks of the rows of a write; each raises for a batch with a row that breaks its rule.

    :param target: schema of the rows in JSON form.
    :param schema: the same, parsed.
    :raises DeltaUnsupportedOperationException: if the table has a rule that only Spark can check; names it.
    """
    rules, partitions = request.rules, request.partition_columns
    checks: list[Check] = []
    if request.replace_where is not None:
        text = request.predicate or request.replace_where
        predicate = decided_here(request, text, schema, partitions, f"is overwritten by replace_where ({request.replace_where})")
        checks.append(_true(predicate, _outside(request, predicate)))
    for name, text in rules.checks.items():
        predicate = decided_here(request, text, schema, partitions, f"has the CHECK constraint {name} ({text})")
        checks.append(_true(predicate, _violation(request, name, text, predicate)))
    for field in target["fields"]:
        for path, expression, limit in length_problems(field):
            match = _LIMITED.fullmatch(expression)
            if match is None or path != field["name"]:
                raise needs_spark(request, f"limits the length of strings inside column {field['name']} ({path}: {limit})")
            checks.append(_short(request, path, int(match[1]), limit))
    return checks


def needs_spark(request: StageRequest, why: str, how: str = "") -> DeltaUnsupportedOperationException:
    """Return the error of a write that only Spark can do.

    :param how: a sentence on how Spark does it, after a space.
    """
    return request.error(
        DeltaUnsupportedOperationException,
        f"Stage {request.stage} cannot write without Spark: table {request.table} version {request.read_version} {why}. Use "
        f'engine="spark".{how}',
    )


def check_no_variants(request: StageRequest, how: str = "") -> None:
    """Refuse to write the rows of a table with variants.

    :param how: as for :func:`needs_spark`.
    :raises DeltaUnsupportedOperationException: if it has some.
    """
    variants = [] if request.schema_string is None else variant_columns(TableDefinition.of_rows(request.schema_string).struct)
    if variants:
        raise needs_spark(request, f"has the variant column {', '.join(variants)}", how)


def decided_here(request: StageRequest, text: str, schema: StructType, partitions: Collection[str], why: str) -> Predicate:
    """Return a predicate that is evaluated without Spark exactly as on Spark.

    :param why: what of the table or the write needs it, for the message.
    :raises DeltaUnsupportedOperationException: if only Spark can evaluate it.
    """
    try:
        predicate = Predicate.parse(text, schema, tuple(partitions))
        check_decidable(predicate, request.table, request.read_version)
    except PredicateException as error:
        raise needs_spark(request, f"{why}, which is not evaluated here ({error.message})") from error
    return predicate


def _true(predicate: Predicate, error: Callable[[pa.RecordBatch], DeltaError]) -> Check:
    def check(batch: pa.RecordBatch) -> None:
        wrong = pc.indices_nonzero(pc.invert(selected(predicate, batch)))
        if len(wrong):
            raise error(batch.slice(wrong[0].as_py(), 1))

    return check


def _outside(request: StageRequest, predicate: Predicate) -> Callable[[pa.RecordBatch], DeltaError]:
    return _broken(request, *broken_rule("replace_where", str(request.replace_where)), predicate)


def _violation(request: StageRequest, name: str, text: str, predicate: Predicate) -> Callable[[pa.RecordBatch], DeltaError]:
    return _broken(request, *broken_rule("check", name, text), predicate)


def _broken(
    request: StageRequest, kind: type[DeltaError], what: str, predicate: Predicate
) -> Callable[[pa.RecordBatch], DeltaError]:
    """Return a function that makes the error of a row, with its values of the columns of a predicate."""
    columns: Sequence[str] = list(dict.fromkeys(column.path[0] for column in predicate.columns))

    def error(row: pa.RecordBatch) -> DeltaError:
        values = {column: readable(row.column(column))[0] for column in columns}
        return kind(
            f"{what}: {str(values)[:_VALUE_LENGTH]}{refused_rows(request.table, request.read_version)}",
            table=request.table,
            version=request.read_version,
        )

    return error


def _short(request: StageRequest, name: str, most: int, limit: str) -> Check:
    def check(batch: pa.RecordBatch) -> None:
        longest = pc.max(pc.utf8_length(batch.column(name))).as_py()
        if longest is not None and longest > most:
            error, what = broken_rule("length", name, limit)
            tail = refused_rows(request.table, request.read_version)
            raise error(f"{what}{tail}", table=request.table, version=request.read_version)

    return check


def check_not_null(field: StructField, values: pa.Array, *, table: str, version: int, path: str = "") -> None:
    """Refuse nulls in NOT NULL columns, at any depth.

    :raises InvariantViolationException: if there is one.
    """
    here = path or field.name
    if not field.nullable and values.null_count:
        error, what = broken_rule("not_null", here)
        raise error(f"{what}{refused_rows(table, version)}", table=table, version=version)
    if not has_not_null(field.data_type):
        return
    match field.data_type:
        case StructType(fields):
            present = values.filter(values.is_valid()) if values.null_count else values
            for number, inner in enumerate(fields):
                check_not_null(inner, present.field(number), table=table, version=version, path=f"{here}.{inner.name}")
        case ArrayType(element):
            inner = StructField("element", element)
            check_not_null(inner, pc.list_flatten(values), table=table, version=version, path=f"{here}[element]")
        case MapType(key, value):
            for name, part, data_type in (("key", values.keys, key), ("value", values.items, value)):
                inner = StructField(name, data_type)
                check_not_null(inner, part, table=table, version=version, path=f"{here}[{name}]")


def has_not_null(data_type: DataType) -> bool:
    """Return whether a type has fields that may not be null."""
    match data_type:
        case StructType(fields):
            return any(not field.nullable or has_not_null(field.data_type) for field in fields)
        case ArrayType(element):
            return has_not_null(element)
        case MapType(key, value):
            return has_not_null(key) or has_not_null(value)
    return False
