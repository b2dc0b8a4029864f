"""Asset events by partition: one for each partition whose rows a commit has changed, besides the event of the table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset

from airflow_delta import engine
from airflow_delta.airflow_internals import tasks as airflow_tasks
from airflow_delta.assets.events import names_its_commit
from airflow_delta.contract.partition_events import MANY, PartitionEvents
from airflow_delta.contract.tags import PARTITION_EVENTS_TAG
from airflow_delta.dag_rules.partition_events import events_problem
from airflow_delta.exceptions import DeltaIllegalArgumentException

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.contract.payloads import CommitResult
    from airflow_delta.log.delta_log import DeltaLog


_FEW = 20
"""Keys up to which each event lists the partitions of all of them."""


def check_outlets(events: Any, outlets: Sequence[Any], what: str) -> None:
    """Refuse events by partition that no outlet can have: Airflow gives the events of an alias no keys of their own.

    :param events: as the Dag gives them.
    :param what: whose outlets, for the message.
    :raises DeltaIllegalArgumentException: if no outlet is an asset.
    """
    PartitionEvents.of(events)
    if (problem := events_problem(events, outlets)) is not None:
        raise DeltaIllegalArgumentException(f"{what}: {problem}")


def told_tag(events: Any, outlets: Sequence[Any]) -> dict[str, str]:
    """Return the tag of a commit whose task emits events by partition, so that no sensor does so again.

    :param events: ``partition_events`` of the task.
    :param outlets: those of the table.
    """
    tells = PartitionEvents.of(events) is not None and any(isinstance(outlet, Asset) for outlet in outlets)
    return {PARTITION_EVENTS_TAG: "true"} if tells else {}


def event_keys(task: Any, log: DeltaLog | None, result: CommitResult) -> tuple[str, ...] | None:
    """Return the partition keys of a commit's events, by its entry in the log; ``None``: the task emits none.

    The commit is written: if its partitions are unknown, the task does not fail but emits one event with the key ``many``.

    :param task: has ``partition_events``.
    """
    events = PartitionEvents.of(getattr(task, "partition_events", None))
    if events is None or log is None or result.committed_nothing or not names_its_commit(result):
        return None
    try:
        return engine.changed_partitions(log, result.version, events, read=read_column)
    except FileNotFoundError:
        why = "its entry has left the log"
    except OSError:
        raise  # a retry finds the commit, and emits the same
    except Exception as error:  # noqa: BLE001 - of the author's function, too
        why = f"{type(error).__name__}: {error}"
    task.log.error(
        "The partitions of version %s of %s are unknown; its event has the key %r: %s", result.version, result.table, MANY, why
    )
    return (MANY,)


def read_column(*files: Any, **options: Any) -> Iterable[tuple[Any, Any]]:
    """Return what ``engine.column_values`` does, which is loaded only if a column has to be read."""
    return engine.column_values(*files, **options)


def with_keys(extra: dict[str, Any], keys: tuple[str, ...] | None) -> dict[str, Any]:
    """Return the ``extra`` of a commit's events, which all share it: with the number of keys; of many, without the partitions."""
    if keys is None:
        return extra
    more: dict[str, Any] = {"num_partition_keys": None if keys == (MANY,) else len(keys)}
    if len(keys) > _FEW or keys == (MANY,):
        more["partitions"] = []
        if "commits" in extra:
            more["commits"] = [{**commit, "partitions": []} for commit in extra["commits"]]
    return {**extra, **more}


def add_partition_events(context: Context, outlet: Asset, keys: tuple[str, ...] | None) -> None:
    """Have a task emit an event of an asset for each key, besides the event that it emits anyway, unless its run has a key."""
    if not keys:
        return
    # In a run with a key that event would have this key, and start only Dags with partitions, for one that may not have changed.
    of_run = getattr(context["dag_run"], "partition_key", None)
    airflow_tasks.add_keyed_events(context["outlet_events"][outlet], keys, whole=of_run is None)
