"""Commits through a catalog: a staged commit, the catalog's word for its version, and the published file (protocol, "Commit").

A commit counts once the catalog has accepted it. Publishing comes after; what is left undone of it, the next commit does.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from airflow_delta.catalog.answers import STAGED_COMMITS, CatalogCommit
from airflow_delta.catalog.create import create_in_catalog
from airflow_delta.catalog.definition import FIXED_PROPERTIES, CommittedDefinition, are_made
from airflow_delta.catalog.versions import CatalogVersions, KnownVersions
from airflow_delta.exceptions import (
    CatalogAccessException,
    CatalogConflictException,
    CatalogLimitException,
    CatalogUnavailableException,
    DeltaError,
    DeltaIllegalStateException,
    DeltaUnsupportedOperationException,
)
from airflow_delta.log.actions.decode import required_timestamp
from airflow_delta.log.features.protocol import CATALOG_MANAGED
from airflow_delta.log.storage.base import LogStore
from airflow_delta.log.storage.committer import Definition, LogCommitter
from airflow_delta.log.storage.errors import AmbiguousPutError, StoreRefusedError
from airflow_delta.log.storage.file_names import commit_file, version_prefix

logger = logging.getLogger(__name__)

_ROUNDS = 6
"""Of publishing and asking again, while the catalog says that too many versions are not published."""
_SETTLING_PAUSES = (0.0, 0.2, 1.0)
_REPAIRS = 3
_MAINTENANCE = frozenset({"FSCK", "LOG CLEANUP", "OPTIMIZE", "REORG", "VACUUM START", "VACUUM END"})
_BY_REMOVAL = frozenset({"DROP FEATURE", "REMOVE COLUMN MAPPING", "RESTORE"})
"""Need old versions, their files or a shorter log, all of which are the catalog's."""


