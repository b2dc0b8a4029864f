"""The commit files of a table: reading them without gaps, finding new ones, writing the next one (Delta's LogStore calls)."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Set

from airflow_delta.exceptions import Subject, VersionNotFoundException, VersionsNotContiguousException
from airflow_delta.log.actions.decode import CommitFile
from airflow_delta.log.segment.segment import earliest_version, list_log, missing_versions
from airflow_delta.log.storage.base import FileStatus, LogStore
from airflow_delta.log.storage.committer import Definition
from airflow_delta.log.storage.file_names import COMMIT_SUFFIX, LOG_DIRECTORY, commit_file, commit_version, version_prefix
from airflow_delta.log.storage.progress import tracked

_KEPT_COMMITS = 128
_KEPT_BYTES = 16 << 20
_LARGEST_KEPT = 1 << 20
_RECENT = 60.0
"""Seconds during which a version that was the latest cannot have been cleaned up: retention is counted in days."""
_READ_SINGLY = 8
"""Number of new commits to read one by one before listing what else there is."""


def now() -> float:
    """Return the seconds of a clock that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class CommitFiles(Subject):
    """The commit files of one table.

    :param store: storage of the table.
    """

    def __init__(self, store: LogStore) -> None:
        self.store = store
        # Commits that were written, and those of an object store that were read: the checksum after a commit needs them again.
        self._kept: dict[int, bytes] = {}
        # The newest version seen on an object store, and since when the log is known without a gap up to it.
        self._end: tuple[int, float] = (-1, -math.inf)

    @property
    def uri(self) -> str:
        """Return the table's URI as given, without a trailing slash."""
        return self.store.root

    @property
    def managed_as(self) -> str | None:
        """Return the table's name with whoever decides on its versions and maintains it; ``None`` if this log decides."""
        return self.store.committer.managed_as

    @property
    def provided(self) -> Set[str]:
        """Return the table features that the committer provides (:class:`~airflow_delta.log.storage.committer.LogCommitter`)."""
        return self.store.committer.provides

    def _about(self) -> tuple[str, int | None]:
        return self.uri, None

    def read_commit(self, version: int) -> bytes:
        """Return a commit's content.

        :raises FileNotFoundError: if it does not exist.
        """
        kept = self._kept.get(version)
        return kept if kept is not None else self.store.read(commit_file(version))

    def read_commit_range(self, versions: range) -> list[CommitFile]:
        """Return commits that are known to exist, concurrently on an object store.

        :raises VersionsNotContiguousException: if one of them is gone.
        """
        kept = dict(self._kept)  # another thread may commit meanwhile, which drops the oldest entry
        wanted = [version for version in versions if version not in kept]
        try:
            read = dict(zip(wanted, self.store.read_many([commit_file(version) for version in wanted]), strict=True))
        except FileNotFoundError as error:
            raise self.error(
                VersionsNotContiguousException,
                f"A commit between {versions.start} and {versions.stop - 1} of table {self.uri} is gone ({error}). It was "
                "deleted during the read. Read the table again; if the error persists, restore the commit from a backup.",
                version=versions.stop - 1,
            ) from error
        if not self.store.probes:
            for version in wanted[-_KEPT_COMMITS:]:
                self._keep(version, read[version])
        return [CommitFile(version, read[version] if version in read else kept[version]) for version in versions]

    def read_commits(self, start: int) -> list[CommitFile]:
        """Return all commits from a version on, without gaps; empty if there are none yet."""
        if self.store.probes:
            commits = list(tracked(self._probe(start), f"Reading the log of {self.uri}", unit="commits"))
            if not commits:
                self._refuse_cleaned_up(start)
            return commits
        begun = now()
        statuses = self._list_commits(max(start - 1, 0))
        follows = start == 0 or statuses.pop(start - 1, None) is not None
        if not follows:
            self._refuse_cleaned_up(start)
        commits = self._read_listed(start, statuses)
        if commits or follows:
            self._ends_at(start - 1 + len(commits), begun)
        return commits

    def read_new_commits(self, start: int) -> list[CommitFile]:
        """Return the same as :meth:`read_commits`, usually without listing the log.

        On an object store, commits right after the end of the log as it was a moment ago are read until one is missing.
        """
        if not self.ended_recently_at(start - 1):
            return self.read_commits(start)
        found: list[CommitFile] = []
        while len(found) < _READ_SINGLY:
            commit = self.read_next_commit(start + len(found))
            if commit is None:
                return found
            found.append(commit)
        return found + self.read_commits(start + len(found))

    def read_next_commit(self, version: int) -> CommitFile | None:
        """Return the commit right after the end of the log as it was a moment ago, or ``None`` if there is none yet.

        Ask :meth:`ended_recently_at` before: of an older end, a later commit may be missing because it has been cleaned up.
        """
        data = self._kept.get(version)
        if data is None:
            try:
                data = self.store.read(commit_file(version))
            except FileNotFoundError:
                return None
            self._keep(version, data)
        if self._end[0] == version - 1:
            self._end = (version, self._end[1])
        return CommitFile(version, data)

    def known_commits(self, start: int, *, within: float) -> list[CommitFile] | None:
        """Return all commits from a version on without asking the store, or ``None`` if that is not possible.

        It is if the end of the log was seen a moment ago, and all commits before it are at hand: those of other transactions of
        this process, for example.

        :param within: seconds since the end was seen.
        """
        end, since = self._end
        if self.store.probes or start > end + 1 or now() - since >= within:
            return None
        kept = dict(self._kept)
        versions = range(start, end + 1)
        return [CommitFile(version, kept[version]) for version in versions] if all(v in kept for v in versions) else None

    def ended_recently_at(self, version: int) -> bool:
        """Tell whether a version is the newest known one, and was the latest within the last minute or has followed since.

        Neither it nor what comes after it has been cleaned up then. Local files are just looked at.
        """
        end, since = self._end
        return version == end and not self.store.probes and now() - since < _RECENT

    def _ends_at(self, version: int, since: float) -> None:
        """Remember the latest version.

        :param since: :func:`now` before the log was listed or the version was put.
        """
        self._end = (version, since)

    def write_commit(self, version: int, data: bytes, before: Definition | None = None) -> None:
        """Make a commit this version of the table, unless the version is taken.

        :param before: the metadata that those of the commit replace, if it has some.
        :raises FileExistsError: if the version is taken.
        """
        self._check_predecessor(version)
        begun = now()
        self.store.committer.commit(version, data, before)
        self._ends_at(version, begun)
        self._keep(version, data)

    def _keep(self, version: int, data: bytes) -> None:
        if len(data) > _LARGEST_KEPT:
            return
        self._kept[version] = data
        while len(self._kept) > _KEPT_COMMITS or sum(map(len, list(self._kept.values()))) > _KEPT_BYTES:
            self._kept.pop(min(self._kept, default=version), None)

    def _check_predecessor(self, version: int) -> None:
        """Refuse a commit that would not follow the latest one: its version may be free only because the log was cleaned up.

        A transaction may be open for days. If its version has expired and been deleted since, it could be written a second
        time, and nobody would ever read it. A commit must not bring back the log of a deleted table either.
        """
        if version == 0 or self.ended_recently_at(version - 1) or self.store.head(commit_file(version - 1)) is not None:
            return
        listing = list_log(self.store, version - 1)
        if listing.latest() == version - 1:  # only the checkpoint of that version is left
            return
        raise self.error(
            VersionNotFoundException,
            f"Version {version} of table {self.uri} was not written: the version before it is not in the log"
            + (f" (the latest is {listing.latest()})" if listing.latest() >= 0 else "")
            + ". It was cleaned up, or the table was deleted. Start the transaction again.",
            latest=listing.latest() if listing.latest() >= 0 else None,
            version=version - 1,
        )

    def _probe(self, start: int) -> Iterator[CommitFile]:
        version = start
        while True:
            try:
                data = self.store.read(commit_file(version))
            except FileNotFoundError:
                if self.store.head(commit_file(version + 1)) is None:
                    return
                if self.store.head(commit_file(version)) is not None:  # both were written since
                    continue
                if version == start:
                    self._refuse_cleaned_up(start)
                raise self._gap(version, version + 1) from None
            yield CommitFile(version, data)
            version += 1

    def _list_commits(self, start: int) -> dict[int, FileStatus]:
        statuses = {}
        for status in self.store.list_from(LOG_DIRECTORY, version_prefix(start) + COMMIT_SUFFIX):
            version = commit_version(status.name)
            if version is not None:
                statuses[version] = status
        return statuses

    def _read_listed(self, start: int, statuses: Mapping[int, FileStatus]) -> list[CommitFile]:
        versions = range(start, max(statuses, default=start - 1) + 1)
        missing = missing_versions(statuses, start, versions.stop - 1)
        for version in missing:
            # A listing is not atomic: it may miss a commit written meanwhile, and yet show a later one.
            if self.store.head(commit_file(version)) is None:
                raise self._gap(version, versions[-1])
        for version in versions:
            if version in statuses and len(self._kept.get(version, b"")) != statuses[version].size:
                self._kept.pop(version, None)  # of a table that was deleted since
        commits = self.read_commit_range(versions)
        times = {version: status.modification_time for version, status in statuses.items()}
        return [commit._replace(modification_time=times.get(commit.version)) for commit in commits]

    def _gap(self, missing: int, later: int) -> VersionsNotContiguousException:
        return self.error(
            VersionsNotContiguousException,
            f"Commit {missing} of table {self.uri} is missing, although commit {later} exists. Restore "
            f"{commit_file(missing)} from a backup before anything else is committed.",
            version=missing,
        )

    def _refuse_cleaned_up(self, start: int) -> None:
        """Raise if ``start`` is missing because it was deleted, not because it has not been written yet."""
        if start > 0 and self.store.head(commit_file(start - 1)) is not None:
            return
        listing = list_log(self.store, start)
        latest = listing.latest()
        if start in listing.commits or latest < 0:
            return
        full = list_log(self.store)
        earliest = earliest_version(self.store, full)
        raise self.error(
            VersionNotFoundException,
            f"Commit {start} of table {self.uri} is no longer in its log, whose latest version is {latest}: it was "
            "cleaned up, so the commits since then are unknown. Start the transaction again. Set the table property "
            "delta.logRetentionDuration to more than the longest transaction takes.",
            earliest=earliest,
            latest=latest,
            version=start,
        )
