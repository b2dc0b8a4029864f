"""One table of a publication, as a worker looks at it, checks it and puts states into its log.

Every state is put at exactly the version up to which the log was checked. A put that was lost, one whose answer is unknown and
one that succeeded are the same to the caller: it looks again.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.audit import RUN_AGAIN
from airflow_delta.contract.intents import INTENT_APP, STATE_APP
from airflow_delta.contract.payloads import CommitResult, TransactionHandle
from airflow_delta.contract.tags import REASON_TAG
from airflow_delta.exceptions import (
    ChecksOutdatedException,
    CommitCancelledException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    DeltaConcurrentModificationException,
    DeltaError,
    DeltaUnsupportedOperationException,
    PostCommitHookFailedException,
    PublicationPendingException,
)
from airflow_delta.log.actions.actions import Action, SetTransaction
from airflow_delta.log.actions.intents import open_intents
from airflow_delta.log.storage.file_names import LAST_CHECKPOINT, commit_file
from airflow_delta.publication.ids import PublicationId, end_path
from airflow_delta.publication.inverse import Inverse, find_inverse
from airflow_delta.publication.plan import load_writes
from airflow_delta.publication.records import INTENT, PUBLISHED, REFUSED, STATE_NAMES, UNDONE, PlannedTable, PublicationPlan
from airflow_delta.publication.states import newest_state, state_by_entries, state_entry
from airflow_delta.table.audit.held import HeldChecks
from airflow_delta.table.commit.commit import CommitOptions, commit_stages, create_empty
from airflow_delta.table.stage.conflicts import check_stages
from airflow_delta.table.stage.load import check_staged_files
from airflow_delta.table.stage.view import TransactionView, view_of
from airflow_delta.table.start.location import check_location
from airflow_delta.table.state.find_commit import STANDING_SUFFIX, UNDONE_SUFFIX, find_commit, standing_version
from airflow_delta.transaction import CommitPolicy, Operation, OptimisticTransaction, PostCommitHook, TransactionObserver
from airflow_delta.transaction.conflict_detection import check_level
from airflow_delta.transaction.events import FAILURE, held_back
from airflow_delta.transaction.intents import IGNORE_INTENTS, IntentRule

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.state.markers import Fence
    from airflow_delta.transaction.commit.hooks import CommittedTransaction

logger = logging.getLogger(__name__)


class IntentMetError(Exception):
    """Another publication is under way on the table.

    :param publication: its id.
    """

    def __init__(self, publication: str) -> None:
        super().__init__(publication)
        self.publication = publication


class OneAtATime(PostCommitHook):
    """A hook of somebody who does not expect to be called for several tables at a time.

    :param lock: of all hooks of the publication.
    """

    def __init__(self, hook: PostCommitHook, lock: threading.Lock) -> None:
        self.name = hook.name
        self._hook = hook
        self._lock = lock

    def run(self, txn: CommittedTransaction, version: int, actions: Sequence[Action]) -> None:
        """Run the hook when no other one runs."""
        with self._lock:
            self._hook.run(txn, version, actions)

    def handle_error(self, txn: CommittedTransaction, error: Exception, version: int) -> None:
        """Let the hook decide."""
        self._hook.handle_error(txn, error, version)


class _Written(TransactionObserver):
    """Calls somebody as soon as the log entry is there."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def written(self, version: int) -> None:  # noqa: ARG002
        self._then()


