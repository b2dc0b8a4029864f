"""Checks of an audit that need no Spark: totals of the staged writes, statistics of their files, partition values.

Statistics are bounds. A check passes if they prove it and fails if they disprove it. What they leave open (a column without
statistics, truncated text, bounds that include deleted rows) is undecided, and never passes.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.audit import BOUNDS, FAIL, RATIOS, AuditCheck, key_of, limits_problem
from airflow_delta.contract.partition_texts import partition_texts_of
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.features.stats_columns import indexed_leaves
from airflow_delta.log.schema.partition_values import parse_timestamp
from airflow_delta.log.schema.types import FLOATING
from airflow_delta.table.audit.audited_table import AuditedTable
from airflow_delta.table.audit.bounds import (
    ColumnStatistics,
    FileStatistics,
    StatisticsReader,
    comparable_value,
    named_column,
    plain,
)
from airflow_delta.table.audit.checks import by_name, check_severity
from airflow_delta.table.audit.unique import StagedKeys, UndecidedKeysError

if TYPE_CHECKING:
    from airflow_delta.log.actions.actions import AddFile, RemoveFile
    from airflow_delta.log.expressions.ast import ColumnReference

MAX_LISTED = 20
"""Partitions that a message lists."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found.

    :param passed: ``None`` if it is not decided.
    :param by: what did not decide it.
    """

    passed: bool | None
    value: Any
    message: str
    by: str = " from statistics"


Check = Callable[[AuditedTable], Finding]


@dataclass(slots=True)
class StatisticsChecks:
    """The checks of an author, validated as far as possible without the table."""

    checks: dict[str, Check] = field(default_factory=dict)
    on_failure: str = FAIL
    on_undecidable: str = FAIL

    def run(self, table: AuditedTable) -> list[AuditCheck]:
        """Return the outcome of every check."""
        outcomes = []
        for name, check in self.checks.items():
            found = check(table)
            undecided = found.passed is None
            outcomes.append(
                AuditCheck(
                    name=name,
                    passed=bool(found.passed),
                    severity=self.on_undecidable if undecided else self.on_failure,
                    value=found.value,
                    message=f"cannot be decided{found.by}: {found.message}" if undecided else found.message,
                )
            )
        return outcomes


def statistics_checks(
    *,
    min_rows: int | str | None = None,
    max_rows: int | str | None = None,
    rows_change: Mapping[str, Any] | None = None,
    max_null_fraction: Mapping[str, Any] | None = None,
    value_range: Mapping[str, Mapping[str, Any]] | None = None,
    freshness: Mapping[str, Any] | None = None,
    partitions: str | None = None,
    unique: Any = None,
    on_failure: str = FAIL,
    on_undecidable: str = FAIL,
) -> StatisticsChecks:
    """Return the checks that an author asks for; numbers may be text, as templates render them.

    :param min_rows: fewest rows to stage.
    :param max_rows: most rows to stage.
    :param rows_change: ``min_ratio``, ``max_ratio``: rows of the table after the commit, divided by those before it.
    :param max_null_fraction: fraction of nulls in the staged rows, at most, by column.
    :param value_range: ``min``, ``max`` of the staged rows, both included, by column. Nulls are ignored.
    :param freshness: age of the newest staged value: ``column``, ``max_age`` (``timedelta`` or seconds), ``now`` (default: the
        time of the check).
    :param partitions: predicate on partition columns: no other partition may get or lose files.
    :param unique: columns of a key that no two staged rows share, nor a staged one and one that stays.
    :param on_failure: what a failed check means: ``fail`` or ``warn``.
    :param on_undecidable: what an undecided check means.
    :raises DeltaIllegalArgumentException: if a check is not valid.
    """
    checks: dict[str, Check] = {}
    for name, least, limit in (("min_rows", True, min_rows), ("max_rows", False, max_rows)):
        if limit is not None and limit != "":
            checks[name] = _rows_check(_whole(name, limit), least=least)
    if rows_change:
        checks["rows_change"] = _change_check(*_limits("rows_change", rows_change, RATIOS, audit_number))
    for column, given in by_name("max_null_fraction", max_null_fraction).items():
        name = f"max_null_fraction.{column}"
        fraction = audit_number(name, given)
        if not 0 <= fraction <= 1:  # every check would pass at a percentage
            raise DeltaIllegalArgumentException(f"{name} must be from 0 to 1, got {given!r}")
        checks[name] = _nulls_check(column, fraction)
    for column, limits in by_name("value_range", value_range).items():
        checks[f"value_range.{column}"] = _range_check(
            column, *_limits(f"value_range.{column}", limits, BOUNDS, lambda _, value: value)
        )
    if freshness:
        checks["freshness"] = _freshness_check(freshness)
    if partitions is not None and partitions != "":
        checks["partitions"] = _partitions_check(partitions)
    if unique:
        checks["unique"] = _unique_check(unique)
    return StatisticsChecks(checks, check_severity("on_failure", on_failure), check_severity("on_undecidable", on_undecidable))


def audit_number(name: str, value: Any) -> decimal.Decimal:
    """Return a number, which a template may have rendered as text.

    :raises DeltaIllegalArgumentException: if the value is not a number.
    """
    try:
        result = decimal.Decimal(str(value).strip()) if not isinstance(value, bool) else decimal.Decimal("NaN")
    except decimal.InvalidOperation:
        result = decimal.Decimal("NaN")
    if not result.is_finite():
        raise DeltaIllegalArgumentException(f"{name} must be a number, got {value!r}")
    return result


def _whole(name: str, value: Any) -> int:
    result = audit_number(name, value)
    if result != result.to_integral_value():
        raise DeltaIllegalArgumentException(f"{name} must be a whole number, got {value!r}")
    return int(result)


def _limits(name: str, given: Any, keys: tuple[str, str], parse: Callable[[str, Any], Any]) -> tuple[Any, Any]:
    if (problem := limits_problem(name, given, keys)) is not None:
        raise DeltaIllegalArgumentException(problem)
    return tuple(None if given.get(key) is None else parse(f"{name}.{key}", given[key]) for key in keys)  # type: ignore[return-value]


# -- rows ---------------------------------------------------------------------------------------------------------------------


def _rows_check(limit: int, *, least: bool) -> Check:
    def check(table: AuditedTable) -> Finding:
        rows = table.rows_staged
        if rows is None:
            return Finding(None, None, "a stage does not know its number of rows")
        passed = rows >= limit if least else rows <= limit
        return Finding(passed, rows, f"{rows} rows staged, at {'least' if least else 'most'} {limit} wanted")

    return check


def _change_check(low: decimal.Decimal | None, high: decimal.Decimal | None) -> Check:
    def check(table: AuditedTable) -> Finding:
        before, after = table.rows_before, table.rows_after
        if before is None or after is None:
            return Finding(None, None, "some files of the table have no row count (COMPUTE STATISTICS adds it)")
        if before == 0:
            return Finding(True, None, f"the table has no rows before the commit and {after} after it")
        ratio = decimal.Decimal(after) / before
        passed = (low is None or ratio >= low) and (high is None or ratio <= high)
        message = f"{before} rows before the commit and {after} after it, {ratio:.4g} times as many; {_allowed(low, high)}"
        return Finding(passed, round(float(ratio), 6), message)

    return check


# -- columns ------------------------------------------------------------------------------------------------------------------


def _statistics(table: AuditedTable, column: ColumnReference) -> Iterator[ColumnStatistics]:
    reader = StatisticsReader(column, table.target.configuration)
    for file in table.staged:
        yield reader.of(FileStatistics.of(file))


def _nulls_check(name: str, limit: decimal.Decimal) -> Check:
    def check(table: AuditedTable) -> Finding:
        rows = nulls = 0
        column = named_column(table, name, what="max_null_fraction")
        for found in _statistics(table, column):
            if found.rows is None or found.nulls is None:
                why = _why_unknown(table, column, _NO_NULL_COUNT)
                return Finding(None, None, f"the statistics of {found.path} have no null count of column {name}. {why}")
            rows, nulls = rows + found.rows, nulls + found.nulls
        fraction = nulls / rows if rows else 0.0
        message = f"{nulls} of {rows} staged rows have no {name} ({fraction:.4g}); at most {limit} allowed"
        return Finding(nulls <= limit * rows, round(fraction, 6), message)

    return check


_OTHERWISE = "SQL checks do not need statistics"
_NOT_INDEXED = (
    "Statistics are kept for the first columns of a table (delta.dataSkippingNumIndexedCols, delta.dataSkippingStatsColumns)"
)
_NO_NULL_COUNT = "The writer of the file left it out, or rows of the file are marked as deleted"
_NO_BOUNDS = "The writer of the file left them out, or they are not values that Python holds"
_NAN = (
    "Numbers of this type have none if the file holds NaN, which is greater than all others, or if its writer does not tell "
    "whether it does"
)


def _why_unknown(table: AuditedTable, column: ColumnReference, otherwise: str) -> str:
    """Return why statistics lack something of a column, and what does not need them."""
    target = table.target
    leaves = indexed_leaves(target.schema, target.partition_columns, target.properties)
    indexed = column.is_partition or any(leaf.physical_path == column.physical_path for leaf in leaves)
    return f"{otherwise if indexed else _NOT_INDEXED}; {_OTHERWISE}"


def _why_unsure(table: AuditedTable, column: ColumnReference, found: ColumnStatistics, name: str) -> str:
    """Return why the bounds of a file do not decide."""
    if found.low is not None and found.high is not None:
        return f"{found.unsure(name)}. {_OTHERWISE}"
    why = _why_unknown(table, column, _NAN if column.data_type.name in FLOATING else _NO_BOUNDS)
    return f"{found.unsure(name)}. {why}"


def _range_check(name: str, low: Any, high: Any) -> Check:
    def check(table: AuditedTable) -> Finding:
        column = named_column(table, name, what="value_range")
        minimum, maximum = (comparable_value(column, limit, what="value_range") for limit in (low, high))
        passed: bool | None = True
        lows: list[Any] = []
        highs: list[Any] = []
        unsure: ColumnStatistics | None = None
        for found in _statistics(table, column):
            if found.empty:
                continue
            verdict = found.inside(minimum, maximum)
            lows += [] if found.low is None else [found.low]
            highs += [] if found.high is None else [found.high]
            if verdict is None:
                unsure = unsure or found
            if verdict is not True and passed is not False:
                passed = verdict
        if passed is None and unsure is not None:
            return Finding(None, None, _why_unsure(table, column, unsure, name))
        if not lows and not highs:
            return Finding(passed, None, f"no staged row has a {name}")
        value = {"min": plain(min(lows, default=None)), "max": plain(max(highs, default=None))}
        return Finding(passed, value, f"{name} is from {value['min']} to {value['max']}; {_allowed(minimum, maximum)}")

    return check


def _allowed(low: Any, high: Any) -> str:
    parts = [f"at {word} {plain(limit)}" for word, limit in (("least", low), ("most", high)) if limit is not None]
    return f"{' and '.join(parts)} allowed"


def _freshness_check(given: Mapping[str, Any]) -> Check:
    known = isinstance(given, Mapping) and not set(given) - {"column", "max_age", "now"}
    if not known or not given.get("column") or given.get("max_age") is None:
        raise DeltaIllegalArgumentException(f"freshness must be a mapping with column, max_age and perhaps now, got {given!r}")
    name, age = given["column"], given["max_age"]
    seconds = age.total_seconds() if isinstance(age, dt.timedelta) else float(audit_number("freshness.max_age", age))

    def check(table: AuditedTable) -> Finding:
        column = named_column(table, str(name), what="freshness")
        if column.data_type.name not in ("timestamp", "timestamp_ntz", "date"):
            raise table.handle.error(
                DeltaIllegalArgumentException,
                f"freshness needs a column of timestamps or dates, {name} of table {table.handle.table} is {column.data_type}",
            )
        now = _now(given.get("now"))
        oldest = now - dt.timedelta(seconds=seconds)
        values = [found for found in _statistics(table, column) if not found.empty]
        proven = [_utc(found.least_high) for found in values if found.least_high is not None]
        newest = max(proven, default=None)
        allowed = f"at most {dt.timedelta(seconds=seconds)} before {now.isoformat()} allowed"
        if newest is not None and newest >= oldest:
            return Finding(True, newest.isoformat(), f"the newest {name} is {newest.isoformat()}; {allowed}")
        unsure = next((found for found in values if found.high is None or _utc(found.high) >= oldest), None)
        if unsure is not None:
            return Finding(None, None, _why_unsure(table, column, unsure, str(name)))
        if not values:
            return Finding(False, None, f"no staged row has a {name}; {allowed}")
        newest = max(_utc(found.high if found.least_high is None else found.least_high) for found in values)
        return Finding(False, newest.isoformat(), f"the newest {name} is {newest.isoformat()}; {allowed}")

    return check


def _now(value: Any) -> dt.datetime:
    if value is None or value == "":
        return dt.datetime.now(dt.UTC)
    if isinstance(value, dt.datetime):
        return _utc(value)
    try:
        return parse_timestamp(str(value), zoned=True)
    except ValueError:
        raise DeltaIllegalArgumentException(f"freshness.now must be a point in time, got {value!r}") from None


def _utc(value: Any) -> dt.datetime:
    """Return a point in time; a date is its midnight, a time without a zone is UTC."""
    if not isinstance(value, dt.datetime):
        value = dt.datetime(value.year, value.month, value.day)
    zoned: dt.datetime = value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)
    return zoned


# -- partitions ---------------------------------------------------------------------------------------------------------------


def _partitions_check(text: str) -> Check:
    def check(table: AuditedTable) -> Finding:
        predicate = table.view.predicate(text)
        if not predicate.partition_only or not predicate.columns:
            names = ", ".join(table.target.partition_columns) or "none"
            raise table.handle.error(
                DeltaIllegalArgumentException,
                f"partitions must be a condition on the partition columns ({names}) of table {table.handle.table}, got {text!r}",
            )
        files: list[AddFile | RemoveFile] = [*table.added, *table.removed.values()]
        touched = {
            tuple(sorted(partition_texts_of(file.partition_values).items())): file.partition_values or {} for file in files
        }
        outside = [
            table.target.named_partition(values)
            for values in touched.values()
            if not predicate.selects_partition(values)  # in every reader's time zone
        ]
        message = f"{len(touched)} partitions touched, {len(outside)} of them not among {text}"
        if outside:
            message += f": {_listed(outside)}"
        return Finding(not outside, outside[:MAX_LISTED], message)

    return check


# -- keys ---------------------------------------------------------------------------------------------------------------------


def _unique_check(given: Any) -> Check:
    try:
        columns, limit = key_of(given)
    except ValueError as error:
        raise DeltaIllegalArgumentException(str(error)) from None

    def check(table: AuditedTable) -> Finding:
        keys = StagedKeys(table, columns, limit)
        try:
            repeated, kept = keys.repeated(), keys.kept()
        except UndecidedKeysError as error:
            return Finding(None, None, str(error), by="")
        found = [f"{keys.shown(repeated)} staged more than once"] if repeated.num_rows else []
        version = f"version {table.version}" if table.version >= 0 else "which is new"
        found += [f"{keys.shown(kept)} in the table already, {version}"] if kept.num_rows else []
        none = f"no key {', '.join(columns)} is staged twice, or in the table already, {version}"
        return Finding(not found, repeated.num_rows + kept.num_rows, "; ".join(found) or none)

    return check


def _listed(partitions: Sequence[Mapping[str, str | None]]) -> str:
    shown = ["[" + ", ".join(f"{name}={value}" for name, value in values.items()) + "]" for values in partitions[:MAX_LISTED]]
    return ", ".join(shown) + (", ..." if len(partitions) > MAX_LISTED else "")
