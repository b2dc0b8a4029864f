"""Conditions and branches: three-valued logic, evaluated where Spark does."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from airflow_delta.log.arrow.arrays import scalar
from airflow_delta.log.schema.types import BOOLEAN
from airflow_delta.table.expressions.coercion import exactly, is_floating, to_common_type
from airflow_delta.table.expressions.comparisons import comparison
from airflow_delta.table.expressions.parts import PartRows, TypedPart, everywhere, literal, made, on_rows, strict, true_at
from airflow_delta.table.expressions.problems import NotDecided


def connected(connective: str, operands: Sequence[TypedPart]) -> TypedPart:
    """Return the part that joins conditions by ``and`` or ``or``; those after one that decides are not evaluated."""
    parts = [exactly(part, BOOLEAN) for part in operands]
    kernel, decided_by = (pc.and_kleene, False) if connective == "and" else (pc.or_kleene, True)
    if any(not part.columns and part.constant is decided_by for part in parts):
        return literal(decided_by, BOOLEAN, is_literal=False)  # Spark sees so without a row (BooleanSimplification)

    def compute(rows: PartRows) -> pa.BooleanArray:
        result = parts[0].compute(rows)
        for part in parts[1:]:
            open_ones = pc.fill_null(pc.not_equal(result, scalar(decided_by)), scalar(True))
            result = kernel(result, on_rows(part, rows, open_ones))
        return result

    return made(BOOLEAN, compute, parts)


def negated(operand: TypedPart) -> TypedPart:
    """Return the part ``NOT operand``."""
    return strict(BOOLEAN, pc.invert, exactly(operand, BOOLEAN))


def is_null(operand: TypedPart) -> TypedPart:
    """Return the part ``operand IS NULL``."""
    return made(BOOLEAN, lambda rows: operand.compute(rows).is_null(), (operand,))


def is_present(operand: TypedPart) -> TypedPart:
    """Return the part ``operand IS NOT NULL``."""
    return made(BOOLEAN, lambda rows: operand.compute(rows).is_valid(), (operand,))


def is_unknown(operand: TypedPart) -> TypedPart:
    """Return the part ``operand IS UNKNOWN``."""
    return is_null(exactly(operand, BOOLEAN))


def is_truth(operand: TypedPart, truth: TypedPart) -> TypedPart:
    """Return the part ``operand IS TRUE`` or ``IS FALSE``."""
    return comparison("<=>", exactly(operand, BOOLEAN), truth)


def branches(conditions: Sequence[TypedPart], values: Sequence[TypedPart], otherwise: TypedPart | None) -> TypedPart:
    """Return the part ``CASE``: the value of the first condition that is true."""
    conditions = [exactly(part, BOOLEAN) for part in conditions]
    given = [*values, *([] if otherwise is None else [otherwise])]
    results = to_common_type(given)
    kind = results[0].kind

    def compute(rows: PartRows) -> pa.Array:
        remaining = everywhere(True, rows.length)
        result = pa.nulls(rows.length, kind)
        for condition, value in zip(conditions, results, strict=False):
            taken = pc.and_(remaining, true_at(on_rows(condition, rows, remaining)))
            result = _chosen(taken, on_rows(value, rows, taken), result)
            remaining = pc.and_not(remaining, taken)
        if otherwise is not None:
            result = _chosen(remaining, on_rows(results[-1], rows, remaining), result)
        return result

    return made(results[0].data_type, compute, (*conditions, *results))


def _chosen(mask: pa.BooleanArray, one: pa.Array, other: pa.Array) -> pa.Array:
    return pa.nulls(len(mask)) if pa.types.is_null(one.type) else pc.if_else(mask, one, other)


def first_present(operands: Sequence[TypedPart]) -> TypedPart:
    """Return the part ``coalesce(operands)``."""
    if not operands:
        raise NotDecided("coalesce needs a value")
    parts = to_common_type(operands)
    kind = parts[0].kind

    def compute(rows: PartRows) -> pa.Array:
        missing = everywhere(True, rows.length)
        result = pa.nulls(rows.length, kind)
        for part in parts:
            result = _chosen(missing, on_rows(part, rows, missing), result)
            missing = result.is_null()
        return result

    return made(parts[0].data_type, compute, parts)


def null_if(left: TypedPart, right: TypedPart) -> TypedPart:
    """Return the part ``nullif(left, right)``."""
    return branches([comparison("=", left, right)], [literal(None, left.data_type, is_literal=False)], left)


def is_nan(operand: TypedPart) -> TypedPart:
    """Return the part ``isnan(operand)``, which is false for null."""
    if not is_floating(operand.data_type):
        raise NotDecided(f"isnan of a {operand.data_type} is not computed here")
    return made(BOOLEAN, lambda rows: true_at(pc.is_nan(operand.compute(rows))), (operand,))


def not_nan(left: TypedPart, right: TypedPart) -> TypedPart:
    """Return the part ``nanvl(left, right)``."""
    if not is_floating(left.data_type) or right.data_type != left.data_type:
        raise NotDecided(f"nanvl of a {left.data_type} and a {right.data_type} is not computed here")

    def compute(rows: PartRows) -> pa.Array:
        values = left.compute(rows)
        mask = true_at(pc.is_nan(values))
        return pc.if_else(mask, on_rows(right, rows, mask), values)

    return made(left.data_type, compute, (left, right))
