"""The transaction that wants to commit, kept up to date with each winning commit (Delta's ``CurrentTransactionInfo``)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

import msgspec

from airflow_delta.contract.delta_names import TYPE_CHANGES
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import Action, CommitInfo, Metadata, Protocol, encode_actions
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.transaction.policy import ConflictOptions
from airflow_delta.transaction.prepare import in_commit_timestamps, row_tracking
from airflow_delta.transaction.prepare.isolation import IsolationLevel
from airflow_delta.transaction.reads.read_set import ReadSet

if TYPE_CHECKING:
    from airflow_delta.log.snapshot import Snapshot


@dataclass(kw_only=True, slots=True)
class CurrentTransaction:
    """What the checks need to know of a transaction; winning commits are folded into it.

    :param metadata: as the transaction leaves it. So is ``protocol``. Changes of winners that it can accept are adopted.
    :param partition_columns: logical names at the version that was read.
    :param actions: as they will be written, without ``commitInfo``.
    :param commit_info: as it will be written.
    :param operation: its name.
    :param read_metadata: at the version that was read; ``None`` if there was no table. So is ``read_protocol``.
    :param read_high_water_mark: returns the last row id at the version that was read; called only if row ids are assigned.
    :param snapshot_at: returns the table at a winning version; called only by a commit that drops a feature.
    :param validate: checks the actions against each other, as when the commit was prepared; raises an error if they are wrong.
    :ivar forgotten: paths of files that were read and whose removal by others is already dealt with.
    :ivar files_of_others: paths of files among its actions whose row ids and versions winners have set.
    """

    table: str
    read_version: int
    reads: ReadSet
    metadata: Metadata
    protocol: Protocol
    partition_columns: Sequence[str]
    actions: Sequence[Action]
    is_blind_append: bool
    isolation_level: IsolationLevel
    commit_info: CommitInfo
    operation: str
    read_metadata: Metadata | None
    read_protocol: Protocol | None
    read_high_water_mark: Callable[[], int]
    options: ConflictOptions
    snapshot_at: Callable[[int], Snapshot]
    validate: Callable[[Sequence[Action]], None]
    winning_high_water_mark: int | None = field(default=None, init=False)
    in_commit_timestamp: int | None = field(default=None, init=False)
    forgotten: set[str] = field(default_factory=set, init=False)
    files_of_others: set[str] = field(default_factory=set, init=False)
    _own: Sequence[Action] = field(init=False)
    """The actions before row ids, timestamps and versions were updated."""

    def __post_init__(self) -> None:
        self._own = self.actions

    @property
    def own_actions(self) -> Sequence[Action]:
        """The actions as winning commits left them, without what follows from the version of the commit."""
        return self._own

    def replace_actions(self, actions: Iterable[Action]) -> None:
        """Continue with other actions, as a winning commit requires."""
        self._own = list(actions)

    def replace_metadata(self, metadata: Metadata) -> None:
        """Continue with other metadata, also in the metadata action if there is one."""
        self.metadata = metadata
        self.replace_actions(metadata if isinstance(action, Metadata) else action for action in self._own)

    def add_tag(self, name: str, value: str) -> None:
        """Set a tag of ``commitInfo``."""
        tags = {**(self.commit_info.tags or {}), name: value}
        self.commit_info = msgspec.structs.replace(self.commit_info, tags=tags)

    def count_again(self, counted: Callable[[Mapping[str, str] | None], dict[str, str] | None]) -> None:
        """Change ``operationMetrics``.

        :param counted: returns the metrics as they should be, ``None`` if they are right.
        """
        metrics = counted(self.commit_info.operation_metrics)
        if metrics is not None:
            self.commit_info = msgspec.structs.replace(self.commit_info, operation_metrics=metrics)

    def encode(self) -> bytes:
        """Return the log entry."""
        return encode_actions([self.commit_info, *self.actions])

    def stamp(self, read_timestamp: int) -> None:
        """Give the first attempt its in-commit timestamp.

        :param read_timestamp: of the version that was read; -1 for none.
        """
        self.in_commit_timestamp = in_commit_timestamps.first(self.commit_info.timestamp or 0, read_timestamp)
        self._own = self.actions = self._with_timestamp(self.actions, self.read_version + 1)

    def rebase(self, version: int) -> bool:
        """Update everything that depends on the version; tell whether the log entry has changed.

        :param version: version that the commit tries next.
        """
        before_actions, before_info = self.actions, self.commit_info
        actions = self._own
        if in_commit_timestamps.uses_in_commit_timestamps(self.metadata):
            actions = self._with_timestamp(actions, version)
        if any(isinstance(action, Metadata) and _TYPE_CHANGE in action.schema_string for action in actions):
            actions = [_with_type_change(a, self.read_version, version) if isinstance(a, Metadata) else a for a in actions]
        if row_tracking.is_supported(self.protocol):
            mark = self.winning_high_water_mark
            actions = row_tracking.rebase_row_ids(
                actions,
                protocol=self.protocol,
                metadata=self.metadata,
                read_high_water_mark=self.read_high_water_mark(),
                read_version=self.read_version,
                winning_high_water_mark=mark if mark is not None else self.read_high_water_mark(),
                commit_version=version,
                table=self.table,
                files_of_others=self.files_of_others,
            )
        self.actions = actions
        return self.actions is not before_actions or self.commit_info is not before_info

    def _with_timestamp(self, actions: Sequence[Action], version: int) -> Sequence[Action]:
        """Set the timestamp, and record when timestamps were enabled if this commit enables them."""
        own = self.in_commit_timestamp
        timestamp = own if own is not None else (self.commit_info.timestamp or 0)
        if self.commit_info.in_commit_timestamp != timestamp:
            self.commit_info = msgspec.structs.replace(self.commit_info, in_commit_timestamp=timestamp)
        if not any(isinstance(action, Metadata) for action in actions):
            return actions
        self.metadata = in_commit_timestamps.with_enablement(
            self.metadata, self.read_metadata, version=version, timestamp=timestamp
        )
        return [self.metadata if isinstance(action, Metadata) else action for action in actions]


_TYPE_CHANGE = '"tableVersion"'


def _with_type_change(metadata: Metadata, read_version: int, version: int) -> Metadata:
    """Return the metadata with the version of type changes that this commit makes (only the feature's preview records it)."""
    schema = copy.deepcopy(TableDefinition.of(metadata).struct)

    def update(node: object) -> None:
        if isinstance(node, list):
            for item in node:
                update(item)
        elif isinstance(node, dict):
            for change in node.get(TYPE_CHANGES, ()):
                if isinstance(change, dict) and change.get("tableVersion", -1) > read_version:
                    change["tableVersion"] = version
            for value in node.values():
                update(value)

    update(schema)
    return msgspec.structs.replace(metadata, schema_string=msgspec.json.encode(schema).decode())
