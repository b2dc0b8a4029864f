"""Isolation levels, and which one a commit runs at (Delta's ``IsolationLevel``)."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from airflow_delta.contract.delta_names import ISOLATION_LEVEL, ROW_TRACKING_DOMAIN
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.log.actions.actions import Action, AddCDCFile, AddFile, DomainMetadata, Metadata, RemoveFile
from airflow_delta.transaction.operations import Operation


class IsolationLevel(enum.Enum):
    """How much of what others commit in the meantime a transaction may ignore; values are the names in ``commitInfo``."""

    SERIALIZABLE = "Serializable"
    WRITE_SERIALIZABLE = "WriteSerializable"
    SNAPSHOT_ISOLATION = "SnapshotIsolation"

    @classmethod
    def parse(cls, name: str) -> IsolationLevel:
        """Return the level of that name, ignoring case.

        :raises DeltaIllegalArgumentException: if there is no such level.
        """
        for level in cls:
            if level.value.lower() == name.lower():
                return level
        names = ", ".join(level.value for level in cls)
        raise DeltaIllegalArgumentException(f"There is no isolation level {name!r}; the levels are {names}.")


def table_isolation_level(metadata: Metadata) -> IsolationLevel:
    """Return the level that the property ``delta.isolationLevel`` asks for; default: Serializable."""
    return writer_isolation_level(metadata.configuration.get(ISOLATION_LEVEL, IsolationLevel.SERIALIZABLE))


def writer_isolation_level(level: IsolationLevel | str) -> IsolationLevel:
    """Return the level that a table or a transaction asks for; only the engine chooses SnapshotIsolation.

    :raises DeltaIllegalArgumentException: if it is not a level that may be asked for.
    """
    if isinstance(level, str):
        level = IsolationLevel.parse(level)
    if level is IsolationLevel.SNAPSHOT_ISOLATION:
        raise DeltaIllegalArgumentException(
            "SnapshotIsolation cannot be requested: a transaction could miss rows that it should have read. Use Serializable or "
            "WriteSerializable."
        )
    return level


def choose_isolation_level(prepared: Iterable[Action], level: IsolationLevel, operation: Operation) -> IsolationLevel:
    """Return the level that a commit of ``prepared`` runs at.

    A commit that changes no data may run at SnapshotIsolation: nothing that others added could have changed its outcome. An
    action other than a file action (metadata, protocol, ``txn``, domain metadata) rules that out, except for the high-water mark
    of row ids, which follows from the files.

    :param prepared: the actions as they will be written, without ``commitInfo``.
    :param level: the table's level.
    """
    for action in prepared:
        if isinstance(action, DomainMetadata) and action.domain == ROW_TRACKING_DOMAIN:
            continue
        if not isinstance(action, AddFile | RemoveFile | AddCDCFile) or action.data_change:
            return level
    if level is IsolationLevel.WRITE_SERIALIZABLE and operation.changes_data:
        return level
    return IsolationLevel.SNAPSHOT_ISOLATION
