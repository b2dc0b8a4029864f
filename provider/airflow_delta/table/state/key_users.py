"""Which run, and which of its tasks, has used a transaction key, by the tags of commits.

A key that another run has committed makes this run skip its rows, or replace the other's. A run that has published to the table
under another key, because a task was renamed or the key was changed in the Dag file, would publish its rows twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.choices import KEY_CHECKS
from airflow_delta.contract.clocks import SYNCHRONISED_WITHIN
from airflow_delta.contract.tags import (
    APP_ID_TAG,
    DAG_ID_TAG,
    MAP_INDEX_TAG,
    RUN_ID_TAG,
    SCHEDULED_FOR_TAG,
    TAG_PREFIX,
    TASK_ID_TAG,
)
from airflow_delta.exceptions import TransactionAlreadyCommittedException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.decode import read_commit_info
from airflow_delta.table.state.commit_times import CommitTimes
from airflow_delta.table.state.find_commit import STANDING_SUFFIX, UNDONE_SUFFIX, newest_first, standing_version

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import CommitResult, TransactionHandle
    from airflow_delta.log import Snapshot
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.state.transaction_retention import PossibleSince

__all__ = ["KEY_CHECKS", "KeyUser", "check_key_of_run", "check_key_of_table"]

logger = logging.getLogger(__name__)


_KEEP_ROWS = ("OPTIMIZE", "REORG", "COMPUTE STATS", "STREAMING UPDATE")
"""Operations that do not make rows come twice: they move what is there, or their keys come from a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyUser:
    """A task of a Dag run that uses a key.

    :param tags: ``commitInfo.tags`` that name it.
    :param committers: tasks whose commit is a commit of this transaction.
    :param tasks: the tasks of the Dag; ``None``: unknown.
    :param default_prefix: what the default key begins with.
    :param check: ``warn``: refuse a key of a run that Airflow had scheduled for something else, and warn about one of any other
        run or task; ``fail``: refuse both; ``off``: neither, and do not look for what the run has committed under another key.
    :param since: returns when the run may have begun, in milliseconds since the epoch; ``None``: unknown.
    :param tell: called with a warning.
    """

    tags: Mapping[str, str]
    committers: frozenset[str]
    tasks: frozenset[str] | None
    default_prefix: str
    check: str = "warn"
    since: PossibleSince = field(default=lambda: None)
    tell: Callable[[str], None] = logger.warning

    @property
    def dag_id(self) -> str:
        """Return the Dag's id."""
        return self.tags[DAG_ID_TAG]

    @property
    def run_id(self) -> str:
        """Return the run's id."""
        return self.tags[RUN_ID_TAG]

    @property
    def task_id(self) -> str:
        """Return the task's id."""
        return self.tags[TASK_ID_TAG]

    def is_same_run(self, tags: Mapping[str, Any]) -> bool:
        """Return whether a commit is by a task of the same run."""
        return tags.get(DAG_ID_TAG) == self.dag_id and tags.get(RUN_ID_TAG) == self.run_id

    def is_scheduled_for_other(self, tags: Mapping[str, Any]) -> bool:
        """Return whether a commit is of a run of this Dag that Airflow has certainly scheduled for other data than this one."""
        mine, other = self.tags.get(SCHEDULED_FOR_TAG), tags.get(SCHEDULED_FOR_TAG)
        return tags.get(DAG_ID_TAG) == self.dag_id and mine is not None and other is not None and mine != other

    def is_gone(self, task_id: str) -> bool:
        """Return whether the Dag has had a task that it no longer has."""
        return self.tasks is not None and task_id not in self.tasks

    def is_own(self, tags: Mapping[str, Any]) -> bool:
        """Return whether a commit of the key is this task's, or of the task that it was before it was renamed."""
        task_id = str(tags.get(TASK_ID_TAG))
        return self.is_same_run(tags) and (task_id in self.committers or self.is_gone(task_id))

    @property
    def is_mapped(self) -> bool:
        """Return whether it is an instance of a mapped task or group."""
        return self.tags.get(MAP_INDEX_TAG, "-1") != "-1"


def check_key_of_table(table: str, handle: TransactionHandle, committed: CommitResult, user: KeyUser | None) -> None:
    """Warn about, or refuse, a key that another or an unknown run or task has committed.

    :param committed: the commit that holds the key.
    :param handle: of the run, under ``skip`` or ``replace``.
    :raises TransactionAlreadyCommittedException: if the user of the key wants that, or Airflow had scheduled the other run for
        something else: the rows of one of them would be missing.
    """
    app_id, policy = handle.app_id, handle.rerun_policy
    if user is None or user.check == "off" or app_id.startswith(user.default_prefix):
        return
    by = committed.committed_by
    tags = {f"{TAG_PREFIX}{name}": value for name, value in (by or {}).items()}
    is_own = bool(by) and user.is_own(tags)
    if by and is_own and (not user.is_mapped or by.get("mapIndex") in ("-1", user.tags[MAP_INDEX_TAG])):
        return
    outcome = "its rows are not published" if policy == "skip" else "its rows replace those"
    if is_forgotten(committed):
        who = "and the commit has left the log, so which run wrote it is unknown"
        where = ""
    else:
        who = f"by {described(by)}"
        where = f" in version {committed.version}"
    is_same = not handle.monotonic or committed.txn_version == handle.txn_version  # a later version is skipped as it is meant
    of_other = is_same and user.is_scheduled_for_other(tags)
    if of_other:
        who += f", which was scheduled for {tags[SCHEDULED_FOR_TAG]}, and this run for {user.tags[SCHEDULED_FOR_TAG]}"
    text = (
        f"The key {app_id!r} of {user.task_id!r} in run {user.run_id!r} of Dag {user.dag_id!r} was committed to table {table}"
        f"{where} before, {who}: under rerun_policy={policy!r} {outcome}. If both do not work on the same rows, give them keys "
        "of their own: name in transaction_key what a run works on, one to one, such as {{ data_interval_start.isoformat() }} or "
        "{{ run_id }}."
    )
    if of_other and not is_own:
        raise TransactionAlreadyCommittedException(
            f"{text} Nothing is committed. If they are to share the key, pass key_check='off'.",
            table=table,
            version=committed.version,
        )
    if user.check == "fail" and not is_own:  # another instance of the task: after a clear it may be the same work
        raise TransactionAlreadyCommittedException(
            f"{text} Nothing is committed. key_check='warn' warns of it, key_check='off' does not.",
            table=table,
            version=committed.version,
        )
    user.tell(text)


