"""What the commit of some stages would publish now, checked as the commit checks it; nothing is put."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.exceptions import CommitCancelledException, DeltaConcurrentModificationException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import AddFile, Metadata, RemoveFile
from airflow_delta.table.commit.commit import staged_commit
from airflow_delta.table.stage.conflicts import check_stages
from airflow_delta.table.stage.load import check_staged_files
from airflow_delta.table.stage.staged_writes import check_reported, parse_staged
from airflow_delta.table.stage.view import TransactionView, view_of
from airflow_delta.transaction import events
from airflow_delta.transaction.intents import IGNORE_INTENTS
from airflow_delta.transaction.policy import CommitPolicy

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.actions.actions import Action
    from airflow_delta.log.delta_log import DeltaLog
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
    actions = commit.txn.prepare_commit(commit.actions, commit.operation)
    later = on_newest(view) if newest else None
    if later is not None:
        return later
    return PlannedCommit(
        snapshot=view.snapshot,
        metadata=commit.txn.metadata,
        actions=actions,
        operation=commit.operation,
        txn_id=commit.txn.txn_id,
    )


def on_newest(view: TransactionView) -> PlannedCommit | None:
    """Return what would be committed after the newest version, as the loop of the commit finds it; nothing is put.

    ``None`` if that is the version that was read, and after a conflict: the commit says so.
    """
    if view.handle.read_version < 0 or view.log.update().version <= view.handle.read_version:
        return None
    found: list[Sequence[Action]] = []

    def note(_metadata: Metadata, actions: Sequence[Action]) -> None:
        found.append(actions)

    policy = CommitPolicy(cancelled=lambda: True, check_actions=note, intents=IGNORE_INTENTS)
    staged = staged_commit(view, policy)
    try:
        with events.held_back("delta.commit") as told:
            try:
                staged.txn.commit(staged.actions, staged.operation)
            finally:
                told.forget()  # nothing was to be committed
    except CommitCancelledException as error:
        if error.version is None or not found:
            return None
        snapshot, actions = view.log.snapshot_at(error.version - 1), found[-1]
        return PlannedCommit(
            snapshot=snapshot,
            metadata=next((action for action in actions if isinstance(action, Metadata)), snapshot.metadata),
            actions=actions,
            operation=staged.operation,
            txn_id=staged.txn.txn_id,
        )
    except DeltaConcurrentModificationException:
        return None
    return None  # the log has it already
