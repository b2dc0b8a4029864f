"""The statistics of many files as columns: bounds and null counts of the columns in a predicate.

Only the needed members are decoded from JSON. Values that are missing or of the wrong type become null, which means unknown.
"""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.log.arrow import kernels
from airflow_delta.log.arrow.arrays import array, repeated, scalar
from airflow_delta.log.expressions.ast import ColumnReference
from airflow_delta.log.schema.partition_values import parse_timestamp, partition_array, possible_instants
from airflow_delta.log.schema.types import FLOATING, INTEGRAL, DataType, DecimalType

# Names that no struct type can have as those of fields: documents with these are decoded as a whole.
_NO_FIELD = lazy_pattern(r'["\\\x00-\x1f]')
# Rows held as Python objects at a time.
_CHUNK = 1 << 16


class ColumnBounds(NamedTuple):
    """Statistics of one column, with a value for each file.

    :param minimum: ``None`` if the column's type has no bounds. Integers are 64-bit; decimals are doubles.
    """

    minimum: pa.Array | None
    maximum: pa.Array | None
    null_count: pa.Array
    num_records: pa.Array


def _comparable(data_type: DataType) -> pa.DataType:
    """Return the Arrow type used to compare bounds."""
    if isinstance(data_type, DecimalType) or data_type.name in FLOATING:
        return pa.float64()
    if data_type.name in INTEGRAL:
        return pa.int64()
    return {
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }.get(data_type.name, pa.string())


# -- typed columns ------------------------------------------------------------------------------------------------------------


def from_struct(stats: pa.StructArray, columns: Mapping[ColumnReference, bool]) -> dict[ColumnReference, ColumnBounds]:
    """Return the statistics in ``stats_parsed`` structs of a checkpoint; missing members are unknown.

    :param columns: the columns, each with whether its bounds are needed.
    """

    def leaf(path: tuple[str, ...], wanted: pa.DataType) -> pa.Array:
        array = struct_leaf(stats, path)
        if array is None:
            return pa.nulls(len(stats), wanted)
        try:
            return _numbers(array if array.type == wanted else kernels.cast(array, wanted))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return pa.nulls(len(stats), wanted)

    records = leaf(("numRecords",), pa.int64())
    result: dict[ColumnReference, ColumnBounds] = {}
    for column, bounded in columns.items():
        kind, path = _comparable(column.data_type), column.physical_path
        result[column] = ColumnBounds(
            leaf(("minValues", *path), kind) if bounded else None,
            leaf(("maxValues", *path), kind) if bounded else None,
            leaf(("nullCount", *path), pa.int64()),
            records,
        )
    return result


def struct_leaf(stats: pa.StructArray, path: tuple[str, ...]) -> pa.Array | None:
    """Return a field of structs, ``None`` if their type does not have it."""
    array: Any = stats
    for name in path:
        position = array.type.get_field_index(name) if pa.types.is_struct(array.type) else -1
        if position < 0:
            return None
        array = kernels.struct_field(array, [position])  # by position: a name that begins with a dot would be read as a path
    return array


def from_partition_values(texts: pa.Array | pa.ChunkedArray, column: ColumnReference, bounded: bool) -> ColumnBounds:
    """Return partition values as statistics: every row of a file has the same value.

    The bounds of a timestamp without a zone cover all time zones.
    """
    kind = _comparable(column.data_type)
    values = partition_array(texts, column.data_type)
    bounds = _numbers(kernels.cast(values, kind)) if bounded else None
    nulls = kernels.cast(kernels.is_null(values), pa.int64())
    low = high = bounds
    if bounded and column.data_type.name == "timestamp":
        encoded = kernels.dictionary_encode(texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts)
        ranges = [possible_instants(text, column.data_type) for text in encoded.dictionary.to_pylist()]
        if any(ranges):
            ends = [kernels.take(array([r and r[end] for r in ranges], kind), encoded.indices) for end in (0, 1)]
            low, high = (kernels.coalesce(end, bounds) for end in ends)
    return ColumnBounds(low, high, nulls, repeated(1, len(nulls)))


# -- JSON ---------------------------------------------------------------------------------------------------------------------

_Leaf = tuple[pa.DataType, Callable[[Any], Any]]
"""The Arrow type of a value, and the function that finds it in a decoded document."""


class _Tree:
    """The members to decode: a struct type for each level, with attributes ``f0``, ``f1``, ... since names may be anything."""

    def __init__(self) -> None:
        self.children: dict[str, _Tree | Any] = {}

    def add(self, path: tuple[str, ...], kind: Any) -> str:
        """Add a leaf and return its attribute path."""
        head, *rest = path
        position = list(self.children).index(head) if head in self.children else len(self.children)
        if not rest:
            self.children[head] = kind
            return f"f{position}"
        inner: _Tree = self.children.setdefault(head, _Tree())
        return f"f{position}.{inner.add(tuple(rest), kind)}"

    def struct(self) -> type[msgspec.Struct]:
        """Return the type to decode; rows with a missing level share one empty instance."""
        fields: list[tuple[str, Any, Any]] = []
        for position, child in enumerate(self.children.values()):
            if isinstance(child, _Tree):
                kind = child.struct()
                fields.append((f"f{position}", kind, kind()))
            else:
                fields.append((f"f{position}", child | None, None))
        names = {f"f{position}": name for position, name in enumerate(self.children)}
        return msgspec.defstruct("Stats", fields, rename=names, gc=False, frozen=True)


