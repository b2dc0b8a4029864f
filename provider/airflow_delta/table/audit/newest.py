"""What a transaction would commit on top of what others have committed since the version that it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_delta.exceptions import CommitCancelledException, DeltaConcurrentModificationException
from airflow_delta.log.actions.actions import AddFile, Metadata, RemoveFile
from airflow_delta.table.commit.commit import staged_commit
from airflow_delta.transaction import events
from airflow_delta.transaction.intents import IGNORE_INTENTS
from airflow_delta.transaction.policy import CommitPolicy

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.actions.actions import Action
    from airflow_delta.table.stage.view import TransactionView


@dataclass(frozen=True, slots=True)
class OnNewest:
    """What would be committed, if it were the version after this one.

    :param actions: without ``commitInfo``.
    """

    snapshot: Snapshot
    actions: Sequence[Action]

    @property
    def adds(self) -> list[AddFile]:
        """Return the files that the commit would add."""
        return [action for action in self.actions if isinstance(action, AddFile)]

    @property
    def removes(self) -> list[RemoveFile]:
        """Return the files that it would remove."""
        return [action for action in self.actions if isinstance(action, RemoveFile)]

    @property
    def metadata(self) -> Metadata:
        """Return the metadata that the table would have then."""
        return next((action for action in self.actions if isinstance(action, Metadata)), self.snapshot.metadata)


def on_newest(view: TransactionView) -> OnNewest | None:
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
        return OnNewest(view.log.snapshot_at(error.version - 1), found[-1])
    except DeltaConcurrentModificationException:
        return None
    return None  # the log has it already
