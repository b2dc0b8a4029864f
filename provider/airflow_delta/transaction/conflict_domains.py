"""Metadata domains that two transactions write (Delta's check of domain metadata)."""

from __future__ import annotations

import msgspec

from airflow_delta.exceptions import ConcurrentTransactionException
from airflow_delta.log import protocol as table_protocol
from airflow_delta.log.actions import Action, DomainMetadata
from airflow_delta.transaction import row_tracking
from airflow_delta.transaction.conflict_errors import conflict
from airflow_delta.transaction.conflict_state import CurrentTransaction
from airflow_delta.transaction.winning_commit import WinningCommit

_GOES_WITH_THE_TABLE = frozenset({"delta.clustering"})
"""Domains that a REPLACE TABLE takes away with the table that it replaces."""

_REPLACES = frozenset(
    {"REPLACE TABLE", "REPLACE TABLE AS SELECT", "CREATE OR REPLACE TABLE", "CREATE OR REPLACE TABLE AS SELECT"}
)


def check_domains(current: CurrentTransaction, winner: WinningCommit) -> None:
    """Check the domains of a winning commit; a REPLACE TABLE removes those that it must not inherit.

    :raises ConcurrentTransactionException: both write a domain.
    """
    if "domainMetadata" not in table_protocol.features(current.protocol):
        return
    own = {action.domain for action in current.own_actions if isinstance(action, DomainMetadata)}
    common = sorted(own.intersection(winner.domains) - {row_tracking.DOMAIN})
    if common:
        raise conflict(
            ConcurrentTransactionException,
            winner,
            f"The domain metadata {', '.join(common)} was written by a concurrent update and by this transaction",
            current=current,
        )
    if current.operation in _REPLACES and current.options.replace_removes_new_domains:
        tombstones = [
            msgspec.structs.replace(domain, removed=True)
            for domain in winner.domain_metadata
            if domain.domain in _GOES_WITH_THE_TABLE and not domain.removed
        ]
        if tombstones:
            others: list[Action] = [action for action in current.own_actions if not isinstance(action, DomainMetadata)]
            domains = [action for action in current.own_actions if isinstance(action, DomainMetadata)]
            current.replace_actions([*others, *domains, *tombstones])
