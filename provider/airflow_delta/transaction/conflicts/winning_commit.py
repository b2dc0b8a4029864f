"""A commit that took a version this transaction wanted, decoded only as far as a check needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from airflow_delta.exceptions import DeltaLogCorruptedException, Subject
from airflow_delta.log.actions import lenient
from airflow_delta.log.actions.actions import (
    Action,
    AddFile,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    SetTransaction,
)
from airflow_delta.log.actions.decode import (
    ADD_KEY,
    DOMAIN_KEY,
    METADATA_KEY,
    PROTOCOL_KEY,
    REMOVE_KEY,
    TXN_KEY,
    CommitFile,
    DecodedCommit,
    check_complete,
    decode_commit,
    read_commit_info,
)
from airflow_delta.log.actions.reconciliation import canonical_path
from airflow_delta.log.statistics.row_counts import num_records

File = TypeVar("File", AddFile, RemoveFile)

__all__ = ["ADD_KEY", "DOMAIN_KEY", "METADATA_KEY", "PROTOCOL_KEY", "REMOVE_KEY", "TXN_KEY", "WinningCommit"]


class _File(msgspec.Struct, kw_only=True, rename="camel"):
    path: str
    partition_values: dict[str, str | None] | None = None


class _Line(msgspec.Struct, kw_only=True, rename="camel"):
    add: _File | None = None
    remove: _File | None = None
    meta_data: Metadata | None = None
    txn: SetTransaction | None = None
    protocol: Protocol | None = None
    domain_metadata: DomainMetadata | None = None


_SMALL_KEYS = (METADATA_KEY, PROTOCOL_KEY, TXN_KEY, DOMAIN_KEY)


class WinningCommit(Subject):
    """One winning commit.

    Its bytes are searched for what it may hold; only the lines that a check needs are decoded, once.

    :param file: the commit as stored.
    :param table: URI of the table, for errors.
    :ivar respelled: the files whose paths the transaction spells otherwise, by their spelling in the commit.
    :raises DeltaLogCorruptedException: if the file is empty or truncated.
    """

    def __init__(self, file: CommitFile, *, table: str) -> None:
        check_complete(file.version, file.data, table=table)
        self.version = file.version
        self.modification_time = file.modification_time
        self.table = table
        self._data = file.data
        self._small: list[_Line] | None = None
        self._all: list[_Line] | None = None
        self._info: dict[str, Any] | None = None
        self.respelled: dict[str, str] = {}

    def _about(self) -> tuple[str, int | None]:
        return self.table, self.version

    def spell(self, known: dict[str, str]) -> None:
        """Call files as the transaction and earlier winners do: writers spell one path in several ways.

        Call it before anything else is asked about files.

        :param known: spelling of files by canonical path; files that it lacks are added to it.
        """
        names = {path: known.setdefault(canonical_path(path), path) for path in self.touched}
        self.respelled = {path: name for path, name in names.items() if path != name}
        if self.respelled:
            for line in self._lines():
                for file in (line.add, line.remove):
                    if file is not None:
                        file.path = names[file.path]

    def may_hold(self, key: bytes) -> bool:
        """Tell whether the commit may hold an action with that key; a yes may be wrong, a no never is."""
        return key in self._data

    @property
    def commit_info(self) -> dict[str, Any]:
        """The commit's ``commitInfo``; empty if it has none."""
        if self._info is None:
            self._info = read_commit_info(self.version, self._data, table=self.table) or {}
        return self._info

    @property
    def operation(self) -> str:
        """Name of the operation; empty if the winner does not say."""
        name = self.commit_info.get("operation")
        return name if isinstance(name, str) else ""

    @property
    def in_commit_timestamp(self) -> int | None:
        """In-commit timestamp, in milliseconds since the epoch."""
        value = self.commit_info.get("inCommitTimestamp")
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def has_tag(self, name: str) -> bool:
        """Tell whether ``commitInfo`` has the tag with the value true."""
        tags = self.commit_info.get("tags")
        return isinstance(tags, dict) and str(tags.get(name)).lower() == "true"

    @property
    def is_blind_append(self) -> bool:
        """Whether the winner says that it read nothing; one that does not say so is taken to have read."""
        return self.commit_info.get("isBlindAppend") is True

    def is_of(self, txn_id: str) -> bool:
        """Tell whether this is the commit of the transaction ``txn_id``."""
        return txn_id.encode() in self._data and self.commit_info.get("txnId") == txn_id

    @property
    def metadata(self) -> list[Metadata]:
        """Metadata actions."""
        return [line.meta_data for line in self._small_lines() if line.meta_data is not None]

    @property
    def protocol(self) -> Protocol | None:
        """The protocol action."""
        return next((line.protocol for line in self._small_lines() if line.protocol is not None), None)

    @property
    def app_ids(self) -> list[str]:
        """Application ids of the ``txn`` actions."""
        return [txn.app_id for txn in self.set_transactions]

    @property
    def set_transactions(self) -> list[SetTransaction]:
        """The ``txn`` actions."""
        return [line.txn for line in self._small_lines() if line.txn is not None]

    @property
    def domains(self) -> list[str]:
        """Domains of the domain metadata actions."""
        return [domain.domain for domain in self.domain_metadata]

    @property
    def domain_metadata(self) -> list[DomainMetadata]:
        """Domain metadata actions."""
        return [line.domain_metadata for line in self._small_lines() if line.domain_metadata is not None]

    @property
    def added(self) -> list[tuple[str, dict[str, str | None]]]:
        """Path and partition values of the files that were added."""
        return [(line.add.path, line.add.partition_values or {}) for line in self._lines() if line.add is not None]

    @property
    def removed(self) -> list[tuple[str, dict[str, str | None]]]:
        """Path and partition values (empty if the action has none) of the files that were removed."""
        return [(line.remove.path, line.remove.partition_values or {}) for line in self._lines() if line.remove is not None]

    @property
    def touched(self) -> set[str]:
        """Paths of the files that were added or removed."""
        return {path for path, _values in (*self.added, *self.removed)}

    @property
    def added_files(self) -> list[AddFile]:
        """The files that were added, decoded completely."""
        return self._files.adds

    @property
    def removed_files(self) -> list[RemoveFile]:
        """The files that were removed, decoded completely."""
        return self._files.removes

    @cached_property
    def only_moves_rows(self) -> bool:
        """Whether the commit says that it moves rows to other files and changes none, as a compaction does.

        One that says so and only adds files, or adds other numbers of rows than it removes as far as they are known, is not
        believed; nor is one that only removes files, unless these are known to have no rows left.
        """
        adds, removes = self.added_files, self.removed_files
        changes = any(add.data_change for add in adds) or any(remove.data_change for remove in removes)
        if changes or not removes or self._files.cdcs:
            return False
        counts = [[_live_records(file) for file in files] for files in (adds, removes)]
        added, removed = (sum(_given(known)) for known in counts)
        if None in counts[0] or None in counts[1]:
            too_many, too_few = added > removed and None not in counts[1], added < removed and None not in counts[0]
            return bool(adds) and not too_many and not too_few
        return added == removed

    @cached_property
    def replaced(self) -> dict[str, AddFile]:
        """The files, by path, that were removed and added again in one go, as those are that get another deletion vector."""
        removed = {file.path for file in self.removed_files}
        return {file.path: file for file in self.added_files if file.path in removed}

    @cached_property
    def rewritten(self) -> frozenset[str]:
        """The paths of the files that were removed for good; if the winner only moves rows, those are in other files."""
        return frozenset(file.path for file in self.removed_files) - self.replaced.keys()

    @cached_property
    def _files(self) -> DecodedCommit:
        commit = decode_commit(self.version, self._data, table=self.table)
        if not self.respelled:
            return commit
        return replace(commit, adds=self._spelled(commit.adds), removes=self._spelled(commit.removes))

    def _spelled(self, files: list[File]) -> list[File]:
        return [structs.replace(file, path=self.respelled.get(file.path, file.path)) for file in files]

    def _lines(self) -> list[_Line]:
        if self._all is None:
            self._all = self._small = self._decode(self._data)
        return self._all

    def _small_lines(self) -> list[_Line]:
        """Decode only the lines without file actions, of which a commit has few."""
        if self._small is None:
            lines = [line for line in self._data.split(b"\n") if any(key in line for key in _SMALL_KEYS)]
            self._small = self._decode(b"\n".join(lines))
        return self._small

    def _decode(self, data: bytes) -> list[_Line]:
        try:
            return lenient.decode_lines(_Line, data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self.error(
                DeltaLogCorruptedException,
                f"Commit {self.version} of table {self.table} does not parse ({error}), so whether it conflicts with this "
                "transaction is unknown. Nothing was committed. Restore the file from a backup or a replica of the storage.",
            ) from error


def metadata_of(winners: Iterable[WinningCommit]) -> Iterator[Metadata]:
    """Yield the metadata actions of winners."""
    for winner in winners:
        if winner.may_hold(METADATA_KEY):
            yield from winner.metadata


def _live_records(file: AddFile | RemoveFile) -> int | None:
    records, vector = num_records(file.stats), file.deletion_vector
    return records if records is None or vector is None else records - vector.cardinality


def _given(counts: Iterable[int | None]) -> Iterable[int]:
    return (count for count in counts if count is not None)


def read_back(file: CommitFile, *, table: str) -> tuple[CommitInfo, list[Action]]:
    """Return ``commitInfo`` and the other actions of a commit in the log."""
    commit = decode_commit(file.version, file.data, table=table)
    actions: list[Action] = [*commit.metadata, *commit.protocol, *commit.txns, *commit.domains]
    return CommitInfo.from_mapping(commit.commit_info or {}), [*actions, *commit.removes, *commit.adds, *commit.cdcs]