def _json_type(data_type: DataType) -> Any:
    if isinstance(data_type, DecimalType) or data_type.name in FLOATING:
        return float | str  # "NaN", "Infinity"
    return int if data_type.name in INTEGRAL else str


def from_json(stats: pa.Array, columns: Mapping[ColumnReference, bool]) -> dict[ColumnReference, ColumnBounds]:
    """Return the statistics in JSON documents.

    :param columns: the columns, each with whether its bounds are needed.
    """
    decoder, leaves, members = _decoding(tuple(columns.items()))
    chunks: dict[str, list[pa.Array]] = {leaf: [] for leaf in leaves}
    for start in range(0, len(stats) or 1, _CHUNK):  # of no documents, no values
        rows = _decode(stats.slice(start, _CHUNK), decoder)
        for leaf, (kind, value_of) in leaves.items():
            chunks[leaf].append(_array(list(map(value_of, rows)), kind))
    known = {leaf: pa.concat_arrays(arrays) for leaf, arrays in chunks.items()}
    return {
        column: ColumnBounds(known[low[0]] if low else None, known[low[1]] if low else None, known[nulls], known["f0"])
        for column, (nulls, *low) in members.items()
    }


@lru_cache(maxsize=128)  # a decoder has types of its own, which take longer to make than a few documents to read
def _decoding(
    columns: tuple[tuple[ColumnReference, bool], ...],
) -> tuple[msgspec.json.Decoder[Any], dict[str, _Leaf], dict[ColumnReference, list[str]]]:
    """Return what reads the statistics of columns, the leaves by their attribute paths, and the leaves of each column."""
    tree = _Tree()
    whole = any(_NO_FIELD.search(name) for column, _ in columns for name in column.physical_path)
    leaves: dict[str, _Leaf] = {}

    def add(path: tuple[str, ...], kind: Any, arrow_type: pa.DataType) -> str:
        leaf = tree.add(path, kind)
        leaves[leaf] = arrow_type, partial(_member, path) if whole else operator.attrgetter(leaf)
        return leaf

    add(("numRecords",), int, pa.int64())
    members: dict[ColumnReference, list[str]] = {}
    for column, bounded in columns:
        members[column] = [add(("nullCount", *column.physical_path), int, pa.int64())]
        for bound in ("minValues", "maxValues") if bounded else ():
            kind, arrow_type = _json_type(column.data_type), _comparable(column.data_type)
            members[column].append(add((bound, *column.physical_path), kind, arrow_type))
    return msgspec.json.Decoder(dict[str, Any] if whole else tree.struct()), leaves, members


def _member(path: tuple[str, ...], document: Any) -> Any:
    """Return a value of a document that was decoded as a whole."""
    for name in path:
        document = document.get(name) if isinstance(document, Mapping) else None
    return document


def _decode(stats: pa.Array, decoder: msgspec.json.Decoder[Any]) -> list[Any]:
    nothing = decoder.decode(b"{}")
    decode = decoder.decode
    texts = stats.to_pylist()
    try:
        return list(map(decode, texts))
    except (msgspec.MsgspecError, TypeError):  # some are null or malformed
        return [_decode_one(text, decode, nothing) for text in texts]


def _decode_one(text: str | None, decode: Callable[[str], Any], nothing: Any) -> Any:
    try:
        return nothing if text is None else decode(text)
    except msgspec.MsgspecError:
        return nothing


def _numbers(values: pa.Array) -> pa.Array:
    """Return the array with NaN as null, since NaN is not a bound."""
    if not pa.types.is_floating(values.type):
        return values
    return kernels.if_else(kernels.is_nan(values), scalar(None, values.type), values)


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    source = pa.string() if pa.types.is_date(kind) or pa.types.is_timestamp(kind) else kind
    try:
        found = array(values, source)
        return _numbers(found) if source == kind else kernels.cast(found, kind)
    except (pa.ArrowException, ValueError, OverflowError, TypeError):
        return _numbers(array([_one(value, kind) for value in values], kind))  # some have the wrong type


def _one(value: Any, kind: pa.DataType) -> Any:
    """Convert a JSON value to the type, ``None`` if that is not possible."""
    if value is None:
        return None
    try:
        if pa.types.is_floating(kind):
            return float(value)
        if pa.types.is_timestamp(kind):
            value = parse_timestamp(value, zoned=kind.tz is not None)
        elif pa.types.is_date(kind):
            value = dt.date.fromisoformat(value)
        array([value], kind)
    except (ValueError, OverflowError, TypeError):
        return None
    return value