def is_forgotten(committed: CommitResult) -> bool:
    """Return whether the commit has left the log, and only its key is known."""
    return not (committed.transaction_id or committed.operation)


def described(by: Mapping[str, Any] | None) -> str:
    """Return who made a commit, by what its tags say (see ``CommitResult.committed_by``)."""
    if not by:
        return "another writer, which names no Dag run"
    index = by.get("mapIndex", "-1")
    instance = "" if index in ("-1", None) else f"[{index}]"
    return f"task {str(by.get('taskId')) + instance!r} in run {by.get('runId')!r} of Dag {by.get('dagId')!r}"


def check_key_of_run(log: DeltaLog, snapshot: Snapshot, app_id: str, user: KeyUser | None, *, after: int = -1) -> None:
    """Refuse a key that the log does not know if the run has published to the table under another one.

    Reads the commits since the run began, as far as the log has them; beyond, the default keys that the table remembers.

    :param after: look only at later versions.
    """
    if user is None or user.check == "off" or snapshot.version <= after:
        return
    since = user.since()
    if since is None:
        return
    since -= SYNCHRONISED_WITHIN
    oldest, times = None, CommitTimes(log)
    for commit in newest_first(log, after + 1, at_once=1):
        if commit.version > snapshot.version:
            continue
        info = read_commit_info(commit.version, commit.data, table=log.uri) or {}
        if times.all_before(commit, since, info):
            return
        oldest = commit.version
        tags = info.get("tags") or {}
        key = tags.get(APP_ID_TAG)
        is_other = user.is_same_run(tags) and isinstance(key, str) and key != app_id and info.get("operation") not in _KEEP_ROWS
        if is_other and not _is_taken_back(snapshot, str(key)):
            _check_other_key(log.uri, commit.version, str(key), tags, app_id, user)
    if oldest != after + 1:
        _check_remembered(snapshot, app_id, user)


def _is_taken_back(snapshot: Snapshot, key: str) -> bool:
    """Return whether nothing that was committed under a key is there any more."""
    last = snapshot.transaction_version(key)
    return last is not None and standing_version(snapshot, key, last) is None


def _check_other_key(table: str, version: int, key: str, tags: Mapping[str, Any], app_id: str, user: KeyUser) -> None:
    task_id = str(tags.get(TASK_ID_TAG))
    if user.is_gone(task_id):
        why = f"The Dag no longer has the task {task_id!r}; if {user.task_id!r} is that task under another name"
    elif task_id in user.committers and _is_changed(key, app_id, tags, user):
        why = f"If the key of {user.task_id!r} was changed in the Dag file"
    else:
        return
    raise _published(table, version, key, task_id, app_id, user, why)


def _is_changed(key: str, app_id: str, tags: Mapping[str, Any], user: KeyUser) -> bool:
    """Return whether two keys of one task cannot belong to two instances of it."""
    was_mapped = tags.get(MAP_INDEX_TAG, "-1") != "-1"
    if not user.is_mapped and not was_mapped:
        return True
    return key.startswith(user.default_prefix) != app_id.startswith(user.default_prefix)


def _check_remembered(snapshot: Snapshot, app_id: str, user: KeyUser) -> None:
    """Look for default keys of the run among those that the table remembers, of tasks that the Dag no longer has."""
    begins, holds = f"{user.dag_id}/", f"/{user.run_id}/"
    for key in snapshot.transactions:
        if key == app_id or key.endswith((UNDONE_SUFFIX, STANDING_SUFFIX)) or _is_taken_back(snapshot, key):
            continue
        if key.startswith(begins) and holds in key:
            name = key[len(begins) : key.index(holds)]
            if name and user.is_gone(name) and user.is_gone(f"{name}.start"):
                why = f"The Dag no longer has a task or group {name!r}; if {user.task_id!r} is that under another name"
                raise _published(snapshot.log.uri, snapshot.version, key, name, app_id, user, why)


def _published(
    table: str, version: int, key: str, task_id: str, app_id: str, user: KeyUser, why: str
) -> TransactionAlreadyCommittedException:
    keep = "give it its former name or key again"
    if key.endswith("/-1") and f"/{user.run_id}/" in key:
        keep = f"pass transaction_key={key.replace(user.run_id, '{{ run_id }}')!r}"
    return TransactionAlreadyCommittedException(
        f"Run {user.run_id!r} of Dag {user.dag_id!r} has already published to table {table} as {task_id!r}, under the key "
        f"{key!r} (version {version}), and {user.task_id!r} would publish under the key {app_id!r}. {why}, the rows would be "
        f"there twice. Nothing is committed. If it is the same work, {keep}. If these are other rows, or they overwrite those, "
        "run it once with rerun_policy='append', or with key_check='off'.",
        table=table,
        version=version,
    )
