"""Keys that two runs of a Dag share, although each works on something else: the second run would skip its rows.

The keys of some runs of the Dag's own timetable are rendered as Airflow would render them, and compared: a key that names a day
is shared by hourly runs, and, once a year, by daily ones of a time zone with daylight saving: in Berlin, 01:00 of the day before
the change and of the day after are the same day in UTC. What only a run knows, such as an XCom or a Variable, and what an
author's own macros and filters would say, is not looked at: start compares the key with the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from jinja2 import Environment, TemplateError, TemplateSyntaxError, meta, nodes

from airflow_delta.contract.choices import is_literal
from airflow_delta.lazy_patterns import lazy_pattern

if TYPE_CHECKING:
    import jinja2

_OF_THE_RUN = {
    *("conn", "conf", "dag", "dag_run", "data_interval_end", "data_interval_start", "ds", "ds_nodash", "logical_date", "macros"),
    *("params", "prev_data_interval_end_success", "prev_data_interval_start_success", "prev_end_date_success"),
    *("prev_start_date_success", "run_id", "test_mode", "triggering_asset_events", "ts", "ts_nodash", "ts_nodash_with_tz", "var"),
}
"""Template variables that are the same for all instances of a run."""

_RUNS_IN_TURN = 33
"""Compared from the Dag's start on: the days of a month and one more, so names of weekdays, hours and days come twice."""

_RUNS_A_YEAR_LATER = 3

_AROUND_A_CHANGE = ((timedelta(hours=-50), 4), (timedelta(minutes=-61), 10))
"""Before a change of a zone's clocks, and how many runs: those of two days, and those of the hour that comes twice."""

_ZONE = lazy_pattern(r"[A-Z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+)*")
"""What may be the name of a time zone."""


def shared_key_problem(task: Any, given: Callable[[str], Any]) -> str | None:
    """Return what is wrong with the key of a task beside its Dag's timetable; ``None`` if nothing is, or it does not show.

    :param given: returns what the Dag file gives to the task.
    """
    dag = task.get_dag()
    texts = {name: given(name) for name in ("transaction_key", "app_id", "txn_version")}
    texts = {name: value for name, value in texts.items() if value is not None}
    key = "transaction_key" if "transaction_key" in texts else "app_id"
    if dag is None or not isinstance(texts.get(key), str) or all(map(is_literal, map(str, texts.values()))):
        return None
    if key == "app_id" and not isinstance(texts.get("txn_version"), str | int):
        return None
    if key == "transaction_key":
        texts = {key: texts[key]}
    seen: dict[str, tuple[Any, int]] = {}
    for run, values in _rendered(task, dag, texts):
        version = _number(values.get("txn_version"))
        first, least = seen.get(values[key], (None, -1))
        if version is None or first is None:
            seen[values[key]] = (run, least if version is None else version)
        elif key == "transaction_key" or version <= least:
            return _problem(key, texts, values, first, run, version, least)
        else:
            seen[values[key]] = (run, version)
    return None


def _number(value: str | None) -> int | None:
    """Return a version, 0 for a key that has none; ``None`` if it is not a number."""
    if value is None:
        return 0
    return int(value) if value.strip().isdecimal() else None


def _problem(
    key: str, texts: Mapping[str, Any], values: Mapping[str, str], first: Any, second: Any, version: int, least: int
) -> str:
    given = " and ".join(f"{name}={text!r}" for name, text in texts.items())
    times = f"{_shown(first)} and of {_shown(second)}"
    if key == "transaction_key" or version == least:
        what = f"{given} is the same for two runs of the Dag: of {times}, for example ({values[key]!r}). The second one would "
        what += "find the key of the first one and skip its rows."
    else:
        what = f"{given}: of the runs of {times}, the second has the lower version ({least}, then {version}), and would skip "
        what += "its rows."
    way_out = "Name the interval, as {{ data_interval_start.isoformat() }} or {{ ts }} do, or leave the key out."
    if key == "app_id":
        way_out = "Let the version grow with each run, as {{ data_interval_start.int_timestamp }} does, or leave both out."
    return f"{what} {way_out} If they are to share it, pass key_check='off'."


