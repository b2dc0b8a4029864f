"""Spark SQL expressions over record batches, with exactly Spark's values in ANSI mode and the time zone UTC.

What is not decided so is refused by name: an expression when it is read, or a row when it is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import pyarrow as pa

from airflow_delta.exceptions import DeltaAnalysisException, DeltaUnsupportedOperationException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.expressions.literals import NULL
from airflow_delta.log.expressions.name_resolution import has_own_order
from airflow_delta.log.expressions.refused import oversized
from airflow_delta.log.expressions.text import SqlSyntaxError, tree_of
from airflow_delta.log.schema.types import BOOLEAN, STRING, DataType, StructField, StructType
from airflow_delta.table.expressions import functions, nested
from airflow_delta.table.expressions.casts import cast_part
from airflow_delta.table.expressions.conditions import branches
from airflow_delta.table.expressions.parser import parse_expression
from airflow_delta.table.expressions.parts import PartRows, TypedPart, literal, true_at
from airflow_delta.table.expressions.problems import NotDecided, RowError, RowNotDecided
from airflow_delta.table.expressions.syntax import Call, Case, Cast, Field, LiteralValue, Name, Syntax

Resolve = Callable[[tuple[str, ...]], "tuple[str, tuple[str, ...], DataType] | None"]
"""Finds a name as it is written: a column of the batch, the path of fields inside it, and the type; ``None`` if there is none."""


@dataclass(frozen=True, slots=True, eq=False)
class RowExpression:
    """An expression that is decided here.

    :param text: as it was given.
    :param data_type: of its values; of type void for ``NULL``.
    :param columns: of the batch, that it reads.
    """

    text: str
    data_type: DataType
    columns: tuple[str, ...]
    _part: TypedPart

    @property
    def is_constant(self) -> bool:
        """Return whether it reads no column."""
        return not self.columns

    def values(self, batch: pa.RecordBatch) -> pa.Array:
        """Return its value for each row.

        :raises DeltaAnalysisException: if Spark raises an error for a row: an overflow, a division by zero, an invalid cast.
        :raises DeltaUnsupportedOperationException: if the value for a row may differ from Spark's.
        """
        try:
            return self._part.compute(PartRows(batch.column, batch.num_rows))
        except RowError as error:
            raise DeltaAnalysisException(
                f"The expression {self.text!r} has no value for a row: {error}. Correct the row, or use try_cast, nullif or CASE."
            ) from error
        except RowNotDecided as error:
            raise DeltaUnsupportedOperationException(
                f"The expression {self.text!r} is evaluated for a row by Spark only: {error}. Use Spark."
            ) from error

    def true(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Return where it is true; errors as for :meth:`values`.

        :raises DeltaAnalysisException: if it is not a condition.
        """
        if self.data_type not in (BOOLEAN, NULL):
            raise DeltaAnalysisException(f"The expression {self.text!r} is a {self.data_type}, not a condition")
        return true_at(self.values(batch).cast(pa.bool_()))


def row_expression(text: str, resolve: Resolve) -> RowExpression:
    """Return an expression of Spark SQL, to be evaluated here.

    :raises NotDecided: if only Spark evaluates it exactly.
    :raises DeltaAnalysisException: if it is not an expression of Spark SQL, or names an unknown column.
    """
    if not text.strip():
        raise DeltaAnalysisException("The expression is empty")
    if (problem := oversized(text)) is not None:
        raise NotDecided(f"the expression {text[:100]!r}... {problem}")
    if "${" in text:
        raise NotDecided("Spark replaces ${ by a variable")
    try:
        part = _Binder(text, resolve).part(parse_expression(text))
    except NotDecided as error:
        _check_syntax(text, error)
    except RecursionError as error:
        raise NotDecided("it is nested too deeply") from error
    return RowExpression(text, part.data_type, tuple(sorted(part.columns)), part)


def _check_syntax(text: str, error: NotDecided) -> NoReturn:
    try:
        tree_of(text)
    except SqlSyntaxError as problem:
        raise DeltaAnalysisException(f"The expression {text!r} is not valid Spark SQL: {problem}") from problem
    except RecursionError:
        pass
    raise error


def columns_of(schema: StructType) -> Resolve:
    """Return the function that finds the columns of a table."""

    def resolve(parts: tuple[str, ...]) -> tuple[str, tuple[str, ...], DataType] | None:
        struct: DataType = schema
        path: list[StructField] = []
        for name in parts:
            found = struct.find(name) if isinstance(struct, StructType) else None
            if found is None:
                return None
            path.append(found)
            struct = found.data_type
        if has_own_order(path):
            raise NotDecided(f"{'.'.join(parts)} has a collation, or is a char, which Spark compares in its own way")
        return path[0].name, tuple(field.name for field in path[1:]), struct

    return resolve


def columns_under(resolve: Resolve, alias: str, prefix: str = "") -> Resolve:
    """Return the function that finds columns by their names, or below an alias.

    :param prefix: what their names in the batch begin with.
    """

    def found(parts: tuple[str, ...]) -> tuple[str, tuple[str, ...], DataType] | None:
        below = resolve(parts[1:]) if len(parts) > 1 and parts[0].lower() == alias.lower() else None
        named = below or resolve(parts)
        return None if named is None else (prefix + named[0], *named[1:])

    return found


class _Binder:
    def __init__(self, text: str, resolve: Resolve) -> None:
        self.text = text
        self.resolve = resolve

    def part(self, syntax: Syntax) -> TypedPart:
        """Return what a part of the expression says, with types."""
        match syntax:
            case LiteralValue(value, data_type):
                return literal(value, data_type)
            case Name(parts):
                return self.named(parts)
            case Field(base, name):
                return nested.field(self.part(base), name)
            case Cast(operand, target, tries):
                return cast_part(self.part(operand), target, tries=tries)
            case Case(cases, otherwise):
                conditions = [self.part(condition) for condition, _ in cases]
                if any(condition.data_type == NULL for condition in conditions):
                    raise NotDecided("NULL is not a condition of CASE in Spark")
                values = [self.part(value) for _, value in cases]
                return branches(conditions, values, None if otherwise is None else self.part(otherwise))
            case Call("struct", operands):
                return self.struct(operands)
            case Call(name, operands):
                return functions.make(name, tuple(map(self.part, operands)))

    def named(self, parts: tuple[str, ...]) -> TypedPart:
        found = self.resolve(parts)
        if found is not None:
            name, path, data_type = found
            return nested.column(name, path, data_type)
        raise DeltaAnalysisException(f"The expression {self.text!r} names the column {'.'.join(parts)!r}, which does not exist")

    def struct(self, operands: tuple[Syntax, ...]) -> TypedPart:
        """Return ``struct(a, b)``, whose fields have the names of the columns, or of their places."""
        found: list[TypedPart] = []
        for number, operand in enumerate(operands, start=1):
            name = operand.parts[-1] if isinstance(operand, Name) else f"col{number}"
            if isinstance(operand, Field):
                raise NotDecided("struct takes columns and values here; use named_struct")
            found += [literal(name, STRING), self.part(operand)]
        return nested.struct(found)