class CatalogCommitter(LogCommitter):
    """Asks the catalog for versions of a table.

    :param versions: of the table.
    :param store: returns the storage at the table's location.
    :param required_properties: of a table that is only reserved.
    """

    provides = frozenset({CATALOG_MANAGED})
    refusals = (StoreRefusedError, CatalogAccessException)

    def __init__(
        self, versions: CatalogVersions, store: Callable[[], LogStore], required_properties: Mapping[str, str] | None = None
    ) -> None:
        self.managed_as = str(versions.name)
        self._required = dict(required_properties or {})
        self._versions = versions
        self._store = store

    # -- what clients may not do -----------------------------------------------------------------------------------------------

    def check_allowed(self, operation: str, definition: Definition | None = None) -> None:
        """Refuse maintenance, which is the catalog's, and a definition that would make it another kind of table."""
        if operation in _MAINTENANCE:
            raise self._not_allowed(f"{operation.removesuffix(' START')} is left to the catalog")
        if operation in _BY_REMOVAL:
            raise self._not_allowed(f"{operation} needs versions and files that the catalog decides about")
        for key, value in self._fixed.items() if definition is not None else ():
            if definition is not None and definition.configuration.get(key) != value:
                raise self._not_allowed(
                    f"{operation} would set {key} to {definition.configuration.get(key)!r}, but the catalog requires {value!r}"
                )

    @property
    def _fixed(self) -> dict[str, str]:
        """Properties of a table that exists which no commit may change."""
        metadata = self._versions.metadata
        known = metadata.properties if metadata is not None else {}
        return {key: known[key] for key in FIXED_PROPERTIES if key in known}

    @property
    def required_properties(self) -> Mapping[str, str]:  # type: ignore[override]
        """What a table must be created or replaced with."""
        return self._required or self._fixed

    def _not_allowed(self, why: str) -> DeltaUnsupportedOperationException:
        return DeltaUnsupportedOperationException(
            f"Table {self.managed_as} ({self._versions.location}) is catalog-managed: {why}.", table=self._versions.location
        )

    # -- commits ---------------------------------------------------------------------------------------------------------------

    def commit(self, version: int, data: bytes, before: Definition | None = None) -> None:
        """Ask the catalog for a version, in one request with what the commit changes of the table's definition.

        :raises FileExistsError: if the version is taken.
        :raises AmbiguousPutError: if the catalog did not say, and does not have the commit (yet).
        :raises CatalogException: if the catalog refuses it; nothing was committed.
        """
        if version <= self._versions.known.latest:
            raise FileExistsError(f"{self.managed_as} has version {version}")
        if version == 0:
            create_in_catalog(self._versions, self._store(), data)
            return
        also = CommittedDefinition(data).updates(before)
        commit = self._stage(version, data)
        try:
            accepted = self._ask(commit, also)
        except CatalogAccessException:
            if not self._has_landed(commit):
                raise
            accepted = True
        except CatalogUnavailableException as error:
            if not error.may_have_happened:
                raise
            accepted = self._look_for(commit, error)
        if not accepted:
            self._forget(commit)
            raise FileExistsError(f"{self.managed_as} has version {version}, by another commit")
        if also:
            self._see_to(commit, also)

    def _stage(self, version: int, data: bytes) -> CatalogCommit:
        timestamp = required_timestamp(version, data, table=self._versions.location)
        name = f"{version_prefix(version)}.{uuid.uuid4()}.json"
        store, path = self._store(), f"{STAGED_COMMITS}/{name}"
        store.put(path, data)
        status = store.head(path)
        written = status.modification_time if status is not None and status.modification_time > 0 else int(time.time() * 1000)
        return CatalogCommit(version, timestamp, name, len(data), written)

    def _ask(self, commit: CatalogCommit, also: tuple[dict[str, Any], ...]) -> bool:
        """Ask for the version, and return whether it is ours.

        :raises CatalogUnavailableException: if the catalog did not say.
        """
        for left in reversed(range(_ROUNDS)):
            versions = self._versions
            try:
                answer = versions.client.add_commit(versions.name, versions.table_uuid, commit, also=also)
            except CatalogLimitException:
                if not left:
                    raise
                self._make_room(commit.version - 1)
                time.sleep(0.1 * 2 ** (_ROUNDS - left))
            except CatalogConflictException as error:
                if error.kind == "UpdateRequirementConflictException":
                    versions.refresh()  # says so, if it is another table
                    raise
                return self._is_accepted(commit, self._known_after(error), error)
            else:
                versions.accept(answer)
                return True
        raise AssertionError("the last round returns or raises")

    def _known_after(self, error: CatalogConflictException) -> KnownVersions:
        try:
            return self._versions.refresh()
        except DeltaError as again:
            raise AmbiguousPutError(f"{error}; then {again}") from error

    def _make_room(self, latest: int) -> None:
        """Publish what is not, so that the catalog accepts more versions."""
        known = self._versions.refresh()
        if known.latest <= latest:
            self.publish()

    def _is_accepted(self, commit: CatalogCommit, known: KnownVersions, error: Exception) -> bool:
        """Tell whether a version that is taken is taken by this commit: a catalog refuses a repeated request like a lost race.

        :raises AmbiguousPutError: if that is unknown.
        """
        if known.latest < commit.version:
            raise AmbiguousPutError(f"{self.managed_as} refused version {commit.version}, but ends at {known.latest}") from error
        staged = known.staged.get(commit.version)
        if staged is not None:
            return staged.file_name == commit.file_name
        # Others have published it, and the catalog no longer has its name. Every commit holds an id of its transaction.
        store = self._store()
        try:
            published = store.read(commit_file(commit.version))
        except FileNotFoundError:
            raise AmbiguousPutError(f"{self.managed_as} has version {commit.version}, but its file is not there yet") from error
        return published == store.read(commit.path)

    def _look_for(self, commit: CatalogCommit, error: CatalogUnavailableException) -> bool:
        """Return whether the catalog has accepted a commit to which its answer was lost.

        :raises AmbiguousPutError: if that is unknown: it may still be under way.
        """
        for seconds in _SETTLING_PAUSES:
            time.sleep(seconds)
            try:
                known = self._versions.refresh()
            except DeltaError as again:
                logger.info("Cannot look whether %s has version %s: %s", self.managed_as, commit.version, again)
                continue
            if known.latest >= commit.version:
                return self._is_accepted(commit, known, error)
        raise AmbiguousPutError(str(error)) from error

    def _has_landed(self, commit: CatalogCommit) -> bool:
        """Tell whether a commit is a version after all, although the token or its owner was refused: nothing was done then."""
        try:
            known = self._versions.refresh()
        except DeltaError:
            return False
        staged = known.staged.get(commit.version)
        return staged is not None and staged.file_name == commit.file_name

    def _see_to(self, commit: CatalogCommit, updates: tuple[dict[str, Any], ...]) -> None:
        """Make the changes of the definition that came with an accepted commit, if the catalog has not.

        It should have made all or none. One that keeps versions and definitions apart may have lost them to a failure between
        the two, or to another request. What a later version has made of them is not touched.
        """
        versions = self._versions
        for _ in range(_REPAIRS):
            known, metadata = versions.known, versions.metadata
            if known.latest != commit.version or metadata is None or are_made(updates, metadata):
                return
            try:
                versions.accept(versions.client.change_definition(versions.name, versions.table_uuid, metadata.etag, updates))
            except (DeltaError, OSError) as error:
                logger.info("%s does not show the definition of version %s yet: %s", self.managed_as, commit.version, error)
                try:
                    versions.refresh()
                except DeltaError:
                    break
        metadata = versions.metadata
        if metadata is not None and not are_made(updates, metadata):
            logger.warning(
                "Version %s of %s is committed, but the catalog shows another definition of the table (columns or properties). "
                "The log is right; the next change of the definition sets it right there.",
                commit.version,
                self.managed_as,
            )

    def _forget(self, commit: CatalogCommit) -> None:
        """Delete the file of a commit whose version is another's for certain. Nobody else knows its name."""
        try:
            self._store().delete([commit.path])
        except OSError as error:
            logger.info("Cannot delete %s of %s: %s", commit.path, self.managed_as, error)

    # -- publishing ------------------------------------------------------------------------------------------------------------

    def is_published(self, version: int) -> bool:
        """Tell whether a version is published, as far as is known."""
        return version <= self._versions.known.published

    def publish(self) -> None:
        """Copy accepted commits to their place in the log, in order, and tell the catalog.

        An error is not one of the commit: the next commit publishes what is left.
        """
        known = self._versions.known
        done = known.published
        for version in sorted(version for version in known.staged if version > done):
            try:
                self._publish(known.staged[version])
            except (OSError, DeltaError) as error:
                logger.warning("Version %s of %s is committed, but not published yet: %s", version, self.managed_as, error)
                break
            done = version
            self._versions.note_published(version)
        if known.staged and done >= min(known.staged):
            try:
                versions = self._versions
                versions.accept(versions.client.report_published(versions.name, versions.table_uuid, done))
            except (DeltaError, OSError) as error:
                logger.warning("%s could not be notified that version %s is published: %s", self.managed_as, done, error)

    def _publish(self, commit: CatalogCommit) -> None:
        store, path = self._store(), commit_file(commit.version)
        try:
            data = store.read(commit.path)
        except FileNotFoundError:
            if store.head(path) is not None:  # published by somebody else, who has cleaned up
                return
            raise
        try:
            store.put_if_absent(path, data)
        except FileExistsError:
            if store.read(path) != data:
                raise DeltaIllegalStateException(
                    f"{path} of table {self.managed_as} ({self._versions.location}) is not the commit that the catalog has "
                    f"accepted as version {commit.version}: a client wrote to the table without asking the catalog. Readers "
                    "through the catalog see the accepted one. Remove the other file, after a copy of it.",
                    table=self._versions.location,
                    version=commit.version,
                ) from None
