"""Metadata domains that two transactions both write (Delta's check of domain metadata)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from airflow_delta.contract.delta_names import CLUSTERING_DOMAIN, ROW_TRACKING_DOMAIN
from airflow_delta.exceptions import ConcurrentTransactionException, DeltaAnalysisException, MetadataChangedException
from airflow_delta.log.actions.actions import Action, AddFile, DomainMetadata, Metadata, RemoveFile
from airflow_delta.log.features import clustering
from airflow_delta.log.features import protocol as table_protocol
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.transaction.conflicts.current_transaction import CurrentTransaction
from airflow_delta.transaction.conflicts.errors import conflict
from airflow_delta.transaction.conflicts.winning_commit import WinningCommit
from airflow_delta.transaction.operation_kinds import operation_kind
from airflow_delta.transaction.prepare.file_action_checks import REPLACES

if TYPE_CHECKING:
    from airflow_delta.log.schema.walk import Path

_GOES_WITH_THE_TABLE = frozenset({CLUSTERING_DOMAIN})
"""Domains that a REPLACE TABLE removes along with the table that it replaces."""


def check_winner_domains(current: CurrentTransaction, winner: WinningCommit) -> None:
    """Check the domains of a winning commit; a REPLACE TABLE removes those that it must not inherit.

    :raises ConcurrentTransactionException: if both write the same domain.
    :raises MetadataChangedException: if the winner clusters the table by a column that this transaction drops, or by other ones
        than this transaction has clustered files by.
    """
    if "domainMetadata" not in table_protocol.features(current.protocol):
        return
    own = {action.domain for action in current.own_actions if isinstance(action, DomainMetadata)}
    common = sorted(own.intersection(winner.domains) - {ROW_TRACKING_DOMAIN})
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
    domains = {domain.domain: domain for domain in winner.domain_metadata if domain.domain == CLUSTERING_DOMAIN}
    if not domains:
        return
    columns = clustering.clustering_columns(domains)
    if _clusters_by_others(current, columns):
        raise conflict(
            MetadataChangedException,
            winner,
            "The clustering columns were changed by a concurrent update, and this transaction has clustered files by the former "
            "ones",
            current=current,
        )
    metadata = next((action for action in current.own_actions if isinstance(action, Metadata)), None)
    if metadata is None:
        return
    try:
        clustering.check_clustering(metadata, columns)
    except DeltaAnalysisException as error:
        raise conflict(
            MetadataChangedException,
            winner,
            f"The clustering columns were changed by a concurrent update and do not fit this transaction ({error.message})",
            current=current,
        ) from error


def _clusters_by_others(current: CurrentTransaction, columns: Sequence[Path]) -> bool:
    """Tell whether files that the transaction has clustered, whatever else it does, name other columns than these."""
    if operation_kind(current.operation).in_place:
        return False
    # A file whose rows are marked is both removed and added, and stays in its cube.
    removed = {action.path for action in current.own_actions if isinstance(action, RemoveFile)}
    new = (action for action in current.own_actions if isinstance(action, AddFile) and action.path not in removed)
    cubes = (clustering.cube_of(action.tags) for action in new if action.clustering_provider is not None)
    schema = TableDefinition.of(current.metadata).schema
    names = tuple(map(clustering.quoted_path, clustering.logical_columns(schema, columns)))
    return any(cube is not None and cube.columns != names for cube in cubes)
