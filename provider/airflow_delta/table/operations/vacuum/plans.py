"""Publications of several tables that VACUUM finds unfinished although their plans are older than the log reaches back.

Whoever ends one has nothing but the plan below the anchor's table, and what the others have staged. The anchor's log does not
tell how the others stand, so the worker that has brought a publication to its end leaves a note beside that plan; the others have
its intent until then. Nothing is read unless there is such a plan without a note.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Set
from typing import TYPE_CHECKING

from airflow_delta.contract.intents import STATE_APP
from airflow_delta.contract.staging_directory import PLAN_ENDED, PLAN_PREFIX, transaction_directory
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.intents import open_intents

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Transactions of publications that may have no end yet.

    :ivar plans: those whose plans must stay.
    :ivar staged: those that must stay as they are: their rows may be about to be published.
    """

    plans: frozenset[str] = frozenset()
    staged: frozenset[str] = frozenset()


def unfinished_publications(log: DeltaLog, plans: Mapping[str, Set[str]]) -> Unfinished:
    """Find out which old plans of a table are still needed.

    :param plans: by transaction, the names below its directory that are of plans.
    """
    kept: set[str] = set()
    staged: set[str] = set()
    for transaction, names in plans.items():
        for digest in sorted(name.removeprefix(PLAN_PREFIX).removesuffix(".json") for name in names if name.endswith(".json")):
            if f"{PLAN_PREFIX}{digest}{PLAN_ENDED}" in names:
                continue
            publication = _publication(log, f"{transaction_directory(transaction)}/{PLAN_PREFIX}{digest}.json")
            if publication.startswith(f"{transaction}."):
                kept.add(transaction)
            elif publication in open_intents(log.snapshot.intents):  # also if keys of its age have expired
                staged.add(transaction)
            elif _is_published(log, publication):  # readers of this table ask for the note
                kept.add(transaction)
            else:
                continue
            logger.info(
                "VACUUM of %s keeps what publication %s needs: nothing says that it has ended on all of its tables. `airflow "
                "delta settle` ends it.",
                log.uri,
                publication,
            )
    return Unfinished(frozenset(kept | staged), frozenset(staged))


def _is_published(log: DeltaLog, publication: str) -> bool:
    txn = log.snapshot.set_transaction(f"{STATE_APP}{publication}", expired=True)
    return txn is not None and txn.version == 1


def _publication(log: DeltaLog, path: str) -> str:
    """Return the id of the publication in a plan; nothing if nobody could follow that plan."""
    try:
        return str(json.loads(log.store.read(path))["publication"])
    except (FileNotFoundError, ValueError, LookupError, TypeError):
        return ""
