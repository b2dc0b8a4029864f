"""Checks of a commit's actions against each other, before anything is put: steps of Delta's ``commitImpl``, one function each."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from airflow_delta.contract.partition_texts import partition_text
from airflow_delta.exceptions import (
    DeltaDuplicateActionsException,
    DeltaDuplicateDomainException,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    DeltaUnsupportedTableFeatureException,
)
from airflow_delta.log.actions.actions import Action, AddFile, DomainMetadata, Metadata, Protocol, RemoveFile, SetTransaction
from airflow_delta.log.actions.reconciliation import canonical_path, file_key
from airflow_delta.log.features import protocol as table_protocol
from airflow_delta.log.features.column_mapping import physical_partition_columns
from airflow_delta.log.statistics.row_counts import num_records
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.transaction.events import record_event

if TYPE_CHECKING:
    from airflow_delta.transaction.policy import CommitPolicy


_MAX_EVENTS = 2
"""Events of each kind that one commit records, however many files are affected."""


def deduplicate_set_transactions(actions: Sequence[Action], own: Iterable[SetTransaction]) -> list[Action]:
    """Return the actions with the transaction's own ``txn`` actions after them, each application id once.

    :raises DeltaIllegalArgumentException: if an application id comes with two versions.
    """
    versions: dict[str, int] = {}
    result: list[Action] = []
    for action in [*actions, *own]:
        if isinstance(action, SetTransaction):
            known = versions.get(action.app_id)
            if known is not None and known != action.version:
                raise DeltaIllegalArgumentException(
                    f"The application id {action.app_id!r} is set to version {known} and to version {action.version} in one "
                    "commit. Give one version per application id."
                )
            if known is not None:
                continue
            versions[action.app_id] = action.version
        result.append(action)
    return result


def check_added_files(table: str, actions: Sequence[Action], metadata: Metadata, policy: CommitPolicy) -> None:
    """Look for added files that no sane writer adds: empty ones, or ones with a null in a NOT NULL partition column.

    Both are logged, as in Delta, unless the policy makes them errors.

    :raises DeltaIllegalStateException: if there is one and the policy makes it an error.
    """
    adds = [action for action in actions if isinstance(action, AddFile)]
    empty = [add for add in adds if add.size == 0]
    if empty:
        for add in empty[:_MAX_EVENTS]:
            record_event("delta.commit.emptyAddFile", table, {"path": add.path}, level=logging.WARNING)
        if policy.fail_on_empty_file:
            raise DeltaIllegalStateException(
                f"The file {empty[0].path}, added to table {table}, has 0 bytes and so is not a Parquet file. Write it again.",
                table=table,
            )
    if not adds or not metadata.partition_columns or '"nullable":false' not in metadata.schema_string.replace(" ", ""):
        return
    required = _required_partition_columns(metadata)
    nulls = [
        (add, physical, name)
        for add in adds
        for physical, name in required
        if partition_text(add.partition_values, physical) is None
    ]
    if nulls:
        for add, _physical, name in nulls[:_MAX_EVENTS]:
            data = {"path": add.path, "column": name}
            record_event("delta.commit.nullPartitionValue", table, data, level=logging.WARNING)
        if policy.fail_on_null_partition:
            add, _physical, name = nulls[0]
            raise DeltaIllegalStateException(
                f"The file {add.path}, added to table {table}, is in a partition where {name} is null, but that column is NOT "
                "NULL. Fill the column before writing.",
                table=table,
            )


def _required_partition_columns(metadata: Metadata) -> list[tuple[str, str]]:
    """Return the physical and logical names of the NOT NULL partition columns."""
    schema = TableDefinition.of(metadata).schema
    pairs = zip(physical_partition_columns(metadata), metadata.partition_columns, strict=True)
    fields = {field.name.lower(): field for field in schema.fields}
    return [(physical, name) for physical, name in pairs if name.lower() in fields and not fields[name.lower()].nullable]


def check_duplicates(table: str, actions: Sequence[Action]) -> None:
    """Check that no file is added twice, removed twice, or both added and removed.

    A file may be removed and added again with another deletion vector.

    :raises DeltaDuplicateActionsException: if one is.
    """
    added = [action for action in actions if isinstance(action, AddFile)]
    removed = [action for action in actions if isinstance(action, RemoveFile)]
    for what, files in (("added", added), ("removed", removed)):
        paths = [canonical_path(file.path) for file in files]
        if len(set(paths)) != len(paths):
            twice = next(path for path, count in Counter(paths).items() if count > 1)
            raise _duplicate(table, f"The file {twice} is {what} twice")
    if added and removed:
        both = {file_key(a) for a in added}.intersection(map(file_key, removed))
        if both:
            raise _duplicate(table, f"The file {min(path for path, _ in both)} is both added and removed")


def check_consistent_data_change(table: str, actions: Sequence[Action], operation: str, policy: CommitPolicy) -> None:
    """Check a commit in which some adds and removes change data and others do not; change data files do not count.

    Such a commit can be right: readers of changes go by the flag of each file. It is wrong if the files that claim to hold the
    same rows before and after hold different numbers of them.

    :raises DeltaIllegalStateException: if the policy does not allow such a commit, or it is wrong.
    """
    if policy.consistent_data_change == "off" or operation == "RESTORE":  # commits files that the table has with other row ids
        return
    changes = {action.data_change for action in actions if isinstance(action, AddFile | RemoveFile)}
    if len(changes) < 2:
        return
    record_event("delta.commit.inconsistentDataChange", table, {"operation": operation}, level=logging.WARNING)
    if policy.consistent_data_change == "fatal":
        raise DeltaIllegalStateException(
            f"Some files of {operation} on table {table} are marked dataChange=true and others dataChange=false. A commit either "
            "changes data or rearranges it; make two commits of it.",
            table=table,
        )
    added = [action for action in actions if isinstance(action, AddFile) and not action.data_change]
    removed = [action for action in actions if isinstance(action, RemoveFile) and not action.data_change]
    before, after = _live_rows(removed), _live_rows(added)
    if before != after if before is not None and after is not None else bool(added) != bool(removed):
        raise DeltaIllegalStateException(
            f"The files of {operation} on table {table} marked dataChange=false do not hold the same rows: "
            f"{len(removed)} files with {_count(before)} rows are removed, {len(added)} with {_count(after)} added. "
            "Streams and the change data feed would miss the difference. Nothing was written; mark the files that change rows "
            "dataChange=true.",
            table=table,
        )


def _live_rows(files: Sequence[AddFile | RemoveFile]) -> int | None:
    """Return the number of rows that are not deleted, or ``None`` if a file's statistics do not say."""
    total = 0
    for file in files:
        rows = num_records(file.stats)
        if rows is None:
            return None
        total += rows - (0 if file.deletion_vector is None else file.deletion_vector.cardinality)
    return total


