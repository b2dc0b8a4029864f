"""What a task's commit runs into, logged and counted: lost races, conflicts by kind, and those that a closer look resolved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_delta.exceptions import (
    CommitStateUnknownException,
    DeltaConcurrentModificationException,
    MaxCommitRetriesExceededException,
)
from airflow_delta.tasks.observability import TaskMetrics

if TYPE_CHECKING:
    from logging import Logger


def number_of(versions: str) -> int:
    """Return how many versions a text such as ``3-12,15`` names."""
    ends = [part.partition("-") for part in versions.split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in ends)


_EVERY_LOSS_UNTIL = 5


@contextmanager
def watched_commit(metrics: TaskMetrics, logger: Logger | Any, table: str) -> Iterator[None]:
    """Count conflicts, and those that a closer look resolved, in the block, and log the races that it loses.

    Includes conflicts that are handled inside by starting over, which are visible only as events of the engine.

    :param table: URI of the table.
    """
    from airflow_delta.transaction import events

    counted: set[str] = set()
    lost = 0

    def listen(name: str, where: str, data: Mapping[str, Any]) -> None:
        nonlocal lost
        if name == events.RETRY:
            lost = int(data["attempts"])
            _tell_loss(logger, where, data)
        elif name == events.RESOLVED:
            for how, versions in data["how"].items():
                metrics.resolved(where, how, number_of(versions))
        elif name.startswith(events.CONFLICT):
            kind = f"{name.removeprefix(events.CONFLICT)}Exception"
            counted.add(kind)
            metrics.conflict(where, kind)
            metrics.count("commit.attempts", data.get("attempts") or None, table=where)  # 0: seen before the first put
            # If nothing resolves it, it is the error that ends the task.
            logger.info(
                "Transaction %s: conflict with version %s of %s (%s): %s. Nothing is committed yet.",
                data.get("txnId"),
                data.get("winningVersion"),
                where,
                data.get("winningTxnOperation") or "unknown operation",
                kind,
            )

    events.add_listener(listen, only=(events.RETRY, events.RESOLVED, events.CONFLICT))
    try:
        yield
    except DeltaConcurrentModificationException as error:
        kind = type(error).__name__
        if kind not in counted:  # found before the log was touched: another table at the location, for example
            metrics.conflict(error.table or table, kind)
        raise
    except CommitStateUnknownException as error:
        metrics.count("commit.unknown", table=error.table or table)
        raise
    except MaxCommitRetriesExceededException as error:
        metrics.count("commit.attempts", lost or None, table=error.table or table)
        raise
    finally:
        events.remove_listener(listen)


def _tell_loss(logger: Logger | Any, table: str, data: Mapping[str, Any]) -> None:
    """Log a lost race: the first ones all, then fewer and fewer, since a busy table may see thousands."""
    attempt = int(data["attempts"])
    if attempt > _EVERY_LOSS_UNTIL and attempt & (attempt - 1):
        return
    first, last = data["firstWinner"], data["lastWinner"]
    logger.info(
        "Transaction %s: lost the race for version %s of %s (attempt %s). What others committed as %s does not conflict: "
        "trying version %s.",
        data["txnId"],
        first,
        table,
        attempt,
        f"version {first}" if first == last else f"versions {first} to {last}",
        last + 1,
    )
