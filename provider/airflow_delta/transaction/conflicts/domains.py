"""Metadata domains that two transactions both write (Delta's check of domain metadata)."""

from __future__ import annotations

import msgspec

from airflow_delta.exceptions import ConcurrentTransactionException, DeltaAnalysisException, MetadataChangedException
from airflow_delta.log.actions.actions import Action, DomainMetadata, Metadata
from airflow_delta.log.features import clustering
from airflow_delta.log.features import protocol as table_protocol
from airflow_delta.transaction.conflicts.current_transaction import CurrentTransaction
from airflow_delta.transaction.conflicts.errors import conflict
from airflow_delta.transaction.conflicts.winning_commit import WinningCommit
from airflow_delta.transaction.prepare import row_tracking
from airflow_delta.transaction.prepare.file_checks import REPLACES

_GOES_WITH_THE_TABLE = frozenset({clustering.DOMAIN})
"""Domains that a REPLACE TABLE removes along with the table that it replaces."""


def check_winner_domains(current: CurrentTransaction, winner: WinningCommit) -> None:
    """Check the domains of a winning commit; a REPLACE TABLE removes those that it must not inherit.

    :raises ConcurrentTransactionException: if both write the same domain.
    :raises MetadataChangedException: if the winner clusters the table by a column that this transaction drops.
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
    if current.operation not in REPLACES:
        _check_clustering(current, winner)
    elif current.options.replace_removes_new_domains:
        tombstones = [
            msgspec.structs.replace(domain, removed=True)
            for domain in winner.domain_metadata
            if domain.domain in _GOES_WITH_THE_TABLE and not domain.removed
        ]
        if tombstones:
            others: list[Action] = [action for action in current.own_actions if not isinstance(action, DomainMetadata)]
            domains = [action for action in current.own_actions if isinstance(action, DomainMetadata)]
            current.replace_actions([*others, *domains, *tombstones])


def _check_clustering(current: CurrentTransaction, winner: WinningCommit) -> None:
    metadata = next((action for action in current.own_actions if isinstance(action, Metadata)), None)
    domains = {domain.domain: domain for domain in winner.domain_metadata if domain.domain == clustering.DOMAIN}
    if metadata is None or not domains:
        return
    try:
        clustering.check_clustering(metadata, clustering.clustering_columns(domains))
    except DeltaAnalysisException as error:
        raise conflict(
            MetadataChangedException,
            winner,
            f"The clustering columns were changed by a concurrent update and do not fit this transaction ({error.message})",
            current=current,
        ) from error
