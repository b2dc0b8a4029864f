"""Names of a predicate, found in the schema of its table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from airflow_delta.contract.char_lengths import DECLARED, char_length
from airflow_delta.contract.delta_names import COLLATIONS
from airflow_delta.exceptions import PredicateException
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.log.expressions.ast import (
    ColumnReference,
)
from airflow_delta.log.schema.suggestions import known_names
from airflow_delta.log.schema.types import ArrayType, DataType, MapType, StructField, StructType

_CHAR = lazy_pattern(r"(?<!var)char\(")


class UnsupportedError(Exception):
    """A condition that is not evaluated here; Spark may."""

    def __init__(self, node: Any) -> None:
        super().__init__()
        self.node = node


def has_own_order(path: Sequence[StructField]) -> bool:
    """Return whether strings at the end of a path, or inside it, are not compared by their bytes: a collation or ``char(n)``."""
    last = path[-1].data_type
    return any(map(_orders_itself, path)) or any(map(_orders_itself, _fields_in(last)))


def _orders_itself(field: StructField) -> bool:
    return COLLATIONS in field.metadata or _CHAR.search(str(field.metadata.get(DECLARED, "")).lower()) is not None


def _fields_in(data_type: DataType) -> Iterator[StructField]:
    match data_type:
        case StructType(fields):
            for field in fields:
                yield field
                yield from _fields_in(field.data_type)
        case ArrayType(element):
            yield from _fields_in(element)
        case MapType(key, value):
            yield from _fields_in(key)
            yield from _fields_in(value)


class Columns:
    """The columns that a predicate may name.

    :param text: the predicate, for messages.
    :param what: what names the columns, for messages, if that is not a predicate.
    """

    def __init__(self, text: str, schema: StructType, partition_columns: Sequence[str], *, what: str | None = None) -> None:
        self._what = f"The predicate {text!r}" if what is None else what
        self._schema = schema
        self._partitions = frozenset(name.lower() for name in partition_columns)

    def has_own_order(self, names: Sequence[str]) -> bool:
        """Return whether a column orders strings in its own way, see :func:`has_own_order`."""
        struct: Any = self._schema
        path: list[StructField] = []
        for name in names:
            found = struct.find(name) if isinstance(struct, StructType) else None
            if found is None:
                break
            path.append(found)
            struct = found.data_type
        return bool(path) and has_own_order(path)

    def resolve(self, names: Sequence[str], *, inside: bool = False) -> ColumnReference:
        """Return the column of a path.

        :param inside: the path may go on into lists and maps, where there are no statistics; the column then ends before.
        :raises PredicateException: if there is no such column.
        :raises UnsupportedError: if its values have an order of their own.
        """
        struct: Any = self._schema
        path: list[StructField] = []
        for depth, name in enumerate(names):
            if inside and path and not isinstance(struct, StructType):
                break
            found = struct.find(name) if isinstance(struct, StructType) else None
            if found is None:
                where = f"{'.'.join(names[:depth])} ({struct})" if depth else "the table"
                what = "fields" if depth else "columns"
                known = f". {known_names(name, struct.names, what)}" if isinstance(struct, StructType) else ""
                raise PredicateException(f"{self._what} names the column {name!r}, which {where} does not have{known}")
            path.append(found)
            struct = found.data_type
        if not inside and COLLATIONS in path[-1].metadata:
            raise UnsupportedError(names)
        top = path[0].metadata
        if not inside and len(path) > 1 and _CHAR.search(str(top.get(DECLARED, "")).lower()):
            raise UnsupportedError(names)
        return ColumnReference(
            tuple(f.name for f in path),
            tuple(f.physical_name for f in path),
            struct,
            len(path) == 1 and path[0].name.lower() in self._partitions,
            char_length({"metadata": top}) if len(path) == 1 else None,
        )
