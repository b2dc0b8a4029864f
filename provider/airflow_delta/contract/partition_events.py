"""The events of a commit by partition: their keys, how they are spelled, and what becomes of too many, or of too long ones.

A key is a text that Airflow's mappers read: ``2026-11-25``, or ``eu|2026-11-25`` for several columns, as ``ProductMapper`` splits
it. Which partitions a commit has changed is in :mod:`airflow_delta.table.changes.partition_keys`.
"""

from __future__ import annotations

import datetime as dt
import decimal
import hashlib
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, fields
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from airflow_delta.contract.delta_names import HIVE_NULL
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.light_dataclasses import dataclass

MANY = "many"
"""Key of the one event of a commit that changed more partitions than ``max_keys``, or ones that its log entry does not tell."""

MAX_KEY = 250
"""Characters of a key that Airflow takes."""


_NUL = "\0"
"""PostgreSQL has no place for it in a text."""

SEPARATOR = "|"
"""Between the columns of a key, as in Airflow's ``ProductMapper``."""

Values = Mapping[str, Any]
"""Values of a partition by column: dates, times, numbers, texts; ``None`` is null."""

KeyFunction = Callable[[Values], "str | Iterable[str] | None"]


class KeyField(NamedTuple):
    """A part of a template.

    :param before: text before the column.
    :param column: ``None`` for the text at the end.
    :param format: as after the colon in ``{event_date:%Y-%m}``.
    """

    before: str
    column: str | None
    format: str