def _shown(run: Any) -> str:
    time = run.logical_date or run.run_after
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _rendered(task: Any, dag: Any, texts: Mapping[str, Any]) -> Iterator[tuple[Any, dict[str, str]]]:
    """Yield runs, in their order, with what the texts are in each; those that the Dag file does not decide are left out."""
    from airflow_delta.airflow_internals.timetables import UnknownVariableError, encoded, runs_of, variables_of

    try:
        environment = dag.get_template_env(force_sandboxed=True)
        if not all(_is_of_airflow(str(text), dag, environment) for text in texts.values()):
            return
        templates = {name: environment.from_string(str(text)) for name, text in texts.items()}
    except TemplateError:  # the task reports it
        return
    params = _defaults(dag, task)
    names = {name for text in texts.values() for name in meta.find_undeclared_variables(environment.parse(str(text)))}
    names -= environment.globals.keys()
    timetable = encoded(dag.timetable)
    if timetable is None:
        return
    start = dag.start_date or datetime(datetime.now(tz=UTC).year, 1, 1, tzinfo=UTC)
    for run in runs_of(timetable, _windows(start, [timetable, *map(str, texts.values())]), dag.end_date):
        variables = variables_of(run, str(dag.dag_id), str(task.task_id), params)
        if not names <= variables.keys():
            return
        try:
            yield run, {name: template.render(variables) for name, template in templates.items()}
        except UnknownVariableError:
            return
        except Exception:  # noqa: BLE001, S112 - a template may raise anything; the run reports it
            continue


def _is_of_airflow(text: str, dag: Any, environment: jinja2.Environment) -> bool:
    """Return whether a template runs no code of the author, and reads no file."""
    tree = environment.parse(text)
    own = {name for name, value in (dag.user_defined_macros or {}).items() if not isinstance(value, str | int | float)}
    called = {each.name for each in tree.find_all(nodes.Filter)} | {each.name for each in tree.find_all(nodes.Test)}
    files = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)
    used = {each.name for each in tree.find_all(nodes.Name)}
    return not used & own and not called & (dag.user_defined_filters or {}).keys() and next(tree.find_all(files), None) is None


def _defaults(dag: Any, task: Any) -> dict[str, Any]:
    """Return the parameters of a scheduled run, as far as they have defaults."""
    found: dict[str, Any] = {}
    of_task = task.partial_kwargs.get("params") if task.is_mapped else getattr(task, "params", None)
    for params in (dag.params, of_task or {}):
        for name in params:
            try:
                found[name] = params[name]
            except Exception:  # noqa: BLE001 - one without a default
                found.pop(name, None)
    return found


def _windows(start: datetime, texts: Iterable[str]) -> Iterator[tuple[datetime, int]]:
    """Yield the times from which on runs are compared: the Dag's start, a year later, and where clocks are changed.

    :param texts: that name time zones: the timetable and the templates.
    """
    yield start, _RUNS_IN_TURN
    yield from ((start + timedelta(days=days), _RUNS_A_YEAR_LATER) for days in (365, 366))
    for name in sorted({name for text in texts for name in _ZONE.findall(text)}):
        for change in _changes(name, start):
            yield from ((change + before, number) for before, number in _AROUND_A_CHANGE)


@lru_cache(maxsize=64)
def _changes(name: str, start: datetime) -> tuple[datetime, ...]:
    """Return when the clocks of a zone are changed within a year; never, if the name is not of one."""
    try:
        zone = ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return ()
    found = []
    first = start.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    for day in range(366):
        before = first + timedelta(days=day)
        offset = before.astimezone(zone).utcoffset()
        if offset != (before + timedelta(days=1)).astimezone(zone).utcoffset():
            times = (before + timedelta(hours=number) for number in range(1, 25))
            found.append(next(time for time in times if time.astimezone(zone).utcoffset() != offset))
    return tuple(found)


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
