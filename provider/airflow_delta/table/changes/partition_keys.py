"""The partitions whose rows a commit has changed, as keys of asset events.

They are read from the commit's entry in the log, not from what a task remembers: a retry of a commit that was written emits the
same. Files without ``dataChange`` (OPTIMIZE) count for nothing, and what the stages of a transaction undo among themselves is not
in the entry. The cost depends on the commit, never on the table.
"""

from __future__ import annotations

import datetime as dt
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_delta.contract.partition_events import MANY, KeyField, PartitionEvents
from airflow_delta.exceptions import DeltaAnalysisException, DeltaIllegalArgumentException
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import AddCDCFile, AddFile, Metadata, RemoveFile
from airflow_delta.log.actions.decode import DecodedCommit, decode_commit
from airflow_delta.log.features.column_mapping import mode, physical_partition_columns
from airflow_delta.log.schema.partition_values import parse_partition_value
from airflow_delta.log.schema.suggestions import known_names
from airflow_delta.log.schema.types import INTEGRAL, ArrayType, MapType, StructField, StructType
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.table.changes.find import change_files

if TYPE_CHECKING:
    from airflow_delta.log.actions.actions import Action
    from airflow_delta.log.delta_log import DeltaLog

logger = logging.getLogger(__name__)

_MOMENTS = ("timestamp", "timestamp_ntz")
_DIRECTIVE = lazy_pattern(r"%[-_0^#]*\d*[EO]?(.)", re.DOTALL)
"""What ``strftime`` replaces, with the flags of the GNU C library."""

_SECONDS = {**dict.fromkeys("SsTXcr+", 1), **dict.fromkeys("MR", 60), **dict.fromkeys("HIklpP", 3600)}
"""Seconds after which a letter of ``strftime`` may give another text; a day for all others."""

_DAY = 86_400
_RANGE = 100_000
"""Values of a range that are tried, where that is more than ``max_keys``: a format may give few keys for very many of them."""


ReadColumn = Callable[..., Iterable[tuple[AddFile, Any]]]
"""Reads the distinct values of a column in some files (:func:`airflow_delta.table.changes.column_values.column_values`)."""


class _Stats(msgspec.Struct, rename="camel"):
    num_records: int | None = None
    min_values: dict[str, msgspec.Raw] = {}
    max_values: dict[str, msgspec.Raw] = {}
    null_count: dict[str, msgspec.Raw] = {}


_stats = msgspec.json.Decoder(_Stats)


class _Untold(Exception):
    """The partitions of a commit are unknown; the message is the end of a sentence about it."""


def changed_partitions(log: DeltaLog, version: int, events: PartitionEvents, *, read: ReadColumn) -> tuple[str, ...]:
    """Return the keys of the partitions whose rows a version has changed; :data:`MANY` alone if they are too many, or unknown.

    Unknown are partitions in another writer's spelling, and dates and times beyond year 9999.

    :param read: reads a column of files, if ``events`` is ``exact``, or statistics lack it.
    :raises FileNotFoundError: if the log no longer holds the version.
    """
    return keys_of_commit(log, decode_commit(version, log.read_commit(version), table=log.uri), events, read=read)


def keys_of_commit(log: DeltaLog, commit: DecodedCommit, events: PartitionEvents, *, read: ReadColumn) -> tuple[str, ...]:
    """Return the keys of a commit that is already decoded, as :func:`changed_partitions` does."""
    metadata = commit.metadata[-1] if commit.metadata else log.snapshot.metadata
    if not _changed(commit):
        return ()
    bound = BoundKeys.of(events, metadata, log.uri)
    try:
        keys = events.keys(_keys(log, commit, bound, metadata, read))
    except _Untold as untold:
        events.refuse_many(str(untold))
        logger.warning("Version %s of table %s %s: its event has the key %r.", commit.version, log.uri, untold, MANY)
        keys = None
    return (MANY,) if keys is None else keys


def check_partition_keys(events: PartitionEvents) -> Callable[[Metadata, Sequence[Action]], None]:
    """Return a check of a commit before it is written: of its keys, as far as they are known without reading files."""

    def check(metadata: Metadata, actions: Sequence[Action]) -> None:
        files = [action for action in actions if isinstance(action, AddFile | RemoveFile) and action.data_change]
        if not files:
            return
        bound = BoundKeys.of(events, metadata, metadata.name or metadata.id)
        if bound.column is not None and events.exact:
            return
        telling = bound.telling(files, [action for action in actions if isinstance(action, AddCDCFile)])
        try:
            events.keys(key for file in telling for key in bound.keys_of_file(file) or ())
        except _Untold as untold:
            events.refuse_many(str(untold))

    return check


