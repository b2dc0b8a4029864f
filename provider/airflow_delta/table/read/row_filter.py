"""Which rows of a record batch a predicate selects: all of them and no others.

Under SQL's three-valued logic, with the meaning of :attr:`~airflow_delta.log.expressions.predicate.Predicate.text` in Spark (in
ANSI mode). What only Spark can evaluate is refused before anything is read. As in Spark, an operand of ``AND`` or ``OR`` that
may fail is evaluated only for rows that those before it do not decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_delta.exceptions import PredicateException
from airflow_delta.log.arrow.arrays import array, repeated, scalar
from airflow_delta.log.arrow.values import readable
from airflow_delta.log.expressions import ast, evaluation
from airflow_delta.log.expressions.arrow_rows import comparisons
from airflow_delta.log.schema.types import BOOLEAN, FLOATING, DataType
from airflow_delta.table.expressions.parts import scattered
from airflow_delta.table.expressions.problems import NotDecided
from airflow_delta.table.expressions.row_expression import RowExpression, row_expression

if TYPE_CHECKING:
    from airflow_delta.log.expressions.predicate import Predicate

_DIRECT = frozenset({"byte", "short", "integer", "long", "string", "date", "boolean", "timestamp", "timestamp_ntz", "binary"})


def check_decidable(predicate: Predicate, table: str, version: int) -> None:
    """Refuse a predicate that is not evaluated here exactly as Spark does.

    :raises PredicateException: names the first part that is not.
    """
    for part in _leaves(predicate.expression):
        if not isinstance(part, ast.Opaque):
            continue
        try:
            _evaluator(part)
        except NotDecided as error:
            raise PredicateException(
                f"The condition {str(part)!r} on table {table} version {version} is one that only Spark can evaluate: {error}. "
                "Without Spark, use operators and functions of docs/operations/without-spark-expressions.md, and select among "
                "the rows afterwards.",
                table=table,
                version=version,
            ) from error


def _leaves(expression: ast.Expression) -> list[ast.Expression]:
    match expression:
        case ast.And(parts) | ast.Or(parts):
            return [leaf for part in parts for leaf in _leaves(part)]
        case ast.Not(part):
            return _leaves(part)
    return [expression]


def selected(predicate: Predicate, batch: pa.RecordBatch) -> pa.BooleanArray:
    """Return where a predicate is true.

    :param batch: has the columns of the predicate, under the table's names and in its types.
    """
    return pc.fill_null(_Rows(batch).truth(predicate.expression), scalar(False))


class _Rows:
    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self._known: dict[ast.ColumnReference, pa.Array] = {}

    def truth(self, expression: ast.Expression) -> pa.BooleanArray:
        """Return where an expression is true and where it is unknown."""
        match expression:
            case ast.And(parts):
                return self._joined(parts, pc.and_kleene, decided_by=False)
            case ast.Or(parts):
                return self._joined(parts, pc.or_kleene, decided_by=True)
            case ast.Not(part):
                return pc.invert(self.truth(part))
            case ast.Opaque():
                return _evaluator(expression).values(self._batch)
            case ast.Constant(value):
                length = self._batch.num_rows
                return pa.nulls(length, pa.bool_()) if value is None else repeated(value, length)
            case ast.IsNull(column):
                return pc.is_null(self._values(column))
            case ast.Compare(_, column) | ast.In(column) if column.char_length is not None:
                return self._by_value(expression, column)
            case ast.Compare(operator, column, literal) if operator != "<=>" and literal.value is not None:
                compared = self._compared(operator, column, literal.value)
                return self._by_value(expression, column) if compared is None else compared
            case ast.In(column, literals) if column.data_type.name in _DIRECT and all(i.value is not None for i in literals):
                among = self._among(column, [literal.value for literal in literals])
                return self._by_value(expression, column) if among is None else among
        return self._by_value(expression, expression.column)

    def _joined(self, parts: Sequence[ast.Expression], kernel: Callable[..., Any], *, decided_by: bool) -> pa.BooleanArray:
        if ast.Constant(decided_by) in parts:  # as in Spark, others are not evaluated
            return repeated(decided_by, self._batch.num_rows)
        result = self.truth(parts[0])
        for part in parts[1:]:
            result = kernel(result, self._where(pc.fill_null(pc.not_equal(result, scalar(decided_by)), scalar(True)), part))
        return result

    def _where(self, mask: pa.BooleanArray, expression: ast.Expression) -> pa.BooleanArray:
        """Return the truth of an expression, for rows of a mask at least."""
        names = list(dict.fromkeys(column.path[0] for column in ast.columns(expression)))
        if not names or not any(ast.opaque(expression)) or pc.all(mask).as_py() is not False:
            return self.truth(expression)
        return scattered(_Rows(self._batch.select(names).filter(mask)).truth(expression), mask)

    def _values(self, column: ast.ColumnReference) -> pa.Array:
        if column not in self._known:
            values = self._batch.column(column.path[0])
            for name in column.path[1:]:
                values = pc.struct_field(values, [values.type.get_field_index(name)])
            self._known[column] = values
        return self._known[column]

    def _compared(self, operator: str, column: ast.ColumnReference, value: Any) -> pa.BooleanArray | None:
        """Return the comparison of a column with a literal; ``None`` if Arrow does not compare them as Spark does."""
        values = self._values(column)
        if column.data_type.name in FLOATING:
            if math.isnan(value):
                return None
            values = values.cast(pa.float64())
        elif column.data_type.name not in _DIRECT:
            return None
        wanted = _literals([value], values.type)
        if wanted is None:
            return None
        result = comparisons()[operator](values, wanted[0])
        if operator in (">", ">=") and column.data_type.name in FLOATING:
            return pc.or_(result, pc.is_nan(values))  # to Spark, the greatest of all numbers
        return result

    def _among(self, column: ast.ColumnReference, wanted: Sequence[Any]) -> pa.BooleanArray | None:
        values = self._values(column)
        found = _literals(wanted, values.type)
        if found is None:
            return None
        return pc.if_else(pc.is_valid(values), pc.is_in(values, value_set=found), _unknown())

    def _by_value(self, expression: ast.Expression, column: ast.ColumnReference) -> pa.BooleanArray:
        """Evaluate a condition on one column once for each distinct value.

        Only comparisons that ask whether values are the same come here with dates and times. Those that Python cannot hold are
        texts then, which no literal equals.
        """
        evaluate, path = evaluation.compile_expression(expression), column.physical_path
        encoded = self._values(column).dictionary_encode()
        truths = [evaluate({path: value}) for value in readable(encoded.dictionary)]
        result = array(truths, pa.bool_()).take(encoded.indices)
        of_null = evaluate({path: None})
        return result if of_null is None else pc.if_else(pc.is_valid(encoded.indices), result, scalar(of_null))


@lru_cache(maxsize=64)
def _evaluator(part: ast.Opaque) -> RowExpression:
    """Return the expression of a condition that is not a comparison of a column with literals.

    :raises NotDecided: if only Spark can evaluate it.
    """
    if part.own_order:
        raise NotDecided("one of its columns has a collation, or is a char, which Spark compares in its own way")
    uses = {tuple(name.lower() for name in column.path): column for column in part.uses}

    def resolve(names: tuple[str, ...]) -> tuple[str, tuple[str, ...], DataType]:
        column = uses.get(tuple(name.lower() for name in names))
        if column is None:
            raise NotDecided(f"{'.'.join(names)} is not a column, or a field of one")
        return column.path[0], column.path[1:], column.data_type

    found = row_expression(part.text, resolve)
    if found.data_type != BOOLEAN:
        raise NotDecided(f"its value is a {found.data_type}, not a boolean")
    return found


def _literals(wanted: Sequence[Any], kind: pa.DataType) -> pa.Array | None:
    """Return literals in a column's type; ``None`` if one does not fit exactly."""
    try:
        return array(wanted, kind)
    except (OverflowError, TypeError, ValueError):
        return None


def _unknown() -> pa.Scalar:
    return pa.nulls(1, pa.bool_())[0]
