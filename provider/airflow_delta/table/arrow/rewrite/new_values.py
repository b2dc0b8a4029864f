"""Values that rows of a table get, computed by the worker: in the type of their column, structs field by field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_delta.exceptions import DeltaAnalysisException, SchemaMismatchException
from airflow_delta.log.schema.types import DataType, StructType, arrow_type, as_nullable
from airflow_delta.table.arrow.rewrite.conversions import Conversions, misfit
from airflow_delta.table.arrow.row_checks import needs_spark
from airflow_delta.table.expressions.problems import NotDecided
from airflow_delta.table.expressions.row_expression import RowExpression, row_expression

if TYPE_CHECKING:
    from airflow_delta.contract.request import StageRequest
    from airflow_delta.table.expressions.row_expression import Resolve

Values = Callable[[pa.RecordBatch], pa.Array]
"""Returns the values of a column for rows."""


def decided(text: str, resolve: Resolve, request: StageRequest, why: str) -> RowExpression:
    """Return an expression that the worker evaluates exactly as Spark does.

    :param why: what of the operation needs it, for the message.
    :raises DeltaUnsupportedOperationException: if only Spark can evaluate it.
    """
    try:
        return row_expression(text, resolve)
    except NotDecided as error:
        raise needs_spark(request, f"{why}, which is not evaluated here ({error})") from error


def stored_values(text: str, path: str, target: DataType, resolve: Resolve, request: StageRequest, why: str) -> Values:
    """Return the values of an expression in the type of the column or field that gets them.

    :param path: of the column, for messages.
    :raises SchemaMismatchException: if values of the expression's type cannot be stored there.
    :raises DeltaUnsupportedOperationException: if only Spark can evaluate it.
    """
    given = decided(text, resolve, request, why)
    if given.data_type.name == "void":
        empty = arrow_type(as_nullable(target))
        return lambda rows: pa.nulls(rows.num_rows, empty)
    if arrow_type(as_nullable(given.data_type)) == arrow_type(as_nullable(target)):
        return given.values
    kinds = [_kind(each) for each in (given.data_type, target)]
    if kinds[0] != kinds[1]:
        raise request.error(
            SchemaMismatchException,
            f"Column {path} of table {request.table} has the type {target}, the value {text!r} the type {given.data_type}. Cast "
            "it.",
        )
    if kinds[0] != "atomic":
        convert = Conversions(request, why).between(given.data_type, target, path)
        return lambda rows: convert(given.values(rows))
    cast = decided(f"CAST(({text}) AS {target})", resolve, request, why)

    def values(rows: pa.RecordBatch) -> pa.Array:
        try:
            return cast.values(rows)
        except DeltaAnalysisException as error:
            given.values(rows)  # whose own error comes first
            raise misfit(request, path, given.data_type, target) from error

    return values


def with_fields(
    changes: Mapping[str, Any],
    kind: StructType,
    old: Values | None,
    known: StructType,
    leaf: Callable[[Any, str, DataType], Values],
    path: str,
    conversions: Conversions,
) -> Values:
    """Return a struct with some fields changed. A null becomes a struct with the other fields null, as in Delta.

    :param changes: what ``leaf`` takes, or such a mapping, by name of the field in lower case.
    :param kind: type to return.
    :param old: returns the struct of the table; ``None`` if it has none.
    :param known: type of that.
    :param leaf: returns the values of a text for a field, given its path and type.
    """
    out = arrow_type(as_nullable(kind))
    parts: list[Values] = []
    for field in kind.fields:
        change, here = changes.get(field.name.lower()), f"{path}.{field.name}"
        number = next((n for n, each in enumerate(known.fields) if each.name.lower() == field.name.lower()), None)
        before = None if old is None or number is None else _field_of(old, number)
        theirs = None if before is None or number is None else known.fields[number].data_type
        if isinstance(change, Mapping) and isinstance(field.data_type, StructType):
            inner = theirs if isinstance(theirs, StructType) else StructType(())
            parts.append(with_fields(change, field.data_type, before, inner, leaf, here, conversions))
        elif change is not None:
            parts.append(leaf(change, here, field.data_type))
        elif before is None or theirs is None:
            parts.append(_nulls(arrow_type(as_nullable(field.data_type))))
        else:
            parts.append(_then(before, conversions.between(theirs, field.data_type, here)))
    return lambda rows: pa.StructArray.from_arrays([part(rows) for part in parts], fields=list(out))


def _field_of(struct: Values, number: int) -> Values:
    return lambda rows: pc.struct_field(struct(rows), [number])


def _nulls(kind: pa.DataType) -> Values:
    return lambda rows: pa.nulls(rows.num_rows, kind)


def _then(values: Values, convert: Callable[[pa.Array], pa.Array]) -> Values:
    return lambda rows: convert(values(rows))


def _kind(data_type: DataType) -> str:
    return type(data_type).__name__ if data_type.name in ("struct", "array", "map") else "atomic"
