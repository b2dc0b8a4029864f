"""Bring publications to their end that others left unfinished on a table."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_delta.exceptions import ManifestException, PublicationPendingException
from airflow_delta.log.storage.file_names import commit_file
from airflow_delta.publication.ids import PublicationId, table_mark
from airflow_delta.publication.plan import load_plan
from airflow_delta.publication.records import OpenTable
from airflow_delta.publication.results import PublicationResult
from airflow_delta.publication.states import open_publications, publication_tables
from airflow_delta.publication.steps import Settlement, own_tables, settlement_of
from airflow_delta.transaction.intents import PATIENCE, age_at_least

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog

logger = logging.getLogger(__name__)


def settle(log: DeltaLog, publication: str, open_table: OpenTable, *, patience: float = PATIENCE) -> PublicationResult:
    """Bring a publication that was found on a table to its end.

    A decided one is published on its other tables, or taken back. One that is not decided is waited for, and then refused.

    :param log: of one of its tables.
    :param open_table: opens the tables that this worker may open.
    :param patience: seconds since its plan was put, by the store's times, or of waiting here, after which it is refused.
    :raises PublicationPendingException: if one of its tables may not be opened here.
    :raises ManifestException: if its plan is gone or was altered.
    :raises DeltaIllegalArgumentException: if the id is not one of a publication.
    """
    parts = PublicationId.parse(publication)
    anchor = log
    if table_mark(log) != parts.tables[0]:
        uris = publication_tables(log, publication)
        opened = open_table(uris[0]) if uris else None
        if opened is None:
            raise PublicationPendingException(
                f"Publication {publication} on table {log.uri} cannot be settled: "
                + (f"its anchor {uris[0]} is not to be opened here." if uris else "the log has no entry of it."),
                table=log.uri,
                publication=publication,
                tables=uris,
            )
        anchor = opened
    plan = load_plan(anchor, publication)
    known = own_tables([log, anchor])
    settlement = settlement_of(plan, lambda uri: known(uri) or open_table(uri), patience=patience)
    until = None
    while settlement.anchor.look() is None:
        until = time.monotonic() + patience - _age(settlement) if until is None else until
        left = until - time.monotonic()
        if left <= 0:
            break
        time.sleep(min(0.5, left))
    return settlement.run(give_up=True)


def _age(settlement: Settlement) -> float:
    """Return for how many seconds the plan of a publication has been there, at least.

    By the store's times of the plan and of the newest commits to its tables: what the clock of its worker said does not count.
    """
    anchor = settlement.anchor.log
    plan = anchor.store.head(PublicationId.parse(settlement.plan.publication).plan_path)
    logs = [table.log for table in settlement.tables]
    newest = [log.store.head(commit_file(version)) for log in logs if (version := log.update().version) >= 0]
    latest = max((status.modification_time for status in newest if status is not None), default=0)
    return age_at_least(0 if plan is None else plan.modification_time, latest)


def settle_named(
    logs: Sequence[DeltaLog], publication: str, *, patience: float = PATIENCE, waited: float = 0.0
) -> PublicationResult | None:
    """Bring a publication to its end that a task has met on one of its tables, without waiting for its worker.

    A decided one is published on its other tables, or taken back; one that is not decided long after its plan was put is refused.

    :param logs: all tables that the task names; no others are opened.
    :param patience: seconds since its plan was put, by the store's times, after which it is refused.
    :param waited: seconds for which the task has waited for it; they count as well.
    :return: ``None`` if it is not decided, and its worker may still be at it: no reader sees anything of it yet.
    :raises PublicationPendingException: if one of its tables is not among them.
    :raises ManifestException: if its plan is gone or was altered.
    """
    mark = PublicationId.parse(publication).tables[0]
    anchor = next((log for log in logs if table_mark(log) == mark), None)
    if anchor is None:
        raise PublicationPendingException(
            f"Publication {publication} is under way, and the table that decides it is not one that this task names, so it is "
            "not settled here. Its own Dag settles it, or `airflow delta settle`.",
            publication=publication,
        )
    plan = load_plan(anchor, publication)
    settlement = settlement_of(plan, own_tables(logs), patience=patience)
    if settlement.anchor.look() is None and waited < patience and _age(settlement) < patience:
        return None
    return settlement.run(give_up=True)


def settle_open(log: DeltaLog, open_table: OpenTable, *, patience: float = PATIENCE) -> list[PublicationResult]:
    """Bring every publication to its end whose intent is open on a table, as far as this worker may.

    :param open_table: opens the tables that this worker may open; others' publications stay as they are.
    """
    found = []
    for publication in open_publications(log):
        try:
            found.append(settle(log, publication.publication, open_table, patience=patience))
        except (PublicationPendingException, ManifestException) as error:
            logger.warning("Table %s: %s", log.uri, error.message)
    return found
