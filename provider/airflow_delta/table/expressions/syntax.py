"""What an expression says, before its names have types."""

from __future__ import annotations

from typing import Any

from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.schema.types import DataType


@dataclass(frozen=True, slots=True)
class LiteralValue:
    """A literal. ``None`` of type void is ``NULL``."""

    value: Any
    data_type: DataType


@dataclass(frozen=True, slots=True)
class Name:
    """A column, or a field of a struct, perhaps with a qualifier before it."""

    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a struct that is an expression."""

    base: Syntax
    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """An operator (in the form that :data:`OPERATORS` of the parser has) or a function in lower case, and its operands."""

    name: str
    operands: tuple[Syntax, ...]


@dataclass(frozen=True, slots=True)
class Cast:
    """``CAST`` or ``TRY_CAST``."""

    operand: Syntax
    target: DataType
    tries: bool


@dataclass(frozen=True, slots=True)
class Case:
    """``CASE WHEN ... THEN ... ELSE ... END``; without ``ELSE``, it is ``NULL``."""

    branches: tuple[tuple[Syntax, Syntax], ...]
    otherwise: Syntax | None


Syntax = LiteralValue | Name | Field | Call | Cast | Case
