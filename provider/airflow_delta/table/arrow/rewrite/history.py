"""The source of a MERGE that keeps every version of its rows, as :mod:`airflow_delta.spark.scd2` computes it on Spark.

Rows of the source and versions of the table are one pool of rows; events, runs and versions are numbers of rows in it. Values are
compared by numbers, too: equal ones, nulls among them, have the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_delta.contract.payloads import Json
from airflow_delta.contract.scd2 import (
    ACTION,
    BEGAN,
    ENDED,
    GIVEN,
    HISTORY_DELETE,
    HISTORY_INSERT,
    HISTORY_NOTHING,
    HISTORY_UPDATE,
    OVERLAPS,
    SEEN_AGAIN,
    HistoryArguments,
    HistorySource,
)
from airflow_delta.contract.schema import find_field
from airflow_delta.contract.table_rules import refused_rows
from airflow_delta.contract.zones import zoneless_values
from airflow_delta.exceptions import DeltaIllegalStateException, StagingException
from airflow_delta.log.arrow.arrays import array, repeated, scalar
from airflow_delta.log.arrow.values import readable
from airflow_delta.log.expressions.name_resolution import has_own_order
from airflow_delta.log.schema.types import DataType, StructType, arrow_type, as_nullable, parse_type, struct_of, type_to_json
from airflow_delta.table.arrow.rewrite.conversions import Conversions
from airflow_delta.table.arrow.rewrite.key_columns import parts_of_key, with_one_zero
from airflow_delta.table.arrow.rewrite.merge_source import SourceRows
from airflow_delta.table.arrow.rewrite.new_values import decided
from airflow_delta.table.arrow.rewrite.read_plan import PlanReader
from airflow_delta.table.arrow.rewrite.value_numbers import numbered, value_numbers
from airflow_delta.table.arrow.rewrite.value_texts import text_of_value
from airflow_delta.table.arrow.row_checks import needs_spark
from airflow_delta.table.arrow.source import Source
from airflow_delta.table.expressions.row_expression import columns_of

if TYPE_CHECKING:
    from airflow_delta.contract.request import StageRequest
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.arrow.rewrite.memory import MemoryBound

_AT, _GONE = "__airflow_delta_at", "__airflow_delta_gone"
_WHY = "keeps every version of its rows"


def merged_versions(log: DeltaLog, request: StageRequest, history: HistoryArguments, rows: Any, memory: MemoryBound) -> Source:
    """Return what a MERGE that keeps a history merges: the versions of the source's keys that begin, change and go.

    :param rows: of the author, as of :class:`~airflow_delta.table.arrow.rewrite.merge_source.SourceRows`.
    :raises DeltaIllegalArgumentException: if the source does not say what to do.
    :raises DeltaIllegalStateException: if the versions of a key in the table overlap.
    :raises DeltaUnsupportedOperationException: if only Spark compares keys or values of some type, or computes ``effective_at``,
        or the versions take more memory than they may.
    """
    plan = request.rewrite
    if plan is None or plan.predicate is not None or request.schema_string is None:
        raise request.error(StagingException, f"The history of stage {request.stage} was not planned with all rows of the table.")
    if zoneless := next(iter(zoneless_values(plan)), None):
        raise needs_spark(
            request, f"{_WHY}, and has partitions whose {zoneless} lacks a time zone: it is in that of Spark's session"
        )
    return _History(log, request, history, rows, memory).source()


class _History:
    """The versions of the keys of a source.

    :ivar given: rows of the source in the types of the table, with :data:`_AT` and :data:`_GONE`.
    :ivar known: rows of the table.
    """

    def __init__(self, log: DeltaLog, request: StageRequest, history: HistoryArguments, rows: Any, memory: MemoryBound) -> None:
        self._log, self._request, self._history, self._memory = log, request, history, memory
        self.names = history.columns
        schema = json.loads(request.schema_string or "")
        self._rules = HistorySource(self.names, schema, request.table, request.read_version)
        self._schema: StructType = struct_of(schema)
        self._period = arrow_type(self._type(self.names.valid_from))
        self._check_comparable()
        self.given = self._events_given(SourceRows(rows, request, memory))
        self.known = self._read()
        self._source_rows, self._known_rows = self.given.num_rows, self.known.num_rows
        # Numbers of equal values of all rows, those of the source first.
        self._key = self._numbers(self.names.keys)
        self._tracked = self._numbers(self.names.tracked)
        self._values = numbered([self._tracked, self._numbers(self.names.others)])
        self._at = _ticks(self.given.column(_AT))
        self._gone = self.given.column(_GONE)
        self._start, self._end = (_ticks(self.known.column(name)) for name in (self.names.valid_from, self.names.valid_to))

    def source(self) -> Source:
        """Return the rows to merge, with what is to be done with each."""
        self._check_given()
        self._check_known()
        found = list(self._merged(self._versions(self._events())))
        if not self._history.full_snapshot:  # which has read everything
            found.append(self._to_leave())
        schema = found[0].schema
        return Source(schema, iter(found))

    # -- rows -----------------------------------------------------------------------------------------------------------------

    def _type(self, name: str) -> DataType:
        field = self._schema.find(name)
        assert field is not None, f"the plan has found {name}"
        return field.data_type

    def _check_comparable(self) -> None:
        for name in self.names.given:
            field = self._schema.find(name)
            if field is not None and has_own_order([field]):
                raise needs_spark(
                    self._request, f"{_WHY}, and {name} has a collation, or is a char, which Spark compares in its own way"
                )

    def _events_given(self, source: SourceRows) -> pa.RecordBatch:
        """Return the source rows in the types of the table, with their times."""
        self._rules.check_columns(source.rows.schema.names)
        resolve = columns_of(source.struct)
        since, deleted = self._history.effective_at, self._history.deleted
        period = self._type(self.names.valid_from)
        at = decided(f"CAST(({since}) AS {period})", resolve, self._request, f"{_WHY}, since {since}")
        text = "false" if deleted is None else deleted
        gone = decided(f"CAST(({text}) AS BOOLEAN)", resolve, self._request, f"{_WHY}, deleted by {text}")
        fields: list[Json] = []
        values: list[pa.Array] = []
        for name in self.names.given:
            field = find_field(source.schema, name)
            assert field is not None, f"the source has {name}"
            fields.append({**field, "name": name})
            values.append(source.rows.column(str(field["name"])))
        for name, found in ((_AT, at), (_GONE, gone)):
            fields.append({"name": name, "type": type_to_json(found.data_type), "nullable": True, "metadata": {}})
            values.append(found.values(source.rows))
        target = self._rules.events_schema({"type": "struct", "fields": fields}, _AT, _GONE)
        wanted = {str(field["name"]): parse_type(field["type"]) for field in target["fields"]}
        conversions = Conversions(self._request, _WHY)
        aligned = [
            conversions.between(parse_type(field["type"]), wanted[str(field["name"])], str(field["name"]))(found)
            for field, found in zip(fields, values, strict=True)
        ]
        aligned[-1] = pc.fill_null(aligned[-1], scalar(False))
        return pa.RecordBatch.from_arrays(aligned, names=[str(field["name"]) for field in fields])

    def _read(self) -> pa.RecordBatch:
        """Return the versions of the table: those of the source's keys, or all for a full snapshot."""
        plan = self._request.rewrite
        assert plan is not None, "it was planned with rows"
        names = [str(name) for name in self.names.written]
        wanted = {name: [pc.unique(part) for part in parts_of_key(self.given.column(name))] for name in self.names.keys}
        kept: list[pa.RecordBatch] = []
        size = 0
        for _, rows in PlanReader(self._log, plan, None, self._memory).columns(names, plan.files, None):
            found = rows.select(names)
            if not self._history.full_snapshot:
                for name, values in wanted.items():
                    parts = zip(parts_of_key(found.column(name)), values, strict=True)
                    masks = [pc.is_in(part, value_set=known) for part, known in parts]
                    found = found.filter(reduce(pc.and_, masks))
            if found.num_rows:
                kept.append(found)
                size += found.nbytes
            what = "The table" if self._history.full_snapshot else "What the table has of the source's keys"
            self._memory.check(size, what, known=False)
        schema = pa.schema([pa.field(name, arrow_type(as_nullable(self._type(name)))) for name in names])
        if not kept:
            return _empty(schema)
        table = pa.Table.from_batches([batch.cast(schema) for batch in kept], schema).combine_chunks()
        rows = table.to_batches()[0]
        if self._history.full_snapshot:
            return rows
        # Of several keys, each may be one of the source's, and all together not.
        keys = self._numbers_of([pa.concat_arrays([self.given.column(n), rows.column(n)]) for n in self.names.keys])
        own = keys.slice(0, self.given.num_rows)
        return rows.filter(pc.is_in(keys.slice(self.given.num_rows), value_set=own))

    def _pool(self, name: str) -> pa.Array:
        """Return a column of all rows."""
        return pa.concat_arrays([self.given.column(name), self.known.column(name)])

    def _numbers(self, names: Sequence[str]) -> pa.Array:
        """Return a number for each row: the same for rows of equal values."""
        return (
            self._numbers_of([self._pool(name) for name in names]) if names else _zeros(self.given.num_rows + self.known.num_rows)
        )

    @staticmethod
    def _numbers_of(columns: Sequence[pa.Array]) -> pa.Array:
        return numbered([value_numbers(column) for column in columns])

    # -- events: key, time, kind, whether it is gone, row with its values -------------------------------------------------------

    def _check_given(self) -> None:
        """Refuse source rows that do not say what to do."""
        count = self._source_rows
        at, gone = self._at, self._gone
        key = self._key.slice(0, count)
        says = pc.if_else(gone, scalar(-1, pa.int64()), self._values.slice(0, count))
        same = numbered([key, value_numbers(at)])
        different = numbered([same, pc.add(says, scalar(1, pa.int64()))])
        rows = _firsts(different)
        per_time = pc.value_counts(same.take(rows)).field("counts")
        timeless = pc.is_null(at.take(_firsts(same))).true_count
        times = (
            readable(_times(array([pc.min(at).as_py(), pc.max(at).as_py()], pa.int64()), self._period)) if count else [None, None]
        )
        ambiguous = pc.greater(per_time, scalar(1, pa.int64())).true_count
        self._rules.check_events(len(rows), ambiguous, timeless, (times[0], times[1]), full_snapshot=self._history.full_snapshot)

    def _check_known(self) -> None:
        """Refuse versions of the table that overlap."""
        key, start, end = self._key.slice(self._source_rows), self._start, self._end
        order = _sorted([(key, "ascending"), (_first_if_null(start), "ascending")])
        key, start, end = key.take(order), start.take(order), end.take(order)
        count = len(order)
        if not count:
            return
        bad = pc.or_kleene(pc.is_null(start), pc.less_equal(end, start))
        bad = pc.fill_null(bad, scalar(False))
        if count > 1:
            same = pc.equal(key.slice(1), key.slice(0, count - 1))
            following, before_end, begin = start.slice(1), end.slice(0, count - 1), start.slice(0, count - 1)
            wrong = pc.or_(
                pc.fill_null(pc.less_equal(following, begin), scalar(False)),
                pc.or_(pc.is_null(before_end), pc.fill_null(pc.greater(before_end, following), scalar(False))),
            )
            wrong = pc.and_(same, pc.and_(wrong, pc.is_valid(following)))
            bad = pc.or_(bad, pa.concat_arrays([wrong, array([False], pa.bool_())]))
        at = pc.indices_nonzero(bad)
        if len(at):
            row = self.known.slice(order[at[0].as_py()].as_py(), 1)
            values = [text for name in self.names.keys if (text := text_of_value(row.column(name), self._type(name))) is not None]
            raise self._request.error(
                DeltaIllegalStateException,
                f"{OVERLAPS}: {', '.join(values)}{refused_rows(self._request.table, self._request.read_version)}",
            )

    def _events(self) -> pa.RecordBatch:
        """Return events in the order of keys and times, one for each."""
        first = self._source_rows
        parts = [self._event_rows(array(range(first), pa.int64()), self._at, self._gone, GIVEN)]
        if self._history.full_snapshot:
            keys = self._key.slice(first)
            missing = pc.indices_nonzero(pc.invert(pc.is_in(keys, value_set=self._key.slice(0, first)))).cast(pa.int64())
            at = pa.repeat(pc.max(self._at), len(missing))
            rows = pc.add(missing, scalar(first, pa.int64()))
            parts.append(self._event_rows(rows, at, repeated(True, len(missing)), GIVEN))
        every = array(range(first, first + self._known_rows), pa.int64())
        parts.append(self._event_rows(every, self._start, repeated(False, len(every)), BEGAN))
        if self.names.confirmed is not None:
            seen = self.known.column(self.names.confirmed)
            at = _ticks(pc.list_flatten(seen))
            if at.null_count:
                raise needs_spark(self._request, f"{_WHY}, and {self.names.confirmed} has null times")
            rows = every.take(pc.list_parent_indices(seen))
            parts.append(self._event_rows(rows, at, repeated(False, len(at)), SEEN_AGAIN))
        ended = pc.is_valid(self._end)
        parts.append(self._event_rows(every.filter(ended), self._end.filter(ended), repeated(True, ended.true_count), ENDED))
        events = pa.Table.from_batches(parts).combine_chunks()
        if not events.num_rows:
            return parts[0]
        (batch,) = events.to_batches()
        batch = batch.take(_sorted([(batch.column(name), how) for name, how in _ORDER]))
        return batch.filter(pc.or_(_changes(batch.column("key")), _changes(batch.column("at"))))

    def _event_rows(self, rows: pa.Array, at: pa.Array, gone: pa.Array, kind: int) -> pa.RecordBatch:
        columns = [self._key.take(rows), at, repeated(kind, len(rows), pa.int64()), gone, rows]
        return pa.RecordBatch.from_arrays(columns, names=["key", "at", "kind", "gone", "row"])

    # -- versions: row with the values, begin, end, times at which it was seen again ---------------------------------------------

    def _versions(self, events: pa.RecordBatch) -> pa.RecordBatch:
        """Return the versions that events make."""
        key, at, gone, row = (events.column(name) for name in ("key", "at", "gone", "row"))
        state = pc.if_else(gone, scalar(-1, pa.int64()), self._tracked.take(row))
        begins = pc.or_(_changes(key), _changes(state))
        heads = pc.indices_nonzero(begins).cast(pa.int64())
        first = events.take(heads)
        count = len(heads)
        ends = pa.nulls(count, pa.int64())
        if count > 1:
            same = pc.equal(first.column("key").slice(1), first.column("key").slice(0, count - 1))
            following = pc.if_else(same, first.column("at").slice(1), pa.nulls(1, pa.int64())[0])
            ends = pa.concat_arrays([following, pa.nulls(1, pa.int64())])
        # Those seen again lie between the heads: as many in each run as events without its head.
        until = pa.concat_arrays([heads.slice(1), array([events.num_rows], pa.int64())]) if count else heads
        lengths = pc.subtract(pc.subtract(until, heads), scalar(1, pa.int64()))
        offsets = pa.concat_arrays([array([0], pa.int64()), pc.cumulative_sum(lengths)]).cast(pa.int32())
        seen = pa.ListArray.from_arrays(offsets, at.filter(pc.invert(begins)))
        made = pa.RecordBatch.from_arrays(
            [first.column("row"), first.column("at"), ends, seen], names=["row", "at", "end", "seen"]
        )
        return made.filter(pc.invert(first.column("gone")))

    def _merged(self, versions: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield what is to do with the versions of the table, and with those that it does not have."""
        first = self._source_rows
        row, at = versions.column("row"), versions.column("at")
        every = array(range(first, first + self._known_rows), pa.int64())
        places = numbered(
            [
                pa.concat_arrays([self._key.take(row), self._key.take(every)]),
                value_numbers(pa.concat_arrays([at, self._start])),
            ]
        )
        mine, theirs = places.slice(0, len(row)), places.slice(len(row))
        found = pc.index_in(mine, value_set=theirs)  # the version of the table that begins then
        is_new = pc.is_null(found)
        same = self._is_same(versions, found)
        action = pc.if_else(is_new, scalar(HISTORY_INSERT), scalar(HISTORY_UPDATE))
        written = versions.filter(pc.invert(same))
        columns = [self._pool(name).take(written.column("row")) for name in self.names.given]
        # Spark groups by keys, which gives all zeros one sign.
        columns[: len(self.names.keys)] = map(with_one_zero, columns[: len(self.names.keys)])
        ends = written.column("end")
        columns += [_times(written.column("at"), self._period), _times(ends, self._period)]
        if self.names.current is not None:
            columns.append(pc.is_null(ends))
        if self.names.confirmed is not None:
            kind = arrow_type(as_nullable(self._type(self.names.confirmed)))
            seen = written.column("seen")
            if pa.types.is_date32(self._period):
                seen = seen.cast(pa.list_(pa.int32()))
            columns.append(seen.cast(kind))
        names = [*self.names.written, ACTION]
        yield pa.RecordBatch.from_arrays([*columns, action.filter(pc.invert(same))], names=names)
        gone = self.known.filter(pc.invert(pc.is_in(theirs, value_set=mine))).select(list(self.names.written))
        yield pa.RecordBatch.from_arrays([*gone.columns, repeated(HISTORY_DELETE, gone.num_rows)], names=names)

    def _is_same(self, versions: pa.RecordBatch, found: pa.Array) -> pa.BooleanArray:
        """Return which versions the table has already.

        :param found: the version of the table that begins when each does; null if none does.
        """
        names, end = self.names, versions.column("end")
        values = self._values.slice(self._source_rows).take(found)
        same = pc.fill_null(pc.equal(self._values.take(versions.column("row")), values), scalar(False))
        same = pc.and_(same, _equal(end, self._end.take(found)))
        if names.current is not None:
            same = pc.and_(same, _equal(pc.is_null(end), self.known.column(names.current).take(found)))
        if names.confirmed is not None:
            theirs = self.known.column(names.confirmed)
            ticks = theirs.cast(pa.list_(pa.int64())) if pa.types.is_timestamp(self._period) else _days(theirs)
            both = zip(versions.column("seen").to_pylist(), ticks.take(found).to_pylist(), strict=True)
            same = pc.and_(same, array([one == other for one, other in both], pa.bool_()))
        return pc.and_(same, pc.is_valid(found))

    def _to_leave(self) -> pa.RecordBatch:
        """Return a row to do nothing with for each key of the source: its versions have been read."""
        rows = _firsts(self._key.slice(0, self._source_rows))
        columns = [
            self.given.column(name).take(rows)
            if name in self.names.keys
            else pa.nulls(len(rows), arrow_type(as_nullable(self._type(name))))
            for name in self.names.written
        ]
        return pa.RecordBatch.from_arrays([*columns, repeated(HISTORY_NOTHING, len(rows))], names=[*self.names.written, ACTION])


_ORDER = (("key", "ascending"), ("at", "ascending"), ("kind", "descending"))


def _ticks(times: pa.Array) -> pa.Array:
    """Return times as numbers: microseconds, or days."""
    return times.cast(pa.int32()).cast(pa.int64()) if pa.types.is_date32(times.type) else times.cast(pa.int64())


def _times(ticks: pa.Array, period: pa.DataType) -> pa.Array:
    """Return numbers as times."""
    return (ticks.cast(pa.int32()) if pa.types.is_date32(period) else ticks).cast(period)


def _days(lists: pa.Array) -> pa.Array:
    return lists.cast(pa.list_(pa.int32())).cast(pa.list_(pa.int64()))


def _zeros(count: int) -> pa.Array:
    return repeated(0, count, pa.int64())


def _firsts(numbers: pa.Array) -> pa.Array:
    """Return the places of the first of each number."""
    return pc.index_in(pc.unique(numbers), value_set=numbers).cast(pa.int64())


def _sorted(columns: Sequence[tuple[pa.Array, str]]) -> pa.Array:
    """Return the places of rows in the order of columns."""
    names = [str(number) for number in range(len(columns))]
    rows = pa.RecordBatch.from_arrays([column for column, _ in columns], names=names)
    keys = list(zip(names, (how for _, how in columns), strict=True))
    return pc.sort_indices(rows, sort_keys=keys).cast(pa.int64())


def _first_if_null(start: pa.Array) -> pa.Array:
    return pc.fill_null(start, scalar(-(1 << 63), pa.int64()))


def _changes(column: pa.Array) -> pa.BooleanArray:
    """Return where a column without nulls differs from the row before."""
    if not len(column):
        return pa.nulls(0, pa.bool_())
    differs = pc.not_equal(column.slice(1), column.slice(0, len(column) - 1))
    return pa.concat_arrays([array([True], pa.bool_()), differs])


def _equal(one: pa.Array, other: pa.Array) -> pa.BooleanArray:
    """Return where values are equal, or both are null."""
    return pc.or_(pc.fill_null(pc.equal(one, other), scalar(False)), pc.and_(pc.is_null(one), pc.is_null(other)))


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