def _keys(log: DeltaLog, commit: DecodedCommit, bound: BoundKeys, metadata: Metadata, read: ReadColumn) -> Iterator[str]:
    column = bound.column
    if column is not None and bound.events.exact:
        for kind, changed_files in change_files(log, commit, 0).kinds().items():
            marked = kind in ("inserted_rows", "deleted_rows")
            for file, value in read(
                log, changed_files, metadata=metadata, version=commit.version, column=column.name, deleted=marked
            ):
                yield from bound.keys_of_value(file, value)
        return
    unknown: list[AddFile] = []
    for changed in bound.telling(_changed(commit), commit.cdcs):
        keys = bound.keys_of_file(changed)
        if keys is None and not isinstance(changed, AddCDCFile):
            unknown.append(changed.as_add() if isinstance(changed, RemoveFile) else changed)
        yield from keys or ()
    if column is not None and unknown:
        for file, value in read(log, unknown, metadata=metadata, version=commit.version, column=column.name, deleted=False):
            yield from bound.keys_of_value(file, value)


def _changed(commit: DecodedCommit) -> list[AddFile | RemoveFile]:
    return [*(add for add in commit.adds if add.data_change), *(remove for remove in commit.removes if remove.data_change)]


@dataclass(frozen=True, kw_only=True)
class BoundKeys:
    """Keys for one table.

    :param partitions: name, physical name and field of each partition column.
    :param column: the column of the keys that the table is not partitioned by.
    """

    events: PartitionEvents
    fields: Sequence[KeyField]
    partitions: Sequence[tuple[str, str, StructField]]
    column: StructField | None
    physical: str

    @classmethod
    def of(cls, events: PartitionEvents, metadata: Metadata, table: str) -> BoundKeys:
        """Return the keys for a table.

        :raises DeltaIllegalArgumentException: if a column is not there, or keys cannot be made of it.
        """

        def refused(problem: str) -> DeltaIllegalArgumentException:
            return DeltaIllegalArgumentException(f"partition_events: {problem} (table {table}).", table=table)

        schema, by = TableDefinition.of(metadata).schema, metadata.partition_columns
        fields, named = [], [events.column] if events.column is not None else []
        for field in events.fields(by):
            if field.column is not None:
                found = schema.find(field.column)
                if found is None:
                    raise refused(f"there is no column {field.column!r}. {known_names(field.column, schema.names)}")
                field = field._replace(column=found.name)
                named.append(found.name)
            fields.append(field)
        parts = zip(schema.select(by), physical_partition_columns(metadata), strict=True)
        partitions = [(field.name, physical, field) for field, physical in parts]
        names = {name.lower() for name in by}
        others = list(dict.fromkeys(name for name in named if name.lower() not in names))
        if len(others) > 1:
            raise refused(f"of the columns {', '.join(others)}, at most one may be none that the table is partitioned by")
        if not others and not by:
            raise refused("the table has no partition columns. Name a column, such as {event_time:%Y-%m-%d}")
        column = schema.find(others[0]) if others else None
        if others and column is None:
            raise refused(f"there is no column {others[0]!r}. {known_names(others[0], schema.names)}")
        forms = [field.format for field in fields if column is not None and field.column == column.name]
        if column is not None and (problem := _problem_of(column, forms, events)) is not None:
            raise refused(problem)
        mapped = column is not None and mode(metadata.configuration) != "none"
        physical = "" if column is None else column.physical_name if mapped else column.name
        return cls(events=events, fields=fields, partitions=partitions, column=column, physical=physical)

    def telling(
        self, files: Sequence[AddFile | RemoveFile], cdcs: Sequence[AddCDCFile]
    ) -> Sequence[AddFile | RemoveFile | AddCDCFile]:
        """Return which actions of a commit tell its keys.

        A rewritten file also holds rows that did not change, a file of the change data does not; but it has no statistics.
        """
        return cdcs if self.column is None and cdcs else files

    def keys_of_file(self, file: AddFile | RemoveFile | AddCDCFile) -> Iterable[str] | None:
        """Return the keys of a file by its action; ``None`` if that does not tell the range of the column."""
        if self.column is None:
            return self.keys_of_values(file.partition_values, None, None)
        stats = None if isinstance(file, AddCDCFile) else file.stats
        if (ends := _range(stats, self.physical, self.column)) is None:
            return None
        low, high, nulls = ends
        # One by one: a range may have more keys than memory holds, and only the first of them are looked at.
        return chain(
            () if low is None else self.keys_of_values(file.partition_values, low, high),
            self.keys_of_values(file.partition_values, None, None) if nulls else (),
        )

    def keys_of_value(self, file: AddFile, value: Any) -> Iterator[str]:
        """Yield the keys of a partition for a value of the column, as it was read.

        :raises _Untold: if Python cannot hold the value.
        """
        column = self.column
        if column is not None and isinstance(value, str) and str(column.data_type) in (*_MOMENTS, "date"):
            raise _Untold(f"has a value of {column.name!r} that Python cannot hold, {value}")
        return self.keys_of_values(file.partition_values, value, value)

    def keys_of_values(self, partition_values: Mapping[str, str | None] | None, low: Any, high: Any) -> Iterator[str]:
        """Yield the keys of a partition, for all values of the column from ``low`` to ``high``."""
        values: dict[str, Any] = {}
        for name, physical, field in self.partitions:
            if partition_values is None or physical not in partition_values:
                raise _Untold("does not tell the partition of a file")
            values[name] = _typed(partition_values[physical], field)
        column = self.column
        if callable(self.events.key):
            if column is not None:
                values[column.name] = (low, high)
            made: Any = self.events.key(values)
            if made is not None:
                yield from made if isinstance(made, Iterable) and not isinstance(made, str) else (made,)
        elif column is None:
            yield self._spelled(values)
        else:
            for value in self._between(column.name, low, high):
                yield self._spelled({**values, column.name: value})

    def _spelled(self, values: Mapping[str, Any]) -> str:
        try:
            return self.events.spelled(self.fields, values)
        except (ValueError, TypeError, OverflowError) as error:
            for name, _, field in self.partitions:
                if isinstance(values[name], str) and str(field.data_type) != "string":
                    raise _Untold(f"has a value of {name!r} in another writer's spelling, which has no such format") from error
            raise DeltaIllegalArgumentException(
                f"partition_events: the key {self.events.key!r} has a format that its values do not have: {error}."
            ) from error

    def _between(self, name: str, low: Any, high: Any) -> Iterator[Any]:
        """Yield values of a column such that each key of the range is of one of them.

        :raises _Untold: if there are too many.
        """
        if not isinstance(low, dt.date | int) or low == high:
            return iter((low,))
        step: Any = 1
        if isinstance(low, dt.datetime):
            low, high = sorted(map(self.events.wall_clock, (low, high)))  # there, days have 24 hours
            letters = _letters(field.format for field in self.fields if field.column == name)
            step = dt.timedelta(seconds=min((_SECONDS.get(letter, _DAY) for letter in letters), default=_DAY))
        elif isinstance(low, dt.date):
            step = dt.timedelta(days=1)
        if (high - low) // step > max(_RANGE, self.events.max_keys):
            raise _Untold(f"has a file with too many values of {name!r} between its least and its greatest one")
        return _steps(low, high, step)


