"""The records of a publication: its options, its plan, its states in the logs, and what tasks report; each a value by itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Literal

from airflow_delta.contract.audit import HeldCheck
from airflow_delta.contract.payloads import CONTRACT, ManifestRef, Payload, StagedWrite, TransactionHandle
from airflow_delta.contract.tags import ANCHOR_TAG, PUBLICATION_TAG, STATE_TAG, TABLES_TAG
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.transaction.intents import PATIENCE
from airflow_delta.transaction.policy import check_user_metadata

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.stage.staged_writes import Expected
    from airflow_delta.table.state.key_users import KeyUser
    from airflow_delta.transaction import PostCommitHook

INTENT, PUBLISHED, REFUSED, UNDONE, STANDS = range(5)
"""States of a publication on a table. They only grow: 0; 1; 2 (never after 1), 3 or 4 (after 1)."""

STATE_NAMES = ("intent", "published", "refused", "undone", "stands")

MAX_TABLES = 32


OnLateConflict = Literal["undo", "keep"]

OpenTable = Callable[[str], "DeltaLog | None"]
"""Opens a table of a plan by its URI; ``None`` if this worker's Dag file does not name it: a plan opens no table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PublicationOptions:
    """What the author of a publication chooses.

    :param on_late_conflict: if another commit comes between the decision and its turn on a table: ``undo`` takes the others
        back, ``keep`` leaves what is published.
    :param anchor: URI of the table whose log decides; default: the one whose stages are hardest to repeat.
    :param intents: keep cooperating writers from coming in between.
    :param patience: seconds to wait for other publications before they are refused or passed over.
    """

    on_late_conflict: OnLateConflict = "undo"
    anchor: str | None = None
    intents: bool = True
    patience: float = PATIENCE

    def __post_init__(self) -> None:
        if self.on_late_conflict not in ("undo", "keep"):
            raise DeltaIllegalArgumentException(f"on_late_conflict must be 'undo' or 'keep', got {self.on_late_conflict!r}")
        if self.patience < 0:
            raise DeltaIllegalArgumentException(f"patience must be 0 or more seconds, got {self.patience}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One table of a publication, as its start task and its stages reported.

    :param staged: results of its stages.
    :param expected: the stages that must have reported; ``None``: not checked.
    :param tags: ``commitInfo.tags`` of its entry.
    :param conflict_detection: ``delta``, ``statistics`` or ``rows``.
    :param hooks: run after the commit, if this worker makes it.
    :param user: who commits: by now another run may have committed the key.
    :param held: checks of its audits that must hold in the version that is published.
    """

    log: DeltaLog
    handle: TransactionHandle
    staged: Sequence[StagedWrite | Mapping[str, Any]] = ()
    expected: Expected | None = None
    tags: Mapping[str, str] | None = None
    user_metadata: str | None = None
    conflict_detection: str = "rows"
    hooks: Sequence[PostCommitHook] = ()
    user: KeyUser | None = None
    held: Sequence[HeldCheck] = ()

    def __post_init__(self) -> None:
        check_user_metadata(self.user_metadata)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedTable(Payload):
    """One table of a plan.

    :param handle: the transaction on it.
    :param staged: the staged writes, one JSON in each line.
    :param held: what must hold in the version that is published. A release that does not know them finds another digest than the
        id of the publication has, and does not go on with it.
    """

    table: str
    handle: dict[str, Any]
    staged: ManifestRef
    tags: dict[str, str] = field(default_factory=dict)
    user_metadata: str | None = None
    conflict_detection: str = "rows"
    held: tuple[HeldCheck, ...] = ()

    @property
    def transaction_id(self) -> str:
        """Id of the transaction on this table."""
        return str(self.handle["transactionId"])


@dataclass(frozen=True, kw_only=True, slots=True)
class PublicationPlan(Payload):
    """What is to be published: all that a worker needs who goes on with it.

    :param publication: its id.
    :param tables: in the order of publication, the anchor first.
    :param put_at: milliseconds since the epoch.
    """

    contract: int = CONTRACT
    publication: str = ""
    on_late_conflict: str = "undo"
    intents: bool = True
    put_at: int = 0
    tables: tuple[PlannedTable, ...] = ()

    @property
    def anchor(self) -> str:
        """URI of the table whose log decides."""
        return self.tables[0].table

    @property
    def uris(self) -> tuple[str, ...]:
        """URIs of the tables, the anchor first."""
        return tuple(planned.table for planned in self.tables)

    def digest(self) -> str:
        """Return the digest of what is published: the same for every try of the commit."""
        tables = [replace(planned, tags={}).to_dict() for planned in self.tables]
        for table in tables:
            if not table["held"]:  # as plans are that have no such field
                del table["held"]
        content = [self.contract, self.on_late_conflict, self.intents, tables]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def state_tags(self, state: int) -> dict[str, str]:
        """Return the tags of a log entry that brings a state."""
        return {
            PUBLICATION_TAG: self.publication,
            ANCHOR_TAG: self.anchor,
            TABLES_TAG: json.dumps(list(self.uris)),
            STATE_TAG: STATE_NAMES[state],
        }


def publication_id(plan: PublicationPlan, marks: Sequence[str]) -> str:
    """Return the id of a plan.

    :param marks: :func:`table_mark` of its tables.
    """
    return ".".join((plan.tables[0].transaction_id, plan.digest(), *marks))