class Participant:
    """A table of a plan. One thread at a time works on it.

    :param hooks: run after its commit, if this worker makes it.
    :param policy: limits of its commits.
    :param staged: the file of its staged writes, if this worker has just put it.
    :ivar fence: the marker of this worker's attempt, if it holds one.
    :ivar passed_over: other publications that this worker waited for in vain.
    """

    def __init__(
        self,
        log: DeltaLog,
        planned: PlannedTable,
        plan: PublicationPlan,
        *,
        hooks: Sequence[PostCommitHook] = (),
        policy: CommitPolicy | None = None,
        staged: bytes | None = None,
    ) -> None:
        self.log = log
        self.uri = planned.table
        self.handle = TransactionHandle.from_dict(planned.handle)
        self.fence: Fence | None = None
        self.passed_over: set[str] = set()
        self._planned = planned
        self._plan = plan
        self._hooks = hooks
        self._policy = policy if policy is not None else CommitPolicy()
        self._staged = staged

    def __repr__(self) -> str:
        return f"Participant({self.uri!r})"

    @property
    def end_path(self) -> str:
        """Path of the note, below this table, that the publication has ended on every table."""
        return end_path(self._planned.transaction_id, PublicationId.parse(self._plan.publication).digest)

    # -- looks -----------------------------------------------------------------------------------------------------------------

    def look(self) -> int | None:
        """Return the state from the newest version, ``None`` if it has none but perhaps an intent.

        A table that is gone, or another one by now, has refused.

        :raises PublicationPendingException: if a listing shows no table although there is one.
        """
        snapshot = self.log.update()
        if snapshot.version < 0 and self._has_log:
            snapshot = self.log.update()
            if snapshot.version < 0:
                raise self.log.error(
                    PublicationPendingException,
                    f"The store lists no log of table {self.uri}, and yet it has one. Run the task again.",
                    publication=self._plan.publication,
                    tables=self._plan.uris,
                )
        if not self.is_there(snapshot):
            return REFUSED
        return self.state_in(snapshot)

    @property
    def _has_log(self) -> bool:
        """Whether the version that was read, or the first one, or a checkpoint is there, whatever a listing says."""
        read = commit_file(max(self.handle.read_version, 0))
        return any(self.log.store.head(path) is not None for path in (read, LAST_CHECKPOINT))

    def is_there(self, snapshot: Snapshot) -> bool:
        """Tell whether this is the table of the plan."""
        if snapshot.version < 0:
            return self.handle.read_version < 0 and self._has_not_been_created
        return self.handle.table_id in (None, snapshot.metadata.id)

    def state_in(self, snapshot: Snapshot) -> int | None:
        """Return the state in a version."""
        if snapshot.version < 0:
            return None
        found = newest_state(snapshot, self._plan.publication)
        if found is not None:
            return found
        begun = self.handle.timestamp
        return state_by_entries(self.log, snapshot, self._plan.publication, since=self._since, begun=begun)

    @property
    def has_intent(self) -> bool:
        """Whether the publication has put its intent here, as of the last look."""
        snapshot, app_id = self.log.snapshot, f"{INTENT_APP}{self._plan.publication}"
        return snapshot.version >= 0 and snapshot.set_transaction(app_id, expired=True) is not None

    @property
    def is_announced(self) -> bool:
        """Whether its intent is open in the log as of the last look, even if the table is another one by now."""
        return self.has_intent and self.state_in(self.log.snapshot) is None

    @property
    def other_intent(self) -> str | None:
        """The publication whose intent is open here beside ours, as of the last look."""
        found = open_intents(self.log.snapshot.intents)
        return next((other for other in found if other != self._plan.publication and other not in self.passed_over), None)

    _has_not_been_created = True

    # -- the stages ------------------------------------------------------------------------------------------------------------

    @cached_property
    def view(self) -> TransactionView:
        """The transaction with its stages, checked against each other and storage."""
        view = view_of(self.log, self.handle, load_writes(self.log, self._planned, self._staged))
        # An undone publication would have to move positions back.
        if any(stage.write.sources or stage.write.loads for stage in view.stages):
            raise self.log.error(
                DeltaUnsupportedOperationException,
                f"A stage for table {self.uri} reads new rows of another table, or new files, and its transaction is part of a "
                "publication. Nothing is committed. Read them in a transaction of this table alone.",
            )
        check_stages(view)
        check_staged_files(self.log.store, self.handle, view.stages)
        return view

    @property
    def is_new(self) -> bool:
        """Whether there was no table when the transaction began."""
        return self.handle.read_version < 0

    def create_if_missing(self) -> None:
        """Create the table, without rows, if there is none: states need a log."""
        if not self.is_new or self.log.update().version >= 0:
            return
        check_location(self.log)
        policy = replace(self._policy, intents=IGNORE_INTENTS)
        create_empty(self.view, policy, lambda new: Operation.create_table(new.partition_columns, properties=new.configuration))
        self._has_not_been_created = False

    def check(self) -> int:
        """Check the stages against the log, without a put; return the version up to which nothing conflicts.

        :raises DeltaConcurrentModificationException: if another commit conflicts, or the log holds the transaction already.
        :raises ChecksOutdatedException: if another commit has changed what a check has read that must hold.
        :raises DeltaAuditFailedException: if such a check does not hold after it.
        """
        policy = replace(self._commit_policy(decided=False), cancelled=lambda: True, intents=IGNORE_INTENTS)
        try:
            with _quietly():
                commit_stages(self.view, self._options(policy, hooks=False))
        except CommitCancelledException as error:
            return -1 if error.version is None else error.version - 1
        raise self._committed_before

    # -- puts ------------------------------------------------------------------------------------------------------------------

    def put_published(self, written: Callable[[], None] | None = None) -> None:
        """Commit the stages with state 1, unless something conflicts.

        :param written: called as soon as the entry is there, before what follows a commit; not if only the log shows it.
        :raises IntentMetError: if another publication is under way here.
        :raises DeltaError: with ``refuses_publication`` if the publication cannot be here.
        """
        rule = IntentRule(own=self._plan.publication, meet=self._meet)
        policy = replace(self._commit_policy(decided=self._is_decided), intents=rule)
        if self._is_decided:  # what a task would refuse, it has refused by now
            policy = replace(policy, check_actions=None)
        if self.fence is not None:
            policy = self.fence.policy(policy)
        try:
            with _quietly():
                commit_stages(self.view, self._options(policy, hooks=True, written=written))
        except PostCommitHookFailedException as error:
            logger.warning("Table %s: %s", self.uri, error.message)
        if self.state_in(self.log.snapshot) is None and self.look() is None:
            raise self._committed_before

    @property
    def _committed_before(self) -> ConcurrentTransactionException:
        """What is wrong if the log holds the transaction, and not this publication."""
        found = self.result()
        return ConcurrentTransactionException(
            f"Transaction {self.handle.transaction_id} on table {self.uri} was committed by another plan than that of "
            f"publication {self._plan.publication}: its group was cleared, and published, after this commit had begun. This one "
            "publishes nothing more. What is published stands; clear the start tasks, with all downstream, to go on from it.",
            table=self.uri,
            winning_version=None if found is None else found.version,
        )

    def put_state(
        self,
        state: int,
        *,
        at: int | None = None,
        reason: dict[str, Any] | None = None,
        inverse: Inverse | None = None,
        written: Callable[[], None] | None = None,
    ) -> bool:
        """Put an entry with a state, as the version right after the last one that was looked at.

        :param at: the version up to which the caller has checked; another version is in between, it is not put.
        :param inverse: with state 3: what takes the commit back on that version.
        :param written: called as soon as the entry is there, before what follows a commit.
        :return: whether it was put. If not, somebody else has the version: look again.
        """
        snapshot = self.log.snapshot
        if snapshot.version < 0 or at not in (None, snapshot.version):
            return False
        publication = self._plan.publication
        policy = replace(self._policy, next_version_only=True, intents=IGNORE_INTENTS, cancelled=None, check_actions=None)
        observer = None if written is None else _Written(written)
        txn = OptimisticTransaction(self.log, snapshot, txn_id=f"{publication}#{state}", policy=policy, observer=observer)
        now = int(time.time() * 1000)
        app_id = f"{INTENT_APP if state == INTENT else STATE_APP}{publication}"
        actions: list[Action] = [SetTransaction(app_id=app_id, version=state, last_updated=now)]
        if inverse is not None:
            actions += [*self._key_before(inverse, now), *inverse.actions]
        tags = self._plan.state_tags(state)
        if reason is not None:
            tags[REASON_TAG] = json.dumps(reason)
        try:
            txn.commit(actions, Operation(f"PUBLICATION {STATE_NAMES[state].upper()}"), tags=tags)
        except ConcurrentWriteException:
            return False
        except PostCommitHookFailedException as error:
            logger.warning("Table %s: %s", self.uri, error.message)
        return True

    def _key_before(self, inverse: Inverse, now: int) -> list[Action]:
        """Return what says that the key of the transaction is no longer committed."""
        key = self.handle.app_id
        before = self.log.snapshot_at((inverse.version or 1) - 1)
        standing = standing_version(before, key, before.transaction_version(key))
        return [
            SetTransaction(app_id=f"{key}{UNDONE_SUFFIX}", version=self.handle.txn_version, last_updated=now),
            SetTransaction(app_id=f"{key}{STANDING_SUFFIX}", version=-1 if standing is None else standing, last_updated=now),
        ]

    def find_inverse(self) -> Inverse:
        """Return what takes the commit back on the version that was looked at last."""
        return find_inverse(self.log, self.log.snapshot, self._plan.publication, since=self._since)

    @property
    def _since(self) -> int:
        return max(self.handle.read_version + 1, 0)

    @property
    def _is_decided(self) -> bool:
        """Whether a commit of the stages is put only after the decision: on every table but the anchor."""
        return self.uri != self._plan.tables[0].table

    def _commit_policy(self, *, decided: bool) -> CommitPolicy:
        """Return the policy for one commit of the stages: the checks that must hold then count its winners.

        :param decided: checking again does not help any more.
        """
        policy = replace(self._policy, conflict_detection=check_level(self._planned.conflict_detection))
        if not self._planned.held:
            return policy
        staged = [stage.write for stage in self.view.stages]
        advice = "" if decided else f"{RUN_AGAIN}."
        held = HeldChecks(self.log, self.handle, self._planned.held, staged, advice)
        return replace(policy, check_winners=held)

    def _options(self, policy: CommitPolicy, *, hooks: bool, written: Callable[[], None] | None = None) -> CommitOptions:
        return CommitOptions(
            policy=policy,
            tags={**self._planned.tags, **self._plan.state_tags(PUBLISHED)},
            user_metadata=self._planned.user_metadata,
            hooks=self._hooks if hooks else (),
            transactions={f"{STATE_APP}{self._plan.publication}": PUBLISHED},
            observer=None if written is None else _Written(written),
        )

    def _meet(self, publication: str) -> bool:
        if publication in self.passed_over:
            return False
        raise IntentMetError(publication)

    # -- results ---------------------------------------------------------------------------------------------------------------

    def result(self) -> CommitResult | None:
        """Return the commit of the stages, ``None`` if the log does not hold it."""
        if self.log.snapshot.version < 0:
            return None
        return find_commit(self.log, app_id=self.handle.app_id, transaction_id=self.handle.transaction_id, since=self._since)

    def reason(self, state: int) -> dict[str, Any] | None:
        """Return why state 2 or 4 was put here."""
        commit = state_entry(self.log, self._plan.publication, state, since=self._since)
        text = None if commit is None else ((commit.commit_info or {}).get("tags") or {}).get(REASON_TAG)
        try:
            found = json.loads(text) if isinstance(text, str) else None
        except ValueError:
            found = None
        return found if isinstance(found, dict) else None

    def dirty_reads(self) -> list[dict[str, Any]]:
        """Return the commits between state 1 and its inverse that may have read rows which were taken back."""
        inverse = state_entry(self.log, self._plan.publication, UNDONE, since=self._since)
        if inverse is None:
            return []
        before = self.log.snapshot_at(inverse.version - 1)
        return list(find_inverse(self.log, before, self._plan.publication, since=self._since).dirty_reads)


def reason_of(error: DeltaError, table: str) -> dict[str, Any]:
    """Return the JSON form of what a table refuses a publication for."""
    found: dict[str, Any] = {"error": type(error).__name__, "message": error.message, "table": table}
    conflict: BaseException | None = error
    if isinstance(error, ChecksOutdatedException):
        conflict = error.__cause__
        found["checks"] = [list(check) for check in error.checks]
    if isinstance(conflict, DeltaConcurrentModificationException):
        info = conflict.winning_commit or {}
        keys = ("timestamp", "operation", "engineInfo", "txnId", "tags", "isBlindAppend")
        commit = {key: info[key] for key in keys if key in info}
        found |= {"version": conflict.winning_version, "operation": conflict.operation, "commit": commit}
    return found


@contextmanager
def _quietly() -> Iterator[None]:
    """Record no failure of a commit that was only a check, or that lets another publication end first."""
    with held_back(FAILURE) as held:
        try:
            yield
        except (CommitCancelledException, IntentMetError):
            held.forget()
            raise