def _problem_of(column: StructField, forms: Sequence[str], events: PartitionEvents) -> str | None:
    """Return why a column that the table is not partitioned by makes no keys.

    :param forms: its formats in a template; empty for a function.
    """
    kind = str(column.data_type)
    if isinstance(column.data_type, StructType | ArrayType | MapType):
        return f"the values of {column.name!r} ({kind}) cannot be part of a key"
    if events.exact or not forms:
        return None
    if kind in _MOMENTS and not all(forms):
        return f"say how to spell the times of {column.name!r}, such as {{{column.name}:%Y-%m-%d}}"
    if kind in _MOMENTS and "f" in _letters(forms):
        return f"the microseconds of {column.name!r} between two others are too many. Pass exact=True"
    if kind not in (*_MOMENTS, "date") and getattr(column.data_type, "name", "") not in INTEGRAL:
        return f"the values of {column.name!r} ({kind}) between two others are not known. Pass exact=True"
    return None


def _letters(forms: Iterable[str]) -> list[str]:
    """Return the letters that ``strftime`` replaces in some formats."""
    return [found[1] for form in forms for found in _DIRECTIVE.finditer(form)]


def _steps(low: Any, high: Any, step: Any) -> Iterator[Any]:
    while low < high:
        yield low
        try:
            low += step
        except OverflowError:
            break
    yield high


def _typed(text: str | None, field: StructField) -> Any:
    try:
        return parse_partition_value(text, field.data_type)
    except DeltaAnalysisException:  # another writer's spelling
        return text


def _range(stats: str | None, physical: str, column: StructField) -> tuple[Any, Any, bool] | None:
    """Return the least and greatest value of a column in a file, and whether it has nulls; ``None`` if that is not certain."""
    try:
        found = _stats.decode(stats) if stats else _Stats()
        nulls, records = int(bytes(found.null_count.get(physical, b"-1"))), found.num_records
        if nulls < 0 or records is None or nulls > records:
            return None
        if nulls == records:
            return None, None, nulls > 0
        low, high = (_bound(bytes(ends[physical]), column) for ends in (found.min_values, found.max_values))
    except (msgspec.MsgspecError, DeltaAnalysisException, ValueError, KeyError, UnicodeError):
        return None
    return (low, high, nulls > 0) if low is not None and high is not None and low <= high else None


def _bound(raw: bytes, column: StructField) -> Any:
    value = msgspec.json.decode(raw)
    if getattr(column.data_type, "name", "") in INTEGRAL:
        return value if isinstance(value, int) and not isinstance(value, bool) else None
    return parse_partition_value(value, column.data_type) if isinstance(value, str) else None