@dataclass(frozen=True, repr=False)
class PartitionEvents:
    """Which events a commit emits by partition, beside the event of the table.

    :param key: the key of a partition: ``None``, the values of all partition columns, joined by ``|``; the name of a column; a
        template such as ``{region}|{event_date}`` or ``{event_time:%Y-%m-%d}``, with Python's format after the colon; or a
        function of the values by column that returns a key, several, or ``None`` for no event. At most one column of a template
        may be none that the table is partitioned by: then all keys between its least and its greatest value in each changed file.
    :param column: with a function: a column that the table is not partitioned by; its value is a pair, the least and the
        greatest one in a changed file.
    :param exact: of such a column: read it, and take the values of the rows that were added or removed.
    :param timezone: of the formats of a ``timestamp``.
    :param max_keys: most keys of a commit.
    :param beyond: with more keys, or if a log entry does not tell the partitions: ``many``, one event with the key ``many``; or
        ``fail``: the commit is refused, nothing is published.
    :param long_keys: with a key that Airflow does not take, of more than 250 characters, of spaces alone, or with a NUL:
        ``fail``, the commit is refused; or ``hash``: its end is replaced by its SHA-256.
    """

    key: str | KeyFunction | None = None
    _: KW_ONLY
    column: str | None = None
    exact: bool = False
    timezone: str = "UTC"
    max_keys: int = 500
    beyond: str = MANY
    long_keys: str = "fail"

    def __post_init__(self) -> None:
        if isinstance(self.max_keys, bool) or not isinstance(self.max_keys, int) or self.max_keys < 1:
            raise _refused(f"max_keys must be a whole number, 1 or more, got {self.max_keys!r}")
        for name, words in (("beyond", (MANY, "fail")), ("long_keys", ("fail", "hash"))):
            if getattr(self, name) not in words:
                raise _refused(f"{name} must be one of {', '.join(words)}, got {getattr(self, name)!r}")
        try:
            ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise _refused(f"timezone {self.timezone!r} is not known: {error}") from error
        if self.column is not None and not callable(self.key):
            raise _refused("column= is for a function as key; a template names its columns itself")
        if isinstance(self.key, str):
            fields = self.fields(())
            if not any(field.column for field in fields):
                raise _refused(f"the key {self.key!r} names no column: every partition would have the same key")
            if sum(len(field.before) for field in fields) >= MAX_KEY:
                raise _refused(f"the key {self.key[:40]!r}... has {MAX_KEY} characters or more without any value")
        elif self.key is not None and not callable(self.key):
            raise _refused(f"the key must be a template, a column or a function, got {type(self.key).__name__}")

    def __repr__(self) -> str:
        """Return a text that is the same in every process: Airflow stores it with a Dag, and makes a new version of another."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if callable(self.key):
            values["key"] = getattr(self.key, "__qualname__", type(self.key).__qualname__)
        return f"{type(self).__qualname__}({', '.join(f'{name}={value!r}' for name, value in values.items())})"

    @classmethod
    def of(cls, given: Any) -> PartitionEvents | None:
        """Return what ``partition_events`` of a task means; ``None``: no events by partition."""
        if given is None or given is False:
            return None
        return given if isinstance(given, cls) else cls(None if given is True else given)

    def fields(self, partition_columns: Sequence[str]) -> list[KeyField]:
        """Return the parts of the template; empty for a function.

        :param partition_columns: of the table.
        """
        if callable(self.key):
            return []
        template = self.key
        if template is None:
            return [KeyField(SEPARATOR if number else "", name, "") for number, name in enumerate(partition_columns)]
        if "{" not in template and "}" not in template:
            return [KeyField("", template, "")]
        try:
            parts = list(string.Formatter().parse(template))
        except ValueError as error:
            raise _refused(f"the key {template!r} is not a template: {error}") from error
        if any(name == "" or conversion or "{" in (form or "") for _, name, form, conversion in parts):
            raise _refused(f"the key {template!r} must name a column between braces, as in {{event_date:%Y-%m}}")
        return [KeyField(before, name, form or "") for before, name, form, _ in parts]

    def spelled(self, fields: Sequence[KeyField], values: Values) -> str:
        """Return the key of a partition by a template."""
        several = sum(field.column is not None for field in fields) > 1
        return "".join(
            field.before + ("" if field.column is None else self._value(values[field.column], field.format, several))
            for field in fields
        )

    def _value(self, value: Any, form: str, several: bool) -> str:
        text = spelled(self.wall_clock(value) if isinstance(value, dt.datetime) else value, form)
        # Of several columns, no two partitions have the same key.
        return text.replace("%", "%25").replace(SEPARATOR, "%7C") if several and isinstance(value, str) else text

    def wall_clock(self, moment: dt.datetime) -> dt.datetime:
        """Return a time as the clocks of the time zone show it; one without a zone as it is."""
        if moment.tzinfo is None:
            return moment
        try:
            return moment.astimezone(ZoneInfo(self.timezone)).replace(tzinfo=None)
        except OverflowError:  # the first or the last day of the calendar, often a placeholder
            return moment.replace(tzinfo=None)

    def keys(self, given: Iterable[str]) -> tuple[str, ...] | None:
        """Return each key once; ``None`` if there are too many."""
        found: dict[str, None] = {}
        for key in given:
            found[self._fitting(key)] = None
            if len(found) > self.max_keys:
                self.refuse_many(f"changes more than {self.max_keys} partitions (max_keys)")
                return None
        return tuple(found)

    def refuse_many(self, why: str) -> None:
        """Refuse a commit whose partitions get no events of their own, if that is wanted.

        :raises DeltaIllegalArgumentException: if it is.
        """
        if self.beyond == "fail":
            raise _refused(f"the commit {why}, and beyond='fail' wants an event for each. Raise max_keys, or pass beyond='many'")

    def _fitting(self, key: Any) -> str:
        if not isinstance(key, str):
            raise _refused(f"the function must return strings, got {type(key).__name__}: {str(key)[:80]!r}")
        if key.strip() and len(key) <= MAX_KEY and _NUL not in key:
            return key
        if self.long_keys == "fail":
            raise _refused(
                f"the key {key[:60]!r}... of a partition has {len(key)} characters, and Airflow takes 1 to {MAX_KEY} that are "
                "neither all spaces nor NUL. Make it of other columns, or pass long_keys='hash'"
            )
        digest = hashlib.sha256(key.encode()).hexdigest()
        return f"{key.replace(_NUL, '')[: MAX_KEY - len(digest) - 1]}~{digest}"


def spelled(value: Any, form: str = "") -> str:
    """Return a value as the mappers of Airflow read it: ``2026-11-25``, ``2026-11-25T10:42:15``.

    :param form: Python's format.
    """
    if value is None:
        return HIVE_NULL
    if form:
        return format(value, form)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    return value.isoformat() if isinstance(value, dt.date) else str(value)


def _refused(problem: str) -> DeltaIllegalArgumentException:
    return DeltaIllegalArgumentException(f"partition_events: {problem}.")
