"""Files of JSON documents, read by Arrow with the types of the table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from airflow_delta.exceptions import DeltaUnsupportedOperationException
from airflow_delta.log.schema.types import ArrayType, DataType, MapType, StructType, arrow_type
from airflow_delta.table.arrow.source_streams import BLOCK, open_text

if TYPE_CHECKING:
    from airflow_delta.table.stage.file_loads import LoadedFile
    from airflow_delta.table.stage.source_files import SourceFiles

_Names: TypeAlias = "dict[str, _Names | None]"
"""Fields, and those in them, also in lists; ``None``: no object was seen."""

_HEAD = 64 << 10
_SPACE = re.compile(r"\s*")
_KEPT = 256 << 20
"""Bytes of rows that are held between the look at their columns and the reading, rather than parsed again."""


class JsonFiles:
    """Documents one after the other, each on a line. Fields that the table does not have keep the type that Arrow finds.

    A file has the columns that its documents have. Arrow would give it all that it is told a type of, so it is told those of
    the names in its first documents; if others of the table come later, it is parsed again.
    """

    def __init__(self, found: SourceFiles, table: StructType) -> None:
        self._found = found
        self._table = table
        self._held: dict[str, pa.Table] = {}
        self._names: dict[str, _Names] = {}

    def schema(self, file: LoadedFile) -> pa.Schema:
        """Return the columns of a file.

        :raises DeltaUnsupportedOperationException: if one is binary in the table.
        """
        rows = self._rows(file)
        if rows.nbytes + sum(held.nbytes for held in list(self._held.values())) <= _KEPT:
            self._held[file.path] = rows
        return rows.schema

    def batches(self, file: LoadedFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 - as for CSV
        """Yield the rows of a file."""
        rows = self._held.pop(file.path, None)
        yield from (self._rows(file) if rows is None else rows).to_batches()

    def _rows(self, file: LoadedFile) -> pa.Table:
        names = self._names.get(file.path)
        if names is None:
            with open_text(self._found, file) as opened:
                names = _first_names(opened.read(_HEAD))
        while True:
            given = pa.schema(self._spelled(self._table, names))
            with open_text(self._found, file) as opened:
                rows = pa_json.read_json(
                    opened,
                    read_options=pa_json.ReadOptions(block_size=BLOCK),
                    parse_options=pa_json.ParseOptions(explicit_schema=given, unexpected_field_behavior="infer"),
                )
            names = _names_of(rows.schema)
            if pa.schema(self._spelled(self._table, names)) == given:
                break
        self._names[file.path] = names
        rows.validate(full=True)  # Arrow takes any bytes for text
        for number, field in enumerate(rows.schema):
            if (own := self._table.find(field.name)) is not None:
                kind = _stored(own.data_type, field.type)
                if kind != field.type:
                    rows = rows.set_column(number, field.name, pc.cast(rows.column(number), kind))
        return rows

    def _spelled(self, table: StructType, names: _Names) -> list[tuple[str, pa.DataType]]:
        """Return the types to read the fields of the table as, under the names that a file has for them."""
        fields = []
        for name, inner in names.items():
            own = table.find(name)
            kind = None if own is None else self._read_as(name, own.data_type, inner)
            if kind is not None:
                fields.append((name, kind))
        return fields

    def _read_as(self, name: str, own: DataType, names: _Names | None) -> pa.DataType | None:
        """Return the type to read a field as; ``None``: the one that Arrow finds, which is compared with the table's later."""
        match own:
            case StructType():
                if names == {}:  # for Arrow, a struct without any field is none of the table's
                    simple = (
                        field for field in own if not isinstance(field.data_type, MapType) and field.data_type.name != "binary"
                    )
                    names = {field.name: {} for field in islice(simple, 1)}
                fields = [] if names is None else self._spelled(own, names)
                return pa.struct(fields) if fields else None
            case ArrayType(element):
                kind = self._read_as(name, element, names)
                return None if kind is None else pa.list_(kind)
            case MapType():
                return None
        if own.name == "binary":
            raise self._found.store.error(
                DeltaUnsupportedOperationException,
                f'The column {name!r} is binary, which JSON has in Base64: with engine="arrow" it is not decoded. Use Spark.',
            )
        # Arrow reads no dates from JSON, and any time as one of UTC, with an offset or without.
        return pa.string() if own.name in ("date", "timestamp", "timestamp_ntz") else arrow_type(own)


def _stored(own: DataType, found: pa.DataType) -> pa.DataType:
    """Return the type of the table for what was read."""
    match own:
        case StructType() if pa.types.is_struct(found):
            fields = []
            for field in found:
                inner = own.find(field.name)
                fields.append(field if inner is None else field.with_type(_stored(inner.data_type, field.type)))
            return pa.struct(fields)
        case ArrayType(element) if pa.types.is_list(found):
            return pa.list_(found.value_field.with_type(_stored(element, found.value_type)))
    return arrow_type(own) if pa.types.is_string(found) and own.name in ("date", "timestamp", "timestamp_ntz") else found


def _names_of(fields: pa.Schema | pa.StructType) -> _Names:
    names: _Names = {}
    for field in fields:
        kind = field.type
        while pa.types.is_list(kind):
            kind = kind.value_type
        names[field.name] = _names_of(kind) if pa.types.is_struct(kind) else None
    return names


def _first_names(head: bytes) -> _Names:
    """Return the names of the fields in the first documents, as far as these are complete; Arrow reports what is not JSON."""
    names: _Names = {}
    text, decoder = head.decode("utf-8-sig", errors="replace"), json.JSONDecoder()
    at = _SPACE.match(text).end()  # type: ignore[union-attr]  # it matches no text as well
    while at < len(text):
        try:
            document, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        _add_names(names, document)
        at = _SPACE.match(text, end).end()  # type: ignore[union-attr]
    return names


def _add_names(names: _Names, document: Any) -> None:
    for name, value in document.items() if isinstance(document, dict) else ():
        inner = names.setdefault(name, None)
        for each in _flat(value):
            if each and isinstance(each, dict):
                inner = names[name] = {} if inner is None else inner
                _add_names(inner, each)


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for inner in value:
            yield from _flat(inner)
    else:
        yield value
