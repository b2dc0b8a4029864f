"""The columns of a table that keeps every version of its rows (a slowly changing dimension of type 2)."""

from __future__ import annotations

from airflow_delta.contract.payloads import Payload
from airflow_delta.light_dataclasses import dataclass

ACTION = "__airflow_delta_action"
"""Column of the source of the MERGE: what to do with its row."""

HISTORY_INSERT, HISTORY_UPDATE, HISTORY_DELETE, HISTORY_NOTHING = "insert", "update", "delete", "nothing"


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
