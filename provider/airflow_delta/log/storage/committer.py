"""What makes a commit a version of the table: the file system, by a put of its file, or who manages the table (Delta Kernel's
``Committer``).

The commit loop decides which version to try and what a loss means; a committer only asks for that one version.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from types import MappingProxyType
from typing import Protocol

from airflow_delta.log.storage.errors import StoreRefusedError
from airflow_delta.log.storage.file_names import commit_file


class CreatesFiles(Protocol):
    """What the committer of the file system needs of a store."""

    def put_if_absent(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Create a file with this content, unless it exists."""
        ...


class Definition(Protocol):
    """A table's metadata (:class:`~airflow_delta.log.actions.actions.Metadata`)."""

    @property
    def description(self) -> str | None:
        """The table's comment."""

    @property
    def schema_string(self) -> str:
        """Spark's JSON form of the schema."""

    @property
    def partition_columns(self) -> Sequence[str]:
        """Logical names, in order."""

    @property
    def configuration(self) -> Mapping[str, str]:
        """The table properties."""


class LogCommitter(ABC):
    """Makes commits versions of one table.

    :ivar managed_as: the table's name with whoever decides on its versions and maintains it; ``None`` if the log on storage
        decides.
    :ivar provides: table features that need this committer: a table that has one is refused through any other, and a table that
        lacks one through this.
    :ivar refusals: errors of :meth:`commit` after which nothing was committed, and the log cannot be read either.
    :ivar required_properties: what a table must be created or replaced with, the features of a new one included.
    """

    managed_as: str | None = None
    provides: Set[str] = frozenset()
    refusals: tuple[type[Exception], ...] = (StoreRefusedError,)
    required_properties: Mapping[str, str] = MappingProxyType({})

    @abstractmethod
    def commit(self, version: int, data: bytes, before: Definition | None = None) -> None:
        """Make ``data`` this version of the table, unless the version is taken.

        :param before: the metadata that those in ``data`` replace; ``None`` if there are none, or they are not known.
        :raises FileExistsError: if the version is taken, perhaps by an earlier attempt of the same transaction.
        :raises AmbiguousPutError: if it is not known whether the version was made.
        :raises Exception: one of :attr:`refusals`, if it was refused for good.
        """

    def check_allowed(self, operation: str, definition: Definition | None = None) -> None:  # noqa: B027 - nothing is refused
        """Refuse an operation that whoever decides on versions does not allow its clients.

        :param operation: as in ``commitInfo``.
        :param definition: the metadata that it gives an existing table, if it does.
        :raises DeltaUnsupportedOperationException: if it is refused.
        """

    def publish(self) -> None:  # noqa: B027 - nothing is left to do
        """Finish what accepted commits leave to do. An error is not one of the commit, and not raised."""

    def is_published(self, version: int) -> bool:  # noqa: ARG002
        """Tell whether a version has its file in the log, so that a checkpoint may be written of it."""
        return True


class FileSystemCommitter(LogCommitter):
    """The log on storage decides: the first to create a version's file has that version."""

    def __init__(self, store: CreatesFiles) -> None:
        self._store = store

    def commit(self, version: int, data: bytes, before: Definition | None = None) -> None:  # noqa: ARG002
        """Create the version's file; raises as :meth:`LogCommitter.commit` does."""
        self._store.put_if_absent(commit_file(version), data)
