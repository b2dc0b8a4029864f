"""Keys that name a day (or a month) in a Dag of which two runs begin on one: the second run would skip its rows.

The days are those of UTC, as in ``ds``. So it also happens, once a year, to a daily schedule of a time zone with daylight saving:
in Berlin, 01:00 of the day before the change and of the day after are the same day in UTC.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from jinja2 import Environment, TemplateSyntaxError, nodes

from airflow_delta.contract.choices import is_literal

_DAYS = {"ds", "ds_nodash"}
_DATES = {
    *("logical_date", "data_interval_start", "data_interval_end", "dag_run", "ts", "macros", "execution_date", "start_date"),
    *("run_after", "prev_data_interval_start_success", "prev_data_interval_end_success"),
}
"""Template variables that are times, or have times of the run as attributes."""

_OF_THE_RUN = {
    *("conn", "conf", "dag", "dag_run", "data_interval_end", "data_interval_start", "ds", "ds_nodash", "logical_date", "macros"),
    *("params", "prev_data_interval_end_success", "prev_data_interval_start_success", "prev_end_date_success"),
    *("prev_start_date_success", "run_id", "test_mode", "triggering_asset_events", "ts", "ts_nodash", "ts_nodash_with_tz", "var"),
}
"""Template variables that are the same for all instances of a run."""

_DAY = "%Y-%m-%d"
_CHECKED_DAYS = 400
_CHECKED_TIMES = 2_000
"""For five runs a day these are all days that are checked; if a key is too coarse for more, the first two show it."""


def day_key_problem(key: Any, timetable: Any) -> str | None:
    """Return what is wrong with a key beside a timetable; ``None`` if nothing is, or it does not show.

    :param key: ``transaction_key`` as in the Dag file.
    """
    if not isinstance(key, str) or is_literal(key) or not (printed := _formats(key)):
        return None
    same = next(_same(timetable, printed), None)
    if same is None:
        return None
    first, second = (f"{time:%Y-%m-%d %H:%M} UTC" for time in same)
    return (
        f"transaction_key={key!r} is the same for two runs of the Dag: of {first} and of {second}, for example. The second one "
        "would find the key of the first one and skip its rows. Name the interval, as {{ data_interval_start.isoformat() }} or "
        "{{ ts }} do, or leave the key out. If both are to share it, pass key_check='off'."
    )


def _formats(key: str) -> list[str]:
    """Return what a template prints, as formats of a run's time; empty if it prints anything else, or more than days."""
    try:
        tree = Environment().parse(key)  # noqa: S701 - nothing is rendered
    except TemplateSyntaxError:
        return []
    printed = [
        part for output in tree.find_all(nodes.Output) for part in output.nodes if not isinstance(part, nodes.TemplateData)
    ]
    parts = [operand for part in printed for operand in (part.nodes if isinstance(part, nodes.Concat) else [part])]
    found = [_format(part) for part in parts if not isinstance(part, nodes.Const)]
    return [each for each in found if each is not None] if None not in found else []


def _format(node: Any) -> str | None:
    match node:
        case nodes.Name(name=name) if name in _DAYS:
            return _DAY
        case nodes.Filter(node=nodes.Expr() as of, name=("ds" | "ds_nodash")) if _is_time(of):
            return _DAY
        case nodes.Call(node=nodes.Getattr(node=of, attr=("date" | "to_date_string"))) if _is_time(of):
            return _DAY
        case nodes.Call(node=nodes.Getattr(node=of, attr="strftime"), args=[nodes.Const(value=str(text))]) if _is_time(of):
            return text
    return None


def _is_time(node: Any) -> bool:
    """Return whether an expression is a time of the run; in a zone of its own, its days may be told apart."""
    while isinstance(node, nodes.Getattr):
        node = node.node
    return isinstance(node, nodes.Name) and node.name in _DATES


def _same(timetable: Any, formats: Sequence[str]) -> Iterator[tuple[datetime, datetime]]:
    """Yield pairs of times of successive runs that are printed alike."""
    for earlier, later in itertools.pairwise(_times(timetable)):
        if all(earlier.strftime(each) == later.strftime(each) for each in formats):
            yield earlier, later


def _times(timetable: Any) -> Iterator[datetime]:
    """Yield the times at which runs of a timetable begin, in UTC, for more than a year; none if they are unknown."""
    first = datetime(datetime.now(tz=UTC).year, 1, 1, tzinfo=UTC)
    delta = getattr(timetable, "delta", None)
    if isinstance(delta, timedelta):
        if delta > timedelta(0):
            yield from (first, first + delta)
        return
    expression, zone = getattr(timetable, "expression", None), _zone(getattr(timetable, "timezone", None))
    if not isinstance(expression, str) or zone is None:
        return
    yield from _fires(expression, zone, first)


@lru_cache(maxsize=64)
def _fires(expression: str, zone: tzinfo, first: datetime) -> tuple[datetime, ...]:
    """Return the times of a cron expression, in UTC and in order; empty if it is not valid. Kept, as a Dag has many tasks."""
    try:
        from croniter import CroniterError, croniter  # type: ignore[import-untyped]
    except ImportError:  # it comes with this Airflow, and need not with the next one
        return ()
    start = first.replace(tzinfo=None)
    found: list[datetime] = []
    try:
        fires = croniter(expression, start - timedelta(seconds=1))
        for _ in range(_CHECKED_TIMES):
            local = fires.get_next(datetime)
            if local - start > timedelta(days=_CHECKED_DAYS):
                break
            time = local.replace(tzinfo=zone).astimezone(UTC)
            if not found or time > found[-1]:  # clocks that are put forward skip an hour, in which nothing runs
                found.append(time)
    except (CroniterError, ValueError, OverflowError):  # Airflow refuses it
        return ()
    return tuple(found)


def _zone(given: Any) -> tzinfo | None:
    """Return a time zone that can be a key: Airflow's own is none with every release of pendulum."""
    name = given if isinstance(given, str) else getattr(given, "key", None) or getattr(given, "name", None)
    try:
        return ZoneInfo(str(name)) if name else None
    except (ZoneInfoNotFoundError, ValueError):
        offset = given.utcoffset(datetime(2000, 1, 1)) if isinstance(given, tzinfo) else None
        return None if offset is None else timezone(offset)


def is_of_the_run(value: Any) -> bool:
    """Return whether a parameter certainly has one value in a run, whichever task or instance it is of."""
    if not isinstance(value, str):
        return False
    if "{" not in value:
        return True
    try:
        template = Environment().parse(value)  # noqa: S701 - nothing is rendered
    except TemplateSyntaxError:
        return False
    return all(name.name in _OF_THE_RUN for name in template.find_all(nodes.Name))
