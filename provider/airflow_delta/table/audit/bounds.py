"""What the statistics of one staged file say for certain about the values of one column."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_delta.exceptions import DeltaAnalysisException, DeltaIllegalArgumentException, PredicateException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import AddFile
from airflow_delta.log.expressions.name_resolution import Columns, UnsupportedError
from airflow_delta.log.features.properties import TableProperties
from airflow_delta.log.features.stats_columns import parse_column_list
from airflow_delta.log.schema.partition_values import parse_partition_value, parse_timestamp, possible_instants
from airflow_delta.log.schema.types import FLOATING, INTEGRAL, DataType, DecimalType
from airflow_delta.log.statistics.row_counts import live_records

if TYPE_CHECKING:
    from airflow_delta.log.expressions.ast import ColumnReference
    from airflow_delta.table.audit.audited_table import AuditedTable

_CUT_OFF = dt.timedelta(microseconds=999)  # bounds of timestamps hold milliseconds, and are cut down
_WRITERS_CUT = 64  # bytes at which some writers of Parquet cut the bounds of text


class ColumnStatistics(NamedTuple):  # there is one for each column of each file
    """Statistics of one column of one file; ``None`` is unknown.

    :param rows: rows that are not deleted.
    :param low: nothing is smaller.
    :param most_low: something is as small as that.
    :param high: nothing is greater.
    :param least_high: something is as great as that.
    """

    path: str
    rows: int | None = None
    nulls: int | None = None
    low: Any = None
    most_low: Any = None
    least_high: Any = None
    high: Any = None

    @property
    def empty(self) -> bool:
        """Whether it certainly has no value: no rows, or only nulls."""
        return self.rows is not None and (self.rows == 0 or self.nulls == self.rows)

    def inside(self, minimum: Any, maximum: Any) -> bool | None:
        """Return whether all values are in a range, ends included; ``None`` if unknown."""
        if self._proven_below(minimum) or self._proven_above(maximum):
            return False
        above = minimum is None or (self.low is not None and self.low >= minimum)
        below = maximum is None or (self.high is not None and self.high <= maximum)
        return True if above and below else None

    def _proven_below(self, minimum: Any) -> bool:
        return minimum is not None and self.most_low is not None and bool(self.most_low < minimum)

    def _proven_above(self, maximum: Any) -> bool:
        return maximum is not None and self.least_high is not None and bool(self.least_high > maximum)

    def unsure(self, column: str) -> str:
        """Return why bounds do not decide."""
        missing = [word for word, bound in (("least", self.low), ("greatest", self.high)) if bound is None]
        if missing:
            return f"the statistics of {self.path} have no {' and no '.join(missing)} value of column {column}"
        return f"the bounds of column {column} of {self.path} are wider than its values (from {self.low} to {self.high})"


def named_column(table: AuditedTable, name: str, *, what: str) -> ColumnReference:
    """Return the column that a dotted path names; back-quote names with dots or commas.

    :param what: parameter that names it, for messages.
    :raises DeltaAnalysisException: if the table will not have the column.
    """
    try:
        [path] = parse_column_list(name)
    except ValueError:  # of the list, or of its length
        raise table.handle.error(
            DeltaIllegalArgumentException,
            f"{name!r} does not name a column of table {table.handle.table}; put back-quotes around names with dots or commas",
        ) from None
    target = table.target
    schema = target.schema if target.is_known else table.view.snapshot.schema
    try:
        return Columns(name, schema, target.partition_columns, what=what).resolve(path)
    except UnsupportedError:
        raise table.handle.error(DeltaIllegalArgumentException, f"{name!r} is not a column that has statistics") from None
    except PredicateException as error:
        version = "" if target.version < 0 else f" version {target.version}"
        raise target.error(DeltaAnalysisException, f"{error.message.rstrip('.')} (table {target.table}{version}).") from None


def comparable_value(column: ColumnReference, value: Any, *, what: str) -> Any:
    """Return an author's limit as a value to compare with those of a column; ``None`` for no limit.

    :raises DeltaAnalysisException: if the value is not of the column's type.
    """
    if value is None:
        return None
    try:
        limit = _limit(column, value, what=what)
    except (decimal.InvalidOperation, DeltaAnalysisException):
        limit = None
    if limit is None:  # also for the empty text that a template leaves for a missing value: a null as a partition value
        raise DeltaAnalysisException(f"{what}: {value!r} is not a valid value for column {column} ({column.data_type})")
    return limit


def _limit(column: ColumnReference, value: Any, *, what: str) -> Any:
    if _is_number(column.data_type):
        number = decimal.Decimal("NaN") if isinstance(value, bool) else decimal.Decimal(str(value).strip())
        return None if number.is_nan() else number
    if column.data_type.name == "string":
        return str(value)
    if column.data_type.name == "date" and isinstance(value, dt.datetime):
        value = value.date()
    if column.data_type.name in ("date", "timestamp", "timestamp_ntz"):
        return parse_partition_value(value.isoformat() if isinstance(value, dt.date) else str(value), column.data_type)
    raise DeltaIllegalArgumentException(f"{what}: column {column} is {column.data_type}, which has no bounds")


@dataclass(frozen=True, slots=True)
class FileStatistics:
    """A file with its statistics, decoded once for all columns.

    :param rows: those that no deletion vector marks; ``None`` if that is unknown.
    :param wide: bounds and null counts may be of rows that are deleted.
    :param null_count: by physical name, as are ``minimum`` and ``maximum``.
    """

    file: AddFile
    rows: int | None
    wide: bool
    null_count: Any
    minimum: Any
    maximum: Any

    @classmethod
    def of(cls, file: AddFile) -> FileStatistics:
        """Return it; what is not a JSON object says nothing."""
        try:
            found = json.loads(file.stats or "{}", parse_float=decimal.Decimal)
        except ValueError:
            found = {}
        told = found if isinstance(found, dict) else {}
        wide = file.deletion_vector is not None or told.get("tightBounds") is False
        return cls(file, live_records(file), wide, *(told.get(name) for name in ("nullCount", "minValues", "maxValues")))


class StatisticsReader:
    """Tells what files say of one column.

    :param configuration: of the table.
    """

    __slots__ = ("_column", "_is_partition", "_kind", "_path", "_prefix_length", "_read")

    def __init__(self, column: ColumnReference, configuration: Mapping[str, str]) -> None:
        self._column, self._path, self._kind = column, column.physical_path, column.data_type.name
        self._is_partition = column.is_partition
        self._read = _number_of if _is_number(column.data_type) else _READ.get(self._kind, _nothing_of)
        self._prefix_length = (
            TableProperties(dict(configuration)).data_skipping_string_prefix_length if self._kind == "string" else 0
        )

    def of(self, file: FileStatistics) -> ColumnStatistics:
        """Return what a file says.

        :raises DeltaAnalysisException: if it is a partition column, and its value is in the spelling of another type.
        """
        if self._is_partition:
            return self._of_partition(file)
        nulls = self._leaf(file.null_count)
        nulls = nulls if isinstance(nulls, int) and (not file.wide or nulls == 0) else None
        low, high = self._value(file.minimum), self._value(file.maximum)
        most_low, least_high = low, high
        if self._kind in ("timestamp", "timestamp_ntz"):
            most_low, high = (None if value is None else value + _CUT_OFF for value in (low, high))
        elif self._kind == "string":
            most_low = low if _whole_text(low, self._prefix_length - 1) else None
            least_high = high if _whole_text(high, self._prefix_length) else None
        if file.wide:
            most_low = least_high = None
        return ColumnStatistics(file.file.path, file.rows, nulls, low, most_low, least_high, high)

    def _of_partition(self, of: FileStatistics) -> ColumnStatistics:
        path, rows, data_type = of.file.path, of.rows, self._column.data_type
        text = of.file.partition_values.get(self._path[0])
        if (instants := possible_instants(text, data_type)) is not None:  # which one, the reader's time zone tells
            return ColumnStatistics(path, rows, 0, instants.earliest, None, None, instants.latest)
        value = parse_partition_value(text, data_type)
        nulls = rows if value is None else 0
        value = _number_of(value) if value is not None and _is_number(data_type) else value
        return ColumnStatistics(path, rows, nulls, value, value, value, value)

    def _leaf(self, found: Any) -> Any:
        for name in self._path:
            found = found.get(name) if isinstance(found, dict) else None
        return found

    def _value(self, told: Any) -> Any:
        """Return a bound as a value to compare, ``None`` if it cannot be one."""
        found = self._leaf(told)
        if found is None:
            return None
        try:
            return self._read(found)
        except (ValueError, ArithmeticError, OverflowError):
            return None


def plain(value: Any) -> Any:
    """Return a value as plain JSON."""
    if isinstance(value, decimal.Decimal | int) and not isinstance(value, bool):
        number = decimal.Decimal(value)
        return int(number) if number == number.to_integral_value() and abs(number) < 2**53 else float(number)
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return value.isoformat() if isinstance(value, dt.date) else value


def _is_number(data_type: DataType) -> bool:
    return isinstance(data_type, DecimalType) or data_type.name in INTEGRAL or data_type.name in FLOATING


def _number_of(found: Any) -> int | decimal.Decimal | None:
    """Return a number that is compared exactly with others."""
    if type(found) is int:
        return found
    if isinstance(found, bool | dict | list):
        return None
    result = found if isinstance(found, decimal.Decimal) else decimal.Decimal(str(found))
    return result if result.is_finite() else None


def _text_of(found: Any) -> str | None:
    return found if isinstance(found, str) else None


def _date_of(found: Any) -> dt.date | None:
    return dt.date.fromisoformat(found) if isinstance(found, str) else None


def _timestamp_of(found: Any) -> dt.datetime | None:
    return parse_timestamp(found, zoned=True) if isinstance(found, str) else None


def _local_time_of(found: Any) -> dt.datetime | None:
    return parse_timestamp(found, zoned=False) if isinstance(found, str) else None


def _nothing_of(_found: Any) -> None:
    return None


_READ = {"string": _text_of, "date": _date_of, "timestamp": _timestamp_of, "timestamp_ntz": _local_time_of}
"""What a bound in JSON is as a value, by the type of its column."""


def _whole_text(text: str | None, length: int) -> bool:
    return text is not None and len(text) <= length and len(text.encode()) < _WRITERS_CUT
