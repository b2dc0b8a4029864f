"""What the commit of some stages would publish, checked as the commit checks it: where previews and reviews begin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.log.actions.actions import Action, AddFile, Metadata, RemoveFile
from airflow_delta.table.audit.newest import on_newest
from airflow_delta.table.commit.commit import staged_commit
from airflow_delta.table.stage.conflicts import check_stages
from airflow_delta.table.stage.load import check_staged_files
from airflow_delta.table.stage.staged_writes import check_reported, parse_staged
from airflow_delta.table.stage.view import TransactionView, view_of

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.snapshot import Snapshot
    from airflow_delta.transaction import Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCommit:
    """What the commit of some stages would publish now.

    :param snapshot: the version that it would come after.
    :param metadata: of the table after it.
    :param actions: in its log entry, without ``commitInfo``.
    """

    snapshot: Snapshot
    metadata: Metadata
    actions: Sequence[Action]
    operation: Operation
    txn_id: str

    @property
    def version(self) -> int:
        """Version that it would come after; -1 if there is no table."""
        return self.snapshot.version

    @property
    def adds(self) -> list[AddFile]:
        """Files that come."""
        return [action for action in self.actions if isinstance(action, AddFile)]

    @property
    def removes(self) -> list[RemoveFile]:
        """Files that go."""
        return [action for action in self.actions if isinstance(action, RemoveFile)]


def planned_commit(
    log: DeltaLog,
    handle: TransactionHandle,
    staged: Sequence[StagedWrite | Mapping[str, Any]],
    *,
    newest: bool = True,
) -> PlannedCommit:
    """Return what the commit of some stages would publish now, checked as the commit checks it.

    :param newest: after the newest version, unless it would conflict with a later one than that which was read; if not, or
        if it would, after the latter.
    """
    writes = parse_staged(handle, staged)
    check_reported(handle, writes, {})
    view: TransactionView = view_of(log, handle, writes)
    check_stages(view)
    check_staged_files(log.store, handle, view.stages)
    commit = staged_commit(view)
    actions, txn = commit.txn.prepare_commit(commit.actions, commit.operation), commit.txn
    later = on_newest(view) if newest else None
    return PlannedCommit(
        snapshot=view.snapshot if later is None else later.snapshot,
        metadata=txn.metadata if later is None else later.metadata,
        actions=actions if later is None else later.actions,
        operation=commit.operation,
        txn_id=txn.txn_id,
    )