def _count(rows: int | None) -> str:
    return "an unknown number of" if rows is None else str(rows)


def check_domain_actions(table: str, actions: Sequence[Action], protocol: Protocol) -> None:
    """Check that no metadata domain comes twice, and that the table's protocol supports domains.

    :raises DeltaDuplicateDomainException: if one comes twice.
    :raises DeltaUnsupportedTableFeatureException: if the table does not support them (Delta:
        DELTA_DOMAIN_METADATA_NOT_SUPPORTED).
    """
    domains = [action.domain for action in actions if isinstance(action, DomainMetadata)]
    if not domains:
        return
    twice = next((domain for domain, count in Counter(domains).items() if count > 1), None)
    if twice is not None:
        raise DeltaDuplicateDomainException(
            f"The metadata domain {twice} is set twice in one commit to table {table} "
            "(DELTA_DUPLICATE_DOMAIN_METADATA_INTERNAL_ERROR). Nothing was written; commit one configuration per domain.",
            table=table,
        )
    if "domainMetadata" not in table_protocol.features(protocol):
        raise DeltaUnsupportedTableFeatureException(
            f"The metadata domain {domains[0]} cannot be written to table {table}: its protocol lacks domainMetadata "
            "(DELTA_DOMAIN_METADATA_NOT_SUPPORTED). Set the table property delta.feature.domainMetadata to 'supported' first.",
            features=("domainMetadata",),
            table=table,
        )


def _duplicate(table: str, what: str) -> DeltaDuplicateActionsException:
    return DeltaDuplicateActionsException(
        f"{what} in one commit to table {table} (DELTA_DUPLICATE_ACTIONS_FOUND). Nothing was written.",
        table=table,
    )
