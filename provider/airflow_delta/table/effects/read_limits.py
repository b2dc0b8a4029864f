"""Limits on what is read to show what a commit does, for a process that others wait for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

from airflow_delta.exceptions import DeltaUnsupportedOperationException, ReadLimitException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import AddFile, DeletionVectorDescriptor
from airflow_delta.log.actions.deletion_vectors import INLINE, vector_path
from airflow_delta.log.storage.table_paths import relative_key

if TYPE_CHECKING:
    from airflow_delta.log.actions.decode import DecodedCommit
    from airflow_delta.log.delta_log import DeltaLog


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """What may be read. Files outside the table's directory never are: whoever writes the log could name any file.

    :param files: number of data files.
    :param num_bytes: their size.
    :param values: cells of the rows before, and of those after, that are compared.
    """

    files: int
    num_bytes: int
    values: int

    def check(self, log: DeltaLog, commit: DecodedCommit) -> None:
        """Refuse a commit before anything that it names is read.

        :raises ReadLimitException: if it changes the deletion vectors of too many files, which are read at once.
        :raises DeltaUnsupportedOperationException: if it names a file outside the table's directory.
        """
        # Change data files are read instead of the others.
        added = [] if commit.cdcs else [add for add in commit.adds if add.data_change]
        removed = [] if commit.cdcs else [remove for remove in commit.removes if remove.data_change]
        paths = [*(cdc.path for cdc in commit.cdcs), *(add.path for add in added), *(remove.path for remove in removed)]
        for path in paths:
            if relative_key(log.store, unquote(path)) is None:
                raise _elsewhere(log, commit, path)
        said = [*(add.deletion_vector for add in added), *(remove.deletion_vector for remove in removed)]
        vectors = [vector for vector in said if vector is not None]
        for vector in vectors:
            _check_vector(log, commit, vector)
        both = {add.path for add in added} & {remove.path for remove in removed}
        if len(both) > self.files or sum(vector.size_in_bytes for vector in vectors) > self.num_bytes:
            raise log.error(
                ReadLimitException,
                f"Version {commit.version} of table {log.uri} changes the deletion vectors of {len(both):,} files; at most "
                f"{self.files:,}, of {self.num_bytes >> 20} MiB together, are read here.",
                version=commit.version,
            )

    def rows(self, columns: int) -> int:
        """Return how many rows with some number of columns may be compared."""
        return self.values // max(columns, 1)

    def hold(self, files: Sequence[AddFile]) -> bool:
        """Return whether all of some files may be read."""
        return len(files) <= self.files and sum(file.size for file in files) <= self.num_bytes

    def smallest(self, files: Iterable[AddFile]) -> list[AddFile]:
        """Return as many of some files as may be read, the smallest first."""
        found: list[AddFile] = []
        size = 0
        for file in sorted(files, key=lambda file: file.size):
            size += file.size
            if size > self.num_bytes or len(found) == self.files:
                break
            found.append(file)
        return found


def _check_vector(log: DeltaLog, commit: DecodedCommit, vector: DeletionVectorDescriptor) -> None:
    if vector.storage_type != INLINE and relative_key(log.store, path := vector_path(log.store, vector)) is None:
        raise _elsewhere(log, commit, path)


def _elsewhere(log: DeltaLog, commit: DecodedCommit, path: str) -> DeltaUnsupportedOperationException:
    return log.error(
        DeltaUnsupportedOperationException,
        f"Version {commit.version} of table {log.uri} names {path}, outside the table's directory, as a shallow clone does. "
        "Such files are not read here.",
        version=commit.version,
    )
