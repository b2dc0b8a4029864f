"""The columns of a table that keeps every version of its rows (a slowly changing dimension of type 2)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from airflow_delta.contract.payloads import Json, Payload
from airflow_delta.contract.schema import fields_by_name, nullable, written_schema
from airflow_delta.exceptions import DeltaIllegalArgumentException, SchemaMismatchException, TableRead
from airflow_delta.light_dataclasses import dataclass

ACTION = "__airflow_delta_action"
"""Column of the source of the MERGE: what to do with its row."""

HISTORY_INSERT, HISTORY_UPDATE, HISTORY_DELETE, HISTORY_NOTHING = "insert", "update", "delete", "nothing"


ENDED, SEEN_AGAIN, BEGAN, GIVEN = 0, 1, 2, 3
"""Kinds of events of a key: a version of the table ended, was seen again, or began; a source row. Of several of one time, the
highest counts: where the next version begins when one ends, its begin; where a source row is of that time, that."""

OVERLAPS = "The versions of a key overlap, or one has no begin or ends before it, so they cannot be continued. Repair the key"
"""What is wrong with the versions of a table that cannot be continued."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryColumns(Payload):
    """Names of columns, as the table spells them.

    :param keys: what a row is about.
    :param tracked: whose changes make versions.
    :param others: that come with a version.
    :param valid_from: when a version began.
    :param valid_to: when it ended; null for the last one that did not.
    :param current: whether it has not ended; ``None``: there is no such column.
    :param confirmed: times at which a source row had the version's tracked values again; ``None``: there is no such column.
    :param period_type: type of times, in Spark's JSON form.
    """

    keys: tuple[str, ...]
    tracked: tuple[str, ...]
    others: tuple[str, ...]
    valid_from: str
    valid_to: str
    current: str | None
    confirmed: str | None
    period_type: str

    @property
    def given(self) -> tuple[str, ...]:
        """Return the columns that source rows must have."""
        return (*self.keys, *self.tracked, *self.others)

    @property
    def written(self) -> tuple[str, ...]:
        """Return all columns that the MERGE sets."""
        flags = [name for name in (self.current, self.confirmed) if name is not None]
        return (*self.given, self.valid_from, self.valid_to, *flags)


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryArguments(Payload):
    """What the rows of a source mean for the versions of a table.

    :param effective_at: Spark SQL over a source row: the time since when it is so.
    :param deleted: Spark SQL over a source row: it ends the last version of its key.
    :param full_snapshot: keys that the source does not have have ended.
    """

    columns: HistoryColumns
    effective_at: str
    deleted: str | None = None
    full_snapshot: bool = False


@dataclass(frozen=True, slots=True)
class HistorySource(TableRead):
    """Rules for the source of a history, on Spark or here.

    :param schema: of the table.
    :param read_version: the version read, for messages.
    """

    columns: HistoryColumns
    schema: dict  # type: ignore[type-arg]
    table: str
    read_version: int

    @property
    def where(self) -> str:
        """Return the table and its version, for messages."""
        return f"table {self.table} version {self.read_version}"

    def check_columns(self, names: Collection[str]) -> None:
        """Refuse a source that lacks columns.

        :raises SchemaMismatchException: if it does.
        """
        known = {name.lower() for name in names}
        if lacking := [name for name in self.columns.given if name.lower() not in known]:
            raise self.error(
                SchemaMismatchException,
                f"The source of the history in {self.where} lacks {', '.join(lacking)}; it has {', '.join(names)}. "
                "Select every column of the table that it does not compute: one that is missing would count as null.",
            )

    def events_schema(self, given: Json, at: str, gone: str) -> Json:
        """Return the types of the events that source rows are: those of the table, nullable.

        What ends a version need not have its values; the MERGE checks what it writes.

        :param given: schema of the events.
        :param at: name of the column with their time.
        :param gone: name of the column that says whether the key is gone.
        :raises SchemaMismatchException: if a value could be lost.
        """
        known = fields_by_name(self.schema)
        fields = [known[name.lower()] for name in self.columns.given if name.lower() in known]
        for name, kind in ((at, self.columns.period_type), (gone, "boolean")):
            fields.append({"name": name, "type": kind, "nullable": True, "metadata": {}})
        return written_schema(
            given,
            dict(nullable({"type": "struct", "fields": fields})),
            merge=False,
            table_name=self.table,
            version=self.read_version,
            exact=True,
        )

    def check_events(self, rows: int, ambiguous: int, timeless: int, times: tuple[Any, Any], *, full_snapshot: bool) -> None:
        """Refuse source rows that do not say what to do.

        :param rows: number of different ones.
        :param ambiguous: number of keys and times of which there are several.
        :param timeless: number of those without a time.
        :param times: the first and the last.
        :raises DeltaIllegalArgumentException: if there are such rows.
        """
        first, last = times
        problem = None
        if timeless:
            problem = "effective_at is null in some rows"
        elif ambiguous:
            problem = f"{ambiguous} keys have different rows of one time; let effective_at tell them apart"
        elif full_snapshot and not rows:
            problem = "a full snapshot without rows would end every version"
        elif full_snapshot and first != last:
            problem = f"a full snapshot is of one time, and effective_at goes from {first} to {last}"
        if problem is not None:
            raise self.error(
                DeltaIllegalArgumentException, f"The source of the history in {self.where} cannot be merged: {problem}."
            )
