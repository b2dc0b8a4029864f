"""Typed parts of an expression, and on which rows each is computed.

Spark evaluates operands from left to right and stops at a null, and only the branches that it takes. A part that may fail is
computed on just these rows; one that cannot, on all rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.arrow.arrays import array, repeated, scalar
from airflow_delta.log.arrow.values import to_pylist
from airflow_delta.log.schema.types import DataType, arrow_type
from airflow_delta.table.expressions.problems import NotDecided, RowError, RowNotDecided

MAX_DEPTH = 100
"""Parts within parts; each is a few calls of Python."""


class PartRows:
    """PartRows to compute an expression on: columns by name."""

    def __init__(self, column: Callable[[str], pa.Array], length: int) -> None:
        self._column = column
        self._known: dict[str, pa.Array] = {}
        self.length = length

    def column(self, name: str) -> pa.Array:
        """Return the values of a column."""
        if name not in self._known:
            self._known[name] = self._column(name)
        return self._known[name]

    def where(self, mask: pa.BooleanArray, count: int) -> PartRows:
        """Return the rows where a mask is true, which are so many."""
        return PartRows(lambda name: self.column(name).filter(mask), count)


Compute = Callable[[PartRows], "pa.Array"]


@dataclass(frozen=True, slots=True, eq=False)
class TypedPart:
    """A part of an expression.

    :param compute: gives a value of :attr:`kind` for each row.
    :param columns: that it reads; one without any is constant.
    :param fails: whether some rows may be without a value: Spark raises an error, or has a value that is not known here.
    :param is_literal: whether it is written as a literal, from which Spark takes the digits of a decimal.
    :param depth: parts within parts.
    """

    data_type: DataType
    compute: Compute
    columns: frozenset[str] = frozenset()
    fails: bool = False
    is_literal: bool = False
    depth: int = 1

    @property
    def kind(self) -> pa.DataType:
        """Return the type of its values in Arrow."""
        return arrow_type(self.data_type)

    @property
    def constant(self) -> Any:
        """Return the value in Python of a part that is constant."""
        return to_pylist(self.compute(one_row()))[0]


def one_row() -> PartRows:
    """Return a row without columns, for parts that read none."""
    return PartRows(_no_column, 1)


def _no_column(name: str) -> pa.Array:
    raise AssertionError(f"column {name} is not constant")


def literal(value: Any, data_type: DataType, *, is_literal: bool = True) -> TypedPart:
    """Return the part that is a value of Python."""
    kind = arrow_type(data_type)
    if value is None:
        return TypedPart(data_type, lambda rows: pa.nulls(rows.length, kind), is_literal=is_literal)
    held = array([value], kind)[0]
    return TypedPart(data_type, lambda rows: pa.repeat(held, rows.length), is_literal=is_literal)


def made(data_type: DataType, compute: Compute, operands: Sequence[TypedPart], *, fails: bool = False) -> TypedPart:
    """Return a part of others; if all are constant, it is computed at once.

    :raises NotDecided: if it is nested too deeply; if a constant part fails, which Spark may find out without any row.
    """
    columns = frozenset().union(*(part.columns for part in operands))
    depth = 1 + max((part.depth for part in operands), default=0)
    if depth > MAX_DEPTH:
        raise NotDecided("it is nested too deeply")
    fails = fails or any(part.fails for part in operands)
    if columns:
        return TypedPart(data_type, compute, columns, fails, depth=depth)
    try:
        held = compute(one_row())[0]
    except (RowError, RowNotDecided) as error:
        raise NotDecided(f"a constant part of it has no value here: {error}") from error
    return TypedPart(data_type, lambda rows: pa.repeat(held, rows.length), depth=1)


def on_rows(part: TypedPart, rows: PartRows, mask: pa.BooleanArray) -> pa.Array:
    """Return the values of a part where a mask is true; others are null, or its values if it cannot fail.

    :param mask: without nulls.
    """
    if not part.fails:
        return part.compute(rows)
    count = pc.sum(mask).as_py() or 0
    if count == rows.length:
        return part.compute(rows)
    if not count:
        return pa.nulls(rows.length, part.kind)
    return scattered(part.compute(rows.where(mask, count)), mask)


def scattered(values: pa.Array, mask: pa.BooleanArray) -> pa.Array:
    """Return values at the places where a mask is true, in order; nulls elsewhere."""
    places = pc.subtract(pc.cumulative_sum(mask.cast(pa.int64())), scalar(1))
    return values.take(pc.if_else(mask, places, scalar(None, pa.int64())))


def strict(
    data_type: DataType,
    function: Callable[..., pa.Array],
    *operands: TypedPart,
    fails: bool = False,
    present_only: bool = False,
    order: Sequence[int] | None = None,
) -> TypedPart:
    """Return a part that is null if one of its operands is, of which those after a null are not evaluated.

    :param function: from arrays to an array.
    :param fails: whether it may fail itself.
    :param present_only: the function gets no nulls; else it must return null for them.
    :param order: in which Spark evaluates the operands, if not from left to right.
    """
    if any(not part.columns and part.constant is None for part in operands):
        return literal(None, data_type, is_literal=False)  # Spark sees so without a row (NullPropagation)
    kind = arrow_type(data_type)
    order = range(len(operands)) if order is None else order

    def compute(rows: PartRows) -> pa.Array:
        values: dict[int, pa.Array] = {}
        present: pa.BooleanArray | None = None
        for number in order:
            part = operands[number]
            found = part.compute(rows) if present is None else on_rows(part, rows, present)
            values[number] = found
            if found.null_count:
                present = found.is_valid() if present is None else pc.and_(present, found.is_valid())
        arrays = [values[number] for number in range(len(operands))]
        if present is None or not present_only:
            return function(*arrays)
        if not pc.any(present).as_py():
            return pa.nulls(rows.length, kind)
        return scattered(function(*(found.filter(present) for found in arrays)), present)

    return made(data_type, compute, operands, fails=fails)


def by_row(data_type: DataType, function: Callable[..., Any], *operands: TypedPart, fails: bool = False) -> TypedPart:
    """Return a part that a function computes from the values in Python of its operands, none of which is null."""
    kind = arrow_type(data_type)

    def computed(*arrays: pa.Array) -> pa.Array:
        return array([function(*row) for row in zip(*map(to_pylist, arrays), strict=True)], kind)

    return strict(data_type, computed, *operands, fails=fails, present_only=True)


def by_value(function: Callable[[Any], Any], values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return what a function makes of each distinct value of an array, which has no floating-point numbers."""
    encoded = values.dictionary_encode()
    found = [None if value is None else function(value) for value in to_pylist(encoded.dictionary)]
    return array(found, kind).take(encoded.indices)


def holds_everywhere(values: pa.BooleanArray) -> bool:
    """Return whether a condition is true wherever it is not null."""
    return pc.all(values).as_py() is not False


def true_at(values: pa.BooleanArray) -> pa.BooleanArray:
    """Return where a condition is true, false where it is null."""
    return pc.fill_null(values, scalar(False))


def everywhere(value: bool, length: int) -> pa.BooleanArray:
    """Return a condition of one value."""
    return repeated(value, length)
