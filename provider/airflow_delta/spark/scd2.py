"""The source of a MERGE that keeps every version of its rows: which versions begin, change and go.

The versions of a key are computed again from those that the table has and the new source rows: events in the order of time, of
which those that change something begin a version, and the next such event ends it.
"""

from __future__ import annotations

import json
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sf

from airflow_delta.contract.payloads import Json
from airflow_delta.contract.request import StageRequest
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
    HistoryColumns,
    HistorySource,
)
from airflow_delta.contract.schema import find_field
from airflow_delta.exceptions import DeltaIllegalStateException, StagingException
from airflow_delta.spark.align import align, spark_name, spark_type, spark_value
from airflow_delta.spark.read import read_scan_plan
from airflow_delta.spark.row_errors import RowChecks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

_AT, _GONE, _VALUES, _RANK, _BEGINS, _RUN, _SEEN, _NEXT, _OK, _KEY = (
    f"__airflow_delta_{name}" for name in ("at", "gone", "values", "rank", "begins", "run", "seen", "next", "ok", "key")
)


def versions_to_merge(spark: SparkSession, request: StageRequest, history: HistoryArguments, source: DataFrame) -> DataFrame:
    """Return what a MERGE that keeps a history merges: the versions of the source's keys that begin, change and go.

    :param source: rows of the author.
    """
    plan = request.rewrite
    if plan is None or plan.predicate is not None or request.schema_string is None:
        raise request.error(StagingException, f"The history of stage {request.stage} was not planned with all rows of the table.")
    schema = json.loads(request.schema_string)
    computed = History(history.columns, schema, table=request.table, version=request.read_version)
    return computed.source(
        read_scan_plan(spark, plan),
        source,
        effective_at=history.effective_at,
        deleted=history.deleted,
        full_snapshot=history.full_snapshot,
    )


