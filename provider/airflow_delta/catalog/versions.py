"""What the catalog last said about a table: its latest version, and the commits that are not published."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Self

from airflow_delta.catalog.answers import CatalogCommit, LoadedTable, TableMetadata
from airflow_delta.catalog.client import UnityCatalogClient
from airflow_delta.contract.catalog_names import TableName
from airflow_delta.exceptions import DeltaIllegalStateException, DeltaUnsupportedTableFeatureException
from airflow_delta.light_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KnownVersions:
    """The versions of a table at one time.

    :param latest: nothing above it is a version of the table, whatever lies in its log.
    :param staged: accepted commits of which the catalog does not know that they are published: their files are the truth.
    :param published: all versions up to this one have their file in the log.
    """

    latest: int
    staged: Mapping[int, CatalogCommit]
    published: int


class CatalogVersions:
    """A table's versions, asked for when needed. Threads may share it.

    A table that is only reserved has none until an answer shows them.

    :param table_uuid: which table the name stood for when it was opened. So does ``location``.
    :ivar metadata: what the catalog last said of the table besides its versions.
    """

    def __init__(self, client: UnityCatalogClient, name: TableName, table_uuid: str, location: str) -> None:
        self.client = client
        self.name = name
        self.table_uuid = table_uuid
        self.location = location.rstrip("/")
        self._lock = threading.Lock()
        self._known = KnownVersions(-1, {}, -1)
        self._exists = False
        self.metadata: TableMetadata | None = None

    @classmethod
    def of(cls, client: UnityCatalogClient, name: TableName, loaded: LoadedTable) -> Self:
        """Return the versions of a table that the catalog has.

        :raises DeltaUnsupportedTableFeatureException: if the catalog does not decide on the table's versions.
        """
        if not loaded.is_managed:
            raise DeltaUnsupportedTableFeatureException(
                f"Table {name} is not catalog-managed: the log at {loaded.metadata.location} decides on its versions. Use its "
                "location instead of its name.",
                table=loaded.metadata.location,
            )
        versions = cls(client, name, loaded.metadata.table_uuid, loaded.metadata.location)
        versions.accept(loaded)
        return versions

    @property
    def known(self) -> KnownVersions:
        """What was known last."""
        return self._known

    def refresh(self) -> KnownVersions:
        """Ask the catalog, if it has the table.

        :raises DeltaIllegalStateException: if the name is another table's by now.
        """
        return self.accept(self.client.load_table(self.name)) if self._exists else self._known

    def accept(self, loaded: LoadedTable) -> KnownVersions:
        """Take over an answer, unless a later one is known."""
        metadata = loaded.metadata
        if metadata.table_uuid != self.table_uuid or metadata.location.rstrip("/") != self.location:
            raise DeltaIllegalStateException(
                f"Table {self.name} is another table by now ({metadata.table_uuid}, not {self.table_uuid}): it was dropped and "
                "created again, or renamed. Start the transaction again.",
                table=self.location,
            )
        latest = loaded.latest_table_version or 0
        staged = {commit.version: commit for commit in loaded.commits or ()}
        if staged:
            latest = max(latest, *staged)
        with self._lock:
            self._exists = True
            if latest >= self._known.latest:
                self.metadata = metadata
                below = min(staged) - 1 if staged else latest
                self._known = KnownVersions(latest, staged, max(below, self._known.published))
            return self._known

    def note_published(self, version: int) -> None:
        """Remember that all versions up to this one have their file in the log."""
        with self._lock:
            self._known = replace(self._known, published=max(version, self._known.published))
