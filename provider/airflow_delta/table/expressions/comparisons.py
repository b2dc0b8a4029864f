"""Comparisons as in Spark: NaN equals itself and is greater than other numbers, strings compare by their bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from airflow_delta.log.arrow.arrays import scalar
from airflow_delta.log.expressions.literals import NULL
from airflow_delta.log.schema.types import BOOLEAN, DataType, arrow_type, as_nullable
from airflow_delta.table.expressions.coercion import is_floating, is_number, to_common_type, to_compared_types
from airflow_delta.table.expressions.equality import are_equal, is_compared_inside
from airflow_delta.table.expressions.parts import PartRows, TypedPart, everywhere, made, on_rows, one_row, strict, true_at
from airflow_delta.table.expressions.problems import NotDecided

Compare = Callable[["pa.Array", "pa.Array"], "pa.BooleanArray"]

OPERATORS = ("=", "<>", "<", "<=", ">", ">=", "<=>")
_COMPARED = frozenset({"string", "boolean", "binary", "date", "timestamp", "timestamp_ntz"})


def comparison(operator: str, left: TypedPart, right: TypedPart) -> TypedPart:
    """Return the part ``left operator right``.

    :raises NotDecided: if their values are not compared here.
    """
    if NULL in (left.data_type, right.data_type):
        left, right = to_common_type((left, right))
    if _are_alike_inside(left.data_type, right.data_type):
        return _comparison_inside(operator, left, right)
    left, right = to_compared_types(left, right)
    compare = compare_of(operator if operator != "<=>" else "=", left.data_type)
    if operator != "<=>":
        return strict(BOOLEAN, compare, left, right)

    def same(rows: PartRows) -> pa.BooleanArray:
        one, other = left.compute(rows), right.compute(rows)
        both_null = pc.and_(pc.is_null(one), pc.is_null(other))
        return pc.or_(both_null, true_at(compare(one, other)))

    return made(BOOLEAN, same, (left, right))


def _are_alike_inside(one: DataType, other: DataType) -> bool:
    """Return whether values of two types are the same structs or arrays, with what Spark compares in them."""
    return is_compared_inside(one) and arrow_type(as_nullable(one)) == arrow_type(as_nullable(other))


def _comparison_inside(operator: str, left: TypedPart, right: TypedPart) -> TypedPart:
    """Return whether structs or arrays are equal: what is null in them equals null."""
    kind = arrow_type(as_nullable(left.data_type))

    def equal(one: pa.Array, other: pa.Array) -> pa.BooleanArray:
        return are_equal(one.cast(kind), other.cast(kind))

    if operator == "<=>":
        return made(BOOLEAN, lambda rows: equal(left.compute(rows), right.compute(rows)), (left, right))
    if operator not in ("=", "<>"):
        raise NotDecided(f"the order of values of type {left.data_type} is not decided here")

    def compared(one: pa.Array, other: pa.Array) -> pa.BooleanArray:
        found = equal(one, other) if operator == "=" else pc.invert(equal(one, other))
        return pc.if_else(pc.and_(one.is_valid(), other.is_valid()), found, scalar(None, pa.bool_()))

    return strict(BOOLEAN, compared, left, right)


def compare_of(operator: str, data_type: DataType) -> Compare:
    """Return the function that compares arrays of a type.

    :raises NotDecided: if there is none.
    """
    if not is_number(data_type) and data_type.name not in (*_COMPARED, "void"):
        raise NotDecided(f"values of type {data_type} are not compared here")
    if data_type.name == "void":
        return lambda one, _other: pa.nulls(len(one), pa.bool_())
    return _FLOATING[operator] if is_floating(data_type) else _PLAIN[operator]


def _equal(one: pa.Array, other: pa.Array) -> pa.BooleanArray:
    return pc.or_(pc.equal(one, other), pc.and_(pc.is_nan(one), pc.is_nan(other)))


def _less(one: pa.Array, other: pa.Array) -> pa.BooleanArray:
    return pc.or_(pc.less(one, other), pc.and_(pc.is_nan(other), pc.invert(pc.is_nan(one))))


_PLAIN: dict[str, Compare] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}

_FLOATING: dict[str, Compare] = {
    "=": _equal,
    "<>": lambda one, other: pc.invert(_equal(one, other)),
    "<": _less,
    "<=": lambda one, other: pc.invert(_less(other, one)),
    ">": lambda one, other: _less(other, one),
    ">=": lambda one, other: pc.invert(_less(one, other)),
}


def among(value: TypedPart, listed: Sequence[TypedPart]) -> TypedPart:
    """Return the part ``value IN (listed)``: null if nothing matches and the value or one in the list is null."""
    if not listed:
        raise NotDecided("IN needs a list")
    value, *listed = to_common_type([value, *listed])
    equal = compare_of("=", value.data_type)
    constants = all(not part.columns for part in listed)

    def found(rows: PartRows) -> pa.BooleanArray:
        values = value.compute(rows)
        if constants and not is_floating(value.data_type):
            return _in_set(values, listed, rows.length)
        matched = everywhere(False, rows.length)
        unknown = values.is_null()
        asked = values.is_valid()
        for part in listed:
            compared = equal(values, on_rows(part, rows, asked))
            matched = pc.or_(matched, true_at(compared))
            unknown = pc.or_(unknown, compared.is_null())
            asked = pc.and_not(asked, matched)
        return pc.if_else(pc.or_(matched, pc.invert(unknown)), matched, scalar(None, pa.bool_()))

    return made(BOOLEAN, found, (value, *listed))


def _in_set(values: pa.Array, listed: Sequence[TypedPart], length: int) -> pa.BooleanArray:
    wanted = pa.concat_arrays([part.compute(one_row()) for part in listed])
    if pa.types.is_null(wanted.type):
        return pa.nulls(length, pa.bool_())
    matched = pc.is_in(values, value_set=wanted.drop_null())
    known = values.is_valid() if not wanted.null_count else pc.and_(values.is_valid(), matched)
    return pc.if_else(known, matched, scalar(None, pa.bool_()))


def extreme(operator: str, parts: Sequence[TypedPart]) -> TypedPart:
    """Return the greatest (``>``) or least (``<``) of values that are not null; null if all are."""
    if len(parts) < 2:
        raise NotDecided("greatest and least need two values")
    parts = to_common_type(parts)
    data_type = parts[0].data_type
    if data_type.name == "void":
        raise NotDecided("untyped nulls are not compared here")
    better = compare_of(operator, data_type)

    def found(rows: PartRows) -> pa.Array:
        best = parts[0].compute(rows)
        for part in parts[1:]:
            values = part.compute(rows)
            taken = pc.or_(pc.and_(best.is_null(), values.is_valid()), true_at(better(values, best)))
            best = pc.if_else(taken, values, best)
        return best

    return made(data_type, found, parts)
