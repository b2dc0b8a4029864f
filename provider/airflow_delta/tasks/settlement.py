"""Publications of several tables that a task meets on its table: it brings them to their end, or lets them end.

A plan opens no table: a task settles only publications all of whose tables its Dag file names, whichever of its tasks does.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk import XComArg

from airflow_delta import publication as publications
from airflow_delta.dag_rules.wiring import role_of
from airflow_delta.exceptions import ManifestException, PublicationPendingException
from airflow_delta.tasks.dag_file import argument_of
from airflow_delta.tasks.trust.declared_start import logs_of
from airflow_delta.transaction.intents import IntentRule, OpenIntents

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.log.delta_log import DeltaLog

logger = logging.getLogger(__name__)


class MetPublications:
    """What one task does about the publications that it meets."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._left: set[str] = set()
        self._met: dict[str, float] = {}

    @cached_property
    def _logs(self) -> Mapping[str, DeltaLog]:
        """The tables of the Dag file by URI."""
        found: dict[str, DeltaLog] = {}
        for task in getattr(self._context.get("dag"), "task_dict", {}).values():
            # Others have tables of that name as well, in other systems.
            if "delta_conn_id" not in task.template_fields or argument_of(task, "table", None) is None:
                continue
            try:
                found.update((log.uri, log) for log in logs_of(task, self._context))
            except Exception as error:  # noqa: BLE001 - a table that this task does not need; without it, it waits
                logger.debug("The table of task %s is not known here: %s", task.task_id, error)
        return found

    def settle(self, publication: str) -> bool | None:
        """End a publication, as far as this task may.

        :return: whether it has an end now; ``None`` if it is not decided, or somebody else has to settle it.
        """
        if publication in self._left:
            return None
        try:
            waited = time.monotonic() - self._met.setdefault(publication, time.monotonic())
            result = publications.settle_named(list(self._logs.values()), publication, waited=waited)
        except (PublicationPendingException, ManifestException) as error:
            logger.info("%s", error.message)
        except Exception as error:  # noqa: BLE001 - the work of others must not fail this task; it waits, as for any of theirs
            logger.warning("Publication %s could not be settled: %s", publication, error)
        else:
            if result is None:
                return None
            logger.info("Publication %s had not ended on all of its tables: now it is %s.", publication, result.outcome)
            return True
        self._left.add(publication)
        return None

    def is_not_decided(self, publication: str) -> bool:
        """Tell whether no reader can have seen anything of a publication that :meth:`settle` has left open."""
        return publication not in self._left


def rule_of_commit(context: Context) -> IntentRule:
    """Return what a commit to a single table does about publications that are under way there.

    It ends those that are decided, waits for others, and ends those, too, if nobody has by then.
    """
    return IntentRule(meet=MetPublications(context).settle)


def settle_before(context: Context, log: DeltaLog) -> None:
    """Let the publications end that are decided, and not on the table yet, before a transaction reads it.

    One that is not decided is no obstacle: no table shows it, and the commit looks again. One that this task may not settle is
    waited for as by a commit: another table of the Dag may show it.

    :param log: has been looked at just now; nothing is read if no publication is open.
    """

    def meet(publication: str) -> bool | None:
        ended = met.settle(publication)
        return False if ended is None and met.is_not_decided(publication) else ended

    if log.snapshot.version < 0:
        return
    met = MetPublications(context)
    intents = OpenIntents(log.snapshot.intents, IntentRule(meet=meet))
    while intents:
        intents.await_next(log)
        intents.note(log.update().intents)


def settle_earlier(start: Any, context: Context, log: DeltaLog, key: str) -> None:
    """Bring a publication that an earlier try of the run decided, and did not end, to its end before another one begins.

    Only the tables of the publication that the start task is part of in the Dag file are opened.

    :param start: the running start task.
    :param log: of its table.
    """
    commit = publication_of(start, context)
    if commit is None or log.update().version < 0:
        return
    if commit.intents and not publications.open_publications(log) and log.snapshot.transaction_version(key) is None:
        return  # nothing was decided: the table would be announced, or have the key
    starts = _referred(commit.transactions)
    others = [other for each in starts if each.task_id != start.task_id for other in logs_of(each, context)]
    logs = {log.uri: log, **{other.uri: other for other in others}}
    for publication, shown in publications.get_versions(logs).held_back.items():
        try:
            result = publications.settle(logs[shown[0]], publication, publications.own_tables(list(logs.values())))
        except ManifestException as error:  # where it is half, the keys say so
            start.log.warning("Publication %s is not on all tables, and cannot be settled: %s", publication, error.message)
            continue
        start.log.info("Publication %s was decided and not on all tables: now it is %s.", publication, result.outcome)


def publication_of(start: Any, context: Context) -> Any:
    """Return the commit task of a start task's publication in the Dag file; ``None`` if it is part of none."""
    definition: Any = getattr(context.get("dag"), "task_dict", {}).get(start.task_id)
    for task in definition.get_flat_relatives(upstream=False) if definition is not None else ():
        if role_of(task) == "commit" and definition in _referred(getattr(task, "transactions", None)):
            return task
    return None


def _referred(transactions: Any) -> list[Any]:
    return [task for task, _ in XComArg.iter_xcom_references(transactions)]