class History:
    """Computes the versions of the keys of a source.

    :param schema: of the table.
    :param table: its URI, for messages.
    :param version: the version read, for messages.
    """

    def __init__(self, columns: HistoryColumns, schema: Json, *, table: str, version: int) -> None:
        self.columns = columns
        self._schema = schema
        self._rules = HistorySource(columns, schema, table, version)
        self._checks = RowChecks(table, version)
        self._period = spark_type(columns.period_type)

    def source(
        self, table: DataFrame, source: DataFrame, *, effective_at: str, deleted: str | None = None, full_snapshot: bool = False
    ) -> DataFrame:
        """Return the rows to merge, with :data:`~airflow_delta.contract.scd2.ACTION`; one or more for each key of it.

        :param table: the rows of the table.
        :param effective_at: Spark SQL over a source row: the time since when it is so.
        :param deleted: Spark SQL over a source row: it ends the last version of its key.
        :param full_snapshot: keys that the source does not have have ended.
        :raises SchemaMismatchException: if the source lacks a column, or a value could be lost.
        :raises DeltaIllegalArgumentException: if the source does not say what to do.
        :raises DeltaIllegalStateException: if the versions of a key in the table overlap.
        """
        new = self._new_events(source, effective_at, deleted)
        self._check(new, full_snapshot=full_snapshot)
        new = new.dropDuplicates([*self.columns.keys, _AT])
        touched = new.select(*self._names(self.columns.keys)).distinct()
        if full_snapshot:
            new = new.unionByName(self._missing(table, new))
        else:
            table = self._joined(table, touched, "left_semi")
        # Used in several places: read once, and the plan stays small.
        table = self._checked(table).localCheckpoint(eager=False)
        rows = self._merged(table, self._versions(self._known_events(table).unionByName(new)))
        if not full_snapshot:  # which has read everything
            rows = rows.unionByName(self._to_leave(touched))
        try:
            return rows.localCheckpoint(eager=True)
        except Exception as failure:
            if (error := self._checks.error_in(failure)) is None:
                raise
            raise error from failure

    # -- events: key, time, whether it is gone, values --------------------------------------------------------------------------

    def _new_events(self, source: DataFrame, effective_at: str, deleted: str | None) -> DataFrame:
        """Return the source rows as events in the types of the table, computed once: another evaluation could differ."""
        self._rules.check_columns(source.columns)
        gone = sf.lit(False) if deleted is None else sf.coalesce(spark_value(deleted).cast("boolean"), sf.lit(False))
        about = {_AT: spark_value(effective_at).cast(self._period), _GONE: gone}
        rows = source.select(*self._names(self.columns.given), *(column.alias(name) for name, column in about.items()))
        target = self._rules.events_schema(rows.schema.jsonValue(), _AT, _GONE)
        aligned = align(rows, target, self._checks)
        return self._events(aligned, sf.col(_AT), sf.col(_GONE), rank=GIVEN).localCheckpoint(eager=True)

    def _check(self, new: DataFrame, *, full_snapshot: bool) -> None:
        """Refuse source rows that do not say what to do."""
        different = new.distinct().groupBy(*self._names([*self.columns.keys, _AT])).agg(sf.count("*").alias("n"))
        measures = (sf.count("*"), sf.count_if(sf.col("n") > 1), sf.count_if(sf.col(_AT).isNull()), sf.min(_AT), sf.max(_AT))
        rows, ambiguous, timeless, first, last = different.agg(*measures).collect()[0]
        self._rules.check_events(rows, ambiguous, timeless, (first, last), full_snapshot=full_snapshot)

    def _missing(self, table: DataFrame, new: DataFrame) -> DataFrame:
        """Return an event for every key of the table that a snapshot does not have."""
        keys = self._joined(table.select(*self._names(self.columns.keys)).distinct(), new, "left_anti")
        values = sf.lit(None).cast(new.schema[_VALUES].dataType)
        ended = [sf.lit(True).alias(_GONE), values.alias(_VALUES), sf.lit(GIVEN).alias(_RANK)]
        return keys.crossJoin(new.agg(sf.max(_AT).alias(_AT))).select(*self._names([*self.columns.keys, _AT]), *ended)

    def _known_events(self, table: DataFrame) -> DataFrame:
        """Return the versions of the table as events: when each began, was seen again, and ended without another one."""
        names = self.columns
        start, end = self._column(names.valid_from), self._column(names.valid_to)
        parts = [self._events(table, start, sf.lit(False), rank=BEGAN)]
        if names.confirmed is not None:
            seen = table.withColumn(_SEEN, sf.explode(self._column(names.confirmed)))
            parts.append(self._events(seen, sf.col(_SEEN), sf.lit(False), rank=SEEN_AGAIN))
        # Where the next version begins at that time, its own event has a higher rank.
        parts.append(self._events(table.where(end.isNotNull()), end, sf.lit(True), rank=ENDED))
        return reduce(lambda a, b: a.unionByName(b), parts)

    def _events(self, rows: DataFrame, at: Column, gone: Column, *, rank: int) -> DataFrame:
        """Return rows as events. Of several of one key and time, the one of the highest rank counts."""
        values = sf.struct(*self._names([*self.columns.tracked, *self.columns.others]))
        shown = {_AT: at, _GONE: gone, _VALUES: sf.when(~gone, values), _RANK: sf.lit(rank)}
        return rows.select(*self._names(self.columns.keys), *(column.alias(name) for name, column in shown.items()))

    # -- versions ---------------------------------------------------------------------------------------------------------------

    def _versions(self, events: DataFrame) -> DataFrame:
        """Return the versions that events make, in the columns of the table."""
        names = self.columns
        keys = self._names(names.keys)
        gone, values = sf.col(_GONE), sf.col(_VALUES)
        last = events.groupBy(*keys, sf.col(_AT)).agg(
            sf.max_by(_GONE, _RANK).alias(_GONE), sf.max_by(_VALUES, _RANK).alias(_VALUES)
        )
        order = Window.partitionBy(*keys).orderBy(_AT)
        tracked = sf.struct(*(values[name] for name in names.tracked))
        state = sf.struct(gone.alias("gone"), sf.when(~gone, tracked).alias("tracked"))
        begins = ~state.eqNullSafe(sf.lag(state).over(order))
        runs = last.withColumn(_BEGINS, begins).withColumn(_RUN, sf.sum(sf.col(_BEGINS).cast("int")).over(order))
        made = runs.groupBy(*keys, sf.col(_RUN)).agg(
            sf.min(_AT).alias(_AT),
            sf.min_by(_GONE, _AT).alias(_GONE),
            sf.min_by(_VALUES, _AT).alias(_VALUES),
            sf.array_sort(sf.collect_list(sf.when(~sf.col(_BEGINS), sf.col(_AT)))).alias(_SEEN),
        )
        made = made.withColumn(_NEXT, sf.lead(_AT).over(order)).where(~gone)
        columns = [sf.col(_AT).alias(names.valid_from), sf.col(_NEXT).alias(names.valid_to)]
        if names.current is not None:
            columns.append(sf.col(_NEXT).isNull().alias(names.current))
        if names.confirmed is not None:
            columns.append(sf.col(_SEEN).alias(names.confirmed))
        return made.select(*keys, *(values[name].alias(name) for name in (*names.tracked, *names.others)), *columns)

    def _merged(self, table: DataFrame, versions: DataFrame) -> DataFrame:
        """Return what is to do with the versions of the table, and with those that it does not have."""
        names = self.columns
        ours, theirs = table.select(*self._names(names.written)).alias("t"), versions.alias("v")
        start = spark_name(names.valid_from)
        same = [sf.col(f"t.{spark_name(n)}").eqNullSafe(sf.col(f"v.{spark_name(n)}")) for n in (*names.keys, names.valid_from)]
        rows = ours.join(theirs, reduce(lambda a, b: a & b, same), "full_outer")
        equal = [sf.col(f"t.{spark_name(n)}").eqNullSafe(sf.col(f"v.{spark_name(n)}")) for n in names.written]
        is_new, is_gone = sf.col(f"t.{start}").isNull(), sf.col(f"v.{start}").isNull()
        action = (
            sf.when(is_new, HISTORY_INSERT)
            .when(is_gone, HISTORY_DELETE)
            .when(reduce(lambda a, b: a & b, equal), HISTORY_NOTHING)
            .otherwise(HISTORY_UPDATE)
        )
        columns = [
            sf.when(is_gone, sf.col(f"t.{spark_name(n)}")).otherwise(sf.col(f"v.{spark_name(n)}")).alias(n) for n in names.written
        ]
        return rows.select(*columns, action.alias(ACTION)).where(sf.col(ACTION) != HISTORY_NOTHING)

    def _checked(self, table: DataFrame) -> DataFrame:
        """Return the versions of the table; those that overlap raise."""
        start, end = self._column(self.columns.valid_from), self._column(self.columns.valid_to)
        following = sf.lead(start).over(Window.partitionBy(*self._names(self.columns.keys)).orderBy(start))
        overlaps = start.isNull() | (end <= start) | (following <= start)
        overlaps |= following.isNotNull() & (end.isNull() | (end > following))
        raised = self._checks.violated(
            DeltaIllegalStateException,
            OVERLAPS,
            sf.concat_ws(", ", *(column.cast("string") for column in self._names(self.columns.keys))),
        )
        checked = sf.when(sf.coalesce(overlaps, sf.lit(False)), raised).otherwise(sf.lit(True))
        return table.withColumn(_OK, checked.cast("boolean")).where(_OK).drop(_OK)

    # -- columns ----------------------------------------------------------------------------------------------------------------

    def _to_leave(self, keys: DataFrame) -> DataFrame:
        """Return a row to do nothing with for each key: its versions have been read."""
        names = (name for name in self.columns.written if name not in self.columns.keys)
        empty = [sf.lit(None).cast(self._type(name)).alias(name) for name in names]
        return keys.select(*self._names(self.columns.keys), *empty, sf.lit(HISTORY_NOTHING).alias(ACTION))

    def _joined(self, rows: DataFrame, others: DataFrame, how: str) -> DataFrame:
        """Return rows with (``left_semi``) or without (``left_anti``) one of equal keys among others."""
        known = others.select(*(self._column(name).alias(f"{_KEY}_{i}") for i, name in enumerate(self.columns.keys))).distinct()
        same = [rows[spark_name(name)].eqNullSafe(known[f"{_KEY}_{i}"]) for i, name in enumerate(self.columns.keys)]
        return rows.join(known, reduce(lambda a, b: a & b, same), how)

    def _type(self, name: str) -> DataType:
        field = find_field(self._schema, name)
        return spark_type("string" if field is None else field["type"])

    def _names(self, names: Iterable[str]) -> list[Column]:
        return [self._column(name) for name in names]

    @staticmethod
    def _column(name: str) -> Column:
        return sf.col(spark_name(name))
