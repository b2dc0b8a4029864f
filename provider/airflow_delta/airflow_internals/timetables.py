"""When the runs of a Dag begin, by its own timetable, and what templates are given of such a run.

Waits for: runs of a timetable, and rendering with the variables of a run, in ``airflow.sdk``. Airflow loads all of this itself
before it reads a Dag file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from airflow.sdk.execution_time import macros
from airflow.sdk.timezone import coerce_datetime
from airflow.serialization.decoders import decode_timetable
from airflow.serialization.encoders import encode_timetable
from airflow.timetables.base import TimeRestriction
from airflow.utils.types import DagRunType


def encoded(timetable: Any) -> str | None:
    """Return a timetable as Airflow stores it: as text, with the names of its time zones; ``None`` if it cannot be stored."""
    try:
        return json.dumps(encode_timetable(timetable), sort_keys=True)
    except Exception:  # noqa: BLE001 - one that nobody has registered: Airflow refuses the Dag
        return None


def runs_of(timetable: str, windows: Iterable[tuple[datetime, int]], until: datetime | None = None) -> list[Any]:
    """Return the runs (``DagRunInfo``) that a timetable would schedule; empty if it does not know, as for events of assets.

    :param timetable: see :func:`encoded`.
    :param windows: times from which on, and how many runs each.
    :param until: the last time at which one may begin.
    """
    found: dict[datetime, Any] = {}
    for start, number in windows:
        found.update({run.run_after: run for run in _runs(timetable, start, number, until)})
    return [found[run_after] for run_after in sorted(found)]


@lru_cache(maxsize=256)
def _runs(timetable: str, start: datetime, number: int, until: datetime | None) -> tuple[Any, ...]:
    """Return some runs; kept, as a Dag has many tasks."""
    restriction = TimeRestriction(coerce_datetime(start), coerce_datetime(until), catchup=True)
    found: list[Any] = []
    try:
        decoded = decode_timetable(json.loads(timetable))
        while len(found) < number:
            run = decoded.next_dagrun_info_v2(last_dagrun_info=found[-1] if found else None, restriction=restriction)
            if run is None or (found and run.run_after <= found[-1].run_after):
                break
            found.append(run)
    except Exception:  # noqa: BLE001 - an author's timetable: the scheduler reports it
        return ()
    return tuple(found)


class UnknownVariableError(Exception):
    """A template asks for something of a run that the Dag file does not decide."""


class _Known:
    """What is known of an object of a run; asked for anything else, it ends the rendering, also within ``default``."""

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    def __getattr__(self, name: str) -> Any:
        raise UnknownVariableError(name)


_MACROS = (
    "datetime",
    "timedelta",
    "dateutil",
    "time",
    "json",
    "uuid",
    "random",
    "ds_add",
    "ds_format",
    "datetime_diff_for_humans",
)
"""Those of Airflow; what a plugin adds is an author's code, and is not run while a Dag is parsed."""


def variables_of(run: Any, dag_id: str, task_id: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return what Airflow's templates are given of a scheduled run, as far as the Dag file decides it.

    :param run: one of :func:`runs_of`.
    :param params: values of the Dag's parameters; a scheduled run has their defaults.
    """
    start, end = run.data_interval or (None, None)
    date, run_id = run.logical_date, DagRunType.SCHEDULED.generate_run_id(suffix=run.run_after.isoformat())
    partition = {"partition_key": run.partition_key, "partition_date": run.partition_date}
    times = {"logical_date": date, "data_interval_start": start, "data_interval_end": end}
    of_run = {**times, **partition, "run_after": run.run_after, "run_type": "scheduled", "conf": {}}
    found = {
        "dag": _Known(dag_id=dag_id),
        "task": _Known(task_id=task_id),
        "dag_run": _Known(dag_id=dag_id, run_id=run_id, **of_run),
        "run_id": run_id,
        "params": params,
        **partition,
        "macros": _Known(**{name: getattr(macros, name) for name in _MACROS if hasattr(macros, name)}),
        "task_instance_key_str": f"{dag_id}__{task_id}__{run_id}",
    }
    found["ti"] = found["task_instance"] = _Known(dag_id=dag_id, task_id=task_id, run_id=run_id)
    if date is not None:
        ds, ts = date.strftime("%Y-%m-%d"), date.isoformat()
        found |= {
            **times,
            "ds": ds,
            "ds_nodash": ds.replace("-", ""),
            "ts": ts,
            "ts_nodash": date.strftime("%Y%m%dT%H%M%S"),
            "ts_nodash_with_tz": ts.replace("-", "").replace(":", ""),
            "task_instance_key_str": f"{dag_id}__{task_id}__{ds.replace('-', '')}",
        }
    return found
