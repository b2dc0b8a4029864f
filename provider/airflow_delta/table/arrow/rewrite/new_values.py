"""Values that rows of a table get, computed by the worker: in the type of their column, structs field by field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_delta.contract.schema import same_type
from airflow_delta.contract.table_rules import refused_rows
from airflow_delta.exceptions import DeltaAnalysisException, SchemaMismatchException
from airflow_delta.log.schema.types import DataType, StructType, arrow_type, as_nullable, type_to_json
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
    if same_type(type_to_json(given.data_type), type_to_json(target)):  # fields of a mapped table also have numbers
        return given.values
    kinds = [_kind(each) for each in (given.data_type, target)]
    if kinds[0] != kinds[1]:
        raise request.error(
            SchemaMismatchException,
            f"Column {path} of table {request.table} has the type {target}, the value {text!r} the type {given.data_type}. Cast "
            "it.",
        )
    if kinds[0] != "atomic":
        raise needs_spark(request, f"{why}, of type {given.data_type}, which only Spark casts to {target}")
    cast = decided(f"CAST(({text}) AS {target})", resolve, request, why)

    def values(rows: pa.RecordBatch) -> pa.Array:
        try:
            return cast.values(rows)
        except DeltaAnalysisException as error:
            given.values(rows)  # whose own error comes first
            raise request.error(
                SchemaMismatchException,
                f"Column {path} holds a value of {given.data_type} that does not fit into {target}"
                f"{refused_rows(request.table, request.read_version)}",
            ) from error

    return values


def with_fields(
    changes: Mapping[str, Any], kind: StructType, old: Values, leaf: Callable[[Any, str, DataType], Values], path: str
) -> Values:
    """Return a struct with some fields changed. A null becomes a struct with the other fields null, as in Delta.

    :param changes: the text of an expression, or such a mapping, by name of the field.
    :param old: returns the struct.
    :param leaf: returns the values of a text for a field, given its path and type.
    """
    out = arrow_type(as_nullable(kind))
    parts: list[Callable[[pa.RecordBatch], pa.Array]] = []
    for number, field in enumerate(kind.fields):
        change, here = changes.get(field.name), f"{path}.{field.name}"

        def before(rows: pa.RecordBatch, number: int = number) -> pa.Array:
            return pc.struct_field(old(rows), [number])

        if change is None:
            parts.append(before)
        elif isinstance(change, str) or not isinstance(field.data_type, StructType):
            parts.append(leaf(change, here, field.data_type))
        else:
            parts.append(with_fields(change, field.data_type, before, leaf, here))
    return lambda rows: pa.StructArray.from_arrays([part(rows) for part in parts], fields=list(out))


def _kind(data_type: DataType) -> str:
    return type(data_type).__name__ if data_type.name in ("struct", "array", "map") else "atomic"
