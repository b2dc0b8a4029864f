"""Values of the columns that rows are compared by: their bounds, and the values themselves if they are few."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf

from airflow_delta.contract.key_values import MAX_CHARACTERS, MAX_ROWS, MAX_TEXT, KeyValues, is_key_type
from airflow_delta.contract.merge import ComparedColumns
from airflow_delta.contract.request import StageRequest
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.spark.written_files import check_read_back

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

AS_TEXT = ("date", "timestamp_ntz")
"""Types whose values Python cannot all represent, and reads in its own time zone."""

_FORMS = {**dict.fromkeys(AS_TEXT, "string"), "string": "binary"}
"""Types that values travel to Python in. Text that is not UTF-8 would be changed on the way, or refused."""

_DATE = lazy_pattern(r"(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}")
"""A date that Python can represent."""


@dataclass(frozen=True, slots=True)
class KeyBounds:
    """Least and greatest value of a compared column.

    :param data_type: of ``key.source``.
    :param low: ``None`` if there are none but nulls.
    :param longest: bytes of the longest text, ``None`` if it is of another type.
    """

    key: ComparedColumns
    data_type: str
    low: Any
    high: Any
    nulls: int
    longest: int | None = None

    @property
    def are_exact(self) -> bool:
        """Return whether the values of the column can be reported."""
        if not is_key_type(self.data_type) or (self.longest or 0) > MAX_TEXT:
            return False
        return self.data_type != "date" or self.low is None or all(map(_DATE.fullmatch, (self.low, self.high)))


def measures(column: Column, data_type: str) -> list[Column]:
    """Return the aggregates that :func:`bounds_of` takes: least and greatest value, nulls, bytes of the longest text."""
    # Instants as numbers: datetimes would go through the driver's time zone.
    value = sf.unix_micros(column) if data_type == "timestamp" else column
    low, high = (bound.cast(_FORMS[data_type]) if data_type in _FORMS else bound for bound in (sf.min(value), sf.max(value)))
    longest = sf.max(sf.octet_length(column)) if data_type == "string" else sf.lit(None)
    return [low, high, sf.count_if(column.isNull()), longest]


def bounds_of(keys: Sequence[tuple[ComparedColumns, str]], measured: Sequence[Any]) -> list[KeyBounds]:
    """Return the bounds of columns, without those that do not cover all values that statistics may leave out.

    :param keys: the columns, with the types of ``source``.
    :param measured: values of their :func:`measures`.
    """
    found = []
    for i, (key, data_type) in enumerate(keys):
        low, high, nulls, longest = measured[4 * i : 4 * i + 4]
        if data_type == "string" and low is not None:
            try:
                low, high = low.decode(), high.decode()
            except UnicodeDecodeError:
                continue
        if isinstance(high, float):
            if math.isnan(high):
                continue
            # Both zeros inside or both outside: Parquet distinguishes -0.0 from 0.0, comparisons do not.
            low, high = low or -0.0, high or 0.0
        found.append(KeyBounds(key, data_type, low, high, nulls, longest))
    return found


def key_values(rows: DataFrame, bounds: Sequence[KeyBounds], count: int, request: StageRequest, path: str) -> KeyValues | None:
    """Return the values of the compared columns, ``None`` if they cannot be reported exactly.

    :param rows: as they were written.
    :param bounds: of the columns; of those that are the same column of the table, the first counts.
    :param count: number of the rows.
    :param path: where they are.
    """
    exact = list({b.key.column: b for b in reversed(bounds) if b.are_exact}.values())[::-1]
    listed = None
    if exact and count <= MAX_ROWS:
        values = zip(exact, _values(rows, exact, count, request, path), strict=True)
        known = [(b, column) for b, column in values if column is not None]
        exact = [b for b, _ in known]
        listed = tuple(dict.fromkeys(zip(*(column for _, column in known), strict=True)))
    if not exact:
        return None
    if len(json.dumps(listed, ensure_ascii=False)) > MAX_CHARACTERS:
        listed = None
    return KeyValues(
        columns=tuple(b.key.column for b in exact),
        null_safe=tuple(b.key.null_safe for b in exact),
        low=tuple(_plain(b.low) for b in exact),
        high=tuple(_plain(b.high) for b in exact),
        nulls=tuple(b.nulls > 0 for b in exact),
        rows=listed,
    )


def _values(rows: DataFrame, bounds: Sequence[KeyBounds], count: int, request: StageRequest, path: str) -> list[list[Any] | None]:
    """Return the values of each column, in the order of the rows; ``None`` for a column with text that is not UTF-8."""
    columns = [sf.col(b.key.source).cast(_FORMS.get(b.data_type, b.data_type)).alias(str(i)) for i, b in enumerate(bounds)]
    collected = rows.select(*columns).collect() if count else []
    check_read_back(count, len(collected), path, request)
    found: list[list[Any] | None] = []
    for i in range(len(bounds)):
        try:
            found.append([_plain(row[i]) for row in collected])
        except UnicodeDecodeError:
            found.append(None)
    return found


def _plain(value: Any) -> Any:
    """Return a value in JSON form."""
    if value is None or isinstance(value, int | str):
        return value
    return value.decode() if isinstance(value, bytes | bytearray) else format(value, "f")
