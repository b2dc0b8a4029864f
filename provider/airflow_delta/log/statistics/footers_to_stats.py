"""The statistics of a data file (``stats`` of an ``add`` action) from its Parquet footer.

Anything that the footer does not say for certain is left out, which means unknown. Bounds may be wider than the data, but never
narrower.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from airflow_delta.log import heavy
from airflow_delta.log.features.properties import TableProperties
from airflow_delta.log.features.stats_columns import indexed_leaves
from airflow_delta.log.schema.types import FLOATING, INTEGRAL, ArrayType, Leaf, MapType, StructType
from airflow_delta.log.schema.walk import folded
from airflow_delta.log.statistics.nan_note import NanNote, read_nan_note

if TYPE_CHECKING:
    import pyarrow.parquet as pq


__all__ = ["FooterStatistics", "group_statistics", "indexed_leaves", "stats_from_footer", "truncate_max", "truncate_min"]

_MAX_CHARACTER = chr(0x10FFFF)
_PREFIX = 32  # characters of a text in the statistics of a row group


def truncate_min(text: str, length: int) -> str | None:
    """Return a lower bound of at most ``length`` characters."""
    return text[:length] if length > 0 else None


def truncate_max(text: str, length: int) -> str | None:
    """Return an upper bound of about ``length`` characters, ``None`` if there is none.

    A truncated text ends with a character greater than the first one that was cut off (Delta's ``StatisticsCollection``).
    """
    if len(text) <= length:
        return text
    if length <= 0:
        return None
    for end in range(length, min(2 * length, len(text) - 1) + 1):
        if text[end] != _MAX_CHARACTER:
            return text[:end] + ("\x7f" if text[end] < "\x7f" else _MAX_CHARACTER)
    return None


def stats_from_footer(
    footer: pq.FileMetaData,
    schema: StructType,
    properties: TableProperties,
    partition_columns: Sequence[str] = (),
    *,
    tight_bounds: bool = False,
    file: str | None = None,
) -> str:
    """Return the statistics of a file as JSON text: ``numRecords``, ``minValues``, ``maxValues``, ``nullCount``.

    :param schema: the table's schema, with or without its partition columns.
    :param tight_bounds: add ``tightBounds``, for a table with deletion vectors.
    :param file: path of the file, if known.
    """
    return FooterStatistics(schema, properties, partition_columns, tight_bounds=tight_bounds).of(footer, file=file)


class FooterStatistics:
    """Statistics of many files: what follows from their schema is worked out once for files that have the same.

    Parameters as for :func:`stats_from_footer`.
    """

    def __init__(
        self,
        schema: StructType,
        properties: TableProperties,
        partition_columns: Sequence[str] = (),
        *,
        tight_bounds: bool = False,
    ) -> None:
        self._indexed = indexed_leaves(schema, partition_columns, properties)
        self._prefix = properties.data_skipping_string_prefix_length
        self._tight_bounds = tight_bounds
        self._tree_of = heavy.schema_tree
        self._known: tuple[Any, Any] | None = None
        self._places = _Places((), ())

    def of(self, footer: pq.FileMetaData, *, file: str | None = None) -> str:
        """Return the statistics of a file."""
        note = read_nan_note(footer, file)
        # parquet-mr (Spark) writes NaN as the maximum; other writers silently ignore NaN in bounds, and only ours notes it.
        sees_nan = note is not None or (footer.created_by or "").startswith("parquet-mr")
        places = self._placed(footer)
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        minimum: dict[str, Any] = {}
        maximum: dict[str, Any] = {}
        nulls: dict[str, Any] = {}
        for leaf, first in places.groups:
            _put(nulls, leaf.physical_path, _nulls_of_group(groups, first, leaf))
        for column in places.columns:
            merged = _Merged(column, groups)
            path = column.leaf.physical_path
            count, low, high = merged.result(self._prefix, note, sees_nan=sees_nan)
            _put(nulls, path, count)
            _put(minimum, path, low)
            _put(maximum, path, high)
        stats: dict[str, Any] = {"numRecords": footer.num_rows}
        if self._indexed:
            stats |= {"minValues": minimum, "maxValues": maximum, "nullCount": nulls}
        if self._tight_bounds:
            stats["tightBounds"] = True
        return msgspec.json.encode(stats).decode()

    def _placed(self, footer: pq.FileMetaData) -> _Places:
        """Return where the columns are in a file."""
        schema, tree = footer.schema, self._tree_of(footer)
        if self._known is not None and tree is not None and tree.equals(self._known[1]) and schema.equals(self._known[0]):
            return self._places
        self._places, self._known = self._place(footer), None if tree is None else (schema, tree)
        return self._places

    def _place(self, footer: pq.FileMetaData) -> _Places:
        paths = heavy.leaf_paths(footer)
        by_path = {path: i for i, path in enumerate(paths)}
        by_folded = {folded(path): i for path, i in by_path.items()}
        groups: list[tuple[Leaf, int]] = []
        columns: list[_Column] = []
        for leaf in self._indexed:
            path = leaf.physical_path
            if isinstance(leaf.data_type, ArrayType | MapType) or leaf.data_type.name == "variant":
                above = path if leaf.data_type.name != "variant" else (*path, "metadata")
                first = next((i for i, path in enumerate(paths) if path[: len(above)] == above), None)
                if first is not None:
                    groups.append((leaf, first))
                continue
            index = by_path.get(path, by_folded.get(folded(path)))
            if index is None:
                continue
            column = footer.schema.column(index)
            if not column.max_repetition_level:
                required = column.max_definition_level == 0
                columns.append(_Column(leaf, index, column.path, required, _converter(column, leaf)))
        return _Places(groups, columns)


class _Column(NamedTuple):
    """A column of a file that may have bounds.

    :ivar path: as the file spells it.
    :ivar required: it has no nulls.
    :ivar value_of: makes values of what the footer has; ``None`` if the file has another type than the table.
    """

    leaf: Leaf
    position: int
    path: str
    required: bool
    value_of: Callable[[Any], Any] | None


class _Places(NamedTuple):
    """Where the columns of a table are in a file.

    :ivar groups: columns that are groups in the file, with the position of the first column in each.
    """

    groups: Sequence[tuple[Leaf, int]]
    columns: Sequence[_Column]


def _nulls_of_group(groups: Sequence[Any], first: int, leaf: Leaf) -> int | None:
    """Return the number of nulls in a column that is a group in the file, if its first leaf shows it.

    A leaf below a list counts empty lists like null ones, so only a count of zero is certain.

    :param groups: the row groups.
    """
    total = 0
    for group in groups:
        statistics = group.column(first).statistics
        if statistics is None or not statistics.has_null_count:
            return None
        total += statistics.null_count
    return total if total == 0 or leaf.data_type.name == "variant" else None


def _put(target: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    if value is None:
        return
    for name in path[:-1]:
        target = target.setdefault(name, {})
    target[path[-1]] = value


def group_statistics(footer: pq.FileMetaData, group: int, index: int, leaf: Leaf) -> tuple[int | None, Any, Any]:
    """Return null count, lower and upper bound of a column in a row group as JSON values, each ``None`` if unknown.

    :param index: position of the column in the file, which is in no list.
    """
    column = footer.schema.column(index)
    placed = _Column(leaf, index, column.path, column.max_definition_level == 0, _converter(column, leaf))
    sees_nan = (footer.created_by or "").startswith("parquet-mr")
    return _Merged(placed, [footer.row_group(group)]).result(_PREFIX, None, sees_nan=sees_nan)


class _Merged:
    """The statistics of one column over some row groups."""

    def __init__(self, column: _Column, groups: Sequence[Any]) -> None:
        self.column = column
        self.null_count: int | None = 0
        self.low: Any = None
        self.high: Any = None
        self.bounded = True
        for group in groups:
            chunk = group.column(column.position)
            self._add(chunk.statistics, chunk.num_values)

    def _add(self, statistics: Any, num_values: int) -> None:
        value_of = self.column.value_of
        known_nulls = statistics.null_count if statistics is not None and statistics.has_null_count else None
        if self.column.required:
            known_nulls = 0
        self.null_count = None if known_nulls is None or self.null_count is None else self.null_count + known_nulls
        if known_nulls == num_values:
            return  # only nulls: no bounds needed
        if value_of is None or statistics is None or not statistics.has_min_max:
            self.bounded = False
            return
        try:
            low, high = value_of(statistics.min_raw), value_of(statistics.max_raw)
            if any(isinstance(v, float) and math.isnan(v) for v in (low, high)) or low > high:
                self.bounded = False
                return
        except (ValueError, TypeError, ArithmeticError, OverflowError):
            self.bounded = False
            return
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)

    def result(self, prefix: int, note: NanNote | None, *, sees_nan: bool) -> tuple[int | None, Any, Any]:
        """Return null count, lower and upper bound as JSON values, each ``None`` if unknown."""
        noted = None if note is None else note.nulls.get(self.column.path)
        nulls = noted if self.null_count is None else self.null_count
        if not self.bounded or self.low is None:
            return nulls, None, None
        low, high = self.low, self.high
        name = self.column.leaf.data_type.name
        if name == "string":
            return nulls, truncate_min(low, prefix), truncate_max(high, prefix)
        if name in FLOATING:
            # Zero has two signs; the bounds cover both.
            low, high = (-0.0 if low == 0 else low), (0.0 if high == 0 else high)
            return nulls, _finite(low), _finite(high) if sees_nan else None
        return nulls, _json(low), _json(high)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _json(value: Any) -> Any:
    if isinstance(value, decimal.Decimal):
        return msgspec.Raw(f"{value:f}".encode())  # a number with all its digits
    if isinstance(value, dt.datetime):
        text = value.replace(tzinfo=None).isoformat(timespec="milliseconds")  # rounds down
        return f"{text}Z" if value.tzinfo else text
    return value.isoformat() if isinstance(value, dt.date) else value


def _converter(column: Any, leaf: Leaf) -> Callable[[Any], Any] | None:
    """Return a function from physical values to values of the column's type, ``None`` if the file has another type."""
    physical, name = column.physical_type, leaf.data_type.name
    logical = json.loads(column.logical_type.to_json())
    kind = logical.get("Type")
    if name.startswith("decimal"):
        return _decimal_converter(physical, logical)
    if name in INTEGRAL and physical in ("INT32", "INT64") and kind in ("None", "Int") and logical.get("isSigned", True):
        return int
    if name in FLOATING and physical in ("FLOAT", "DOUBLE"):
        return float
    if name == "string" and physical == "BYTE_ARRAY" and kind in ("String", "None", "Enum"):
        return lambda raw: raw.decode() if isinstance(raw, bytes) else str(raw)
    if name == "date" and physical == "INT32" and kind == "Date":
        return lambda raw: dt.date(1970, 1, 1) + dt.timedelta(days=raw)
    if name in ("timestamp", "timestamp_ntz") and physical == "INT64" and kind == "Timestamp":
        return heavy.timestamps(heavy.PER_SECOND[logical["timeUnit"]], zoned=name == "timestamp")
    return None


def _decimal_converter(physical: str, logical: dict[str, Any]) -> Callable[[Any], decimal.Decimal] | None:
    scale = int(logical.get("scale", 0))
    if logical.get("Type") != "Decimal" and (physical not in ("INT32", "INT64") or not logical.get("isSigned", True)):
        return None

    def convert(raw: Any) -> decimal.Decimal:
        unscaled = raw if isinstance(raw, int) else int.from_bytes(raw, "big", signed=True)
        return decimal.Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))

    return convert
