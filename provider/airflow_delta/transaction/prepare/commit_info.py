"""The ``commitInfo`` of a commit: always the first line, with every field that Delta writes (Delta's ``CommitInfo``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_delta.log.actions.actions import Action, AddCDCFile, AddFile, CommitInfo, RemoveFile
from airflow_delta.masking import masked, masked_values
from airflow_delta.transaction.operations import Operation
from airflow_delta.transaction.policy import check_user_metadata
from airflow_delta.transaction.prepare.isolation import IsolationLevel
from airflow_delta.version import __version__

ENGINE_INFO = f"airflow-provider-delta/{__version__}"


def changes_data(actions: Sequence[Action]) -> bool:
    """Tell whether any file action says ``dataChange=true``."""
    return any(isinstance(action, AddFile | RemoveFile | AddCDCFile) and action.data_change for action in actions)


def build_commit_info(
    actions: Sequence[Action],
    operation: Operation,
    *,
    read_version: int,
    isolation_level: IsolationLevel,
    is_blind_append: bool,
    timestamp: int,
    txn_id: str,
    tags: Mapping[str, Any] | None,
    user_metadata: str | None,
    metrics: Mapping[str, str] | None,
    large: bool,
) -> CommitInfo:
    """Return the ``commitInfo`` of a commit of ``actions``.

    :param timestamp: milliseconds since the epoch.
    :param tags: values become strings; the field is left out if there are none.
    :param metrics: ``operationMetrics``; an empty mapping is written, ``None`` is not.
    :param large: as ``commitLarge`` writes it: ``readVersion`` also when -1, no ``dataChange``.
    """
    check_user_metadata(user_metadata)
    return CommitInfo(
        timestamp=timestamp,
        operation=operation.name,
        # Whoever can read the table can read its log.
        operation_parameters=masked_values(operation.encoded_parameters()),
        read_version=read_version if large or read_version >= 0 else None,
        isolation_level=isolation_level.value,
        is_blind_append=is_blind_append,
        data_change=None if large else changes_data(actions),
        operation_metrics=dict(metrics) if metrics is not None else None,
        user_metadata=None if user_metadata is None else masked(user_metadata),
        tags={name: masked(str(value)) for name, value in tags.items()} if tags else None,
        engine_info=ENGINE_INFO,
        txn_id=txn_id,
    )
