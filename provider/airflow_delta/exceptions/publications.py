"""Errors of publications of several tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from airflow_delta.exceptions.base import DeltaError, DeltaIllegalStateException
from airflow_delta.exceptions.conflicts import DeltaConcurrentModificationException
from airflow_delta.masking import masked


class _PublicationError(DeltaError):
    """Has the publication's id, and what the error lists; URIs are masked."""

    listed: ClassVar[tuple[str, ...]]

    def __init__(self, message: str, *, publication: str = "", **more: Any) -> None:
        lists = {name: more.pop(name, ()) for name in self.listed}
        super().__init__(message, **more)
        self.publication = publication
        for name, items in lists.items():
            setattr(self, name, tuple(masked(item) if isinstance(item, str) else item for item in items))


class PublicationPendingException(_PublicationError):
    """A publication of several tables is under way and could not be settled yet. Nothing is lost: run the task again.

    :param publication: its id.
    :param tables: URIs of its tables, the anchor first.
    """

    error_class = "DELTA_PUBLICATION_PENDING"
    listed = ("tables",)
    tables: tuple[str, ...]


class PublicationUndoneException(_PublicationError, DeltaConcurrentModificationException):
    """A publication was taken back on every table, since another commit came between the decision and its turn on one of them.

    ``table``, ``winning_version`` and ``winning_commit`` are of that commit.

    :param publication: id of the publication.
    :param dirty_reads: commits that may have been built on rows before they were taken back: table, version and operation.
    """

    error_class = "DELTA_PUBLICATION_UNDONE"
    listed = ("dirty_reads",)
    dirty_reads: tuple[Mapping[str, Any], ...]


class PublicationSplitException(_PublicationError, DeltaIllegalStateException):
    """A publication is on some of its tables only, for good: it could not be completed, nor taken back. A person must decide.

    :param publication: its id.
    :param published: URIs of the tables that show it.
    :param missing: URIs of the tables that do not.
    """

    error_class = "DELTA_PUBLICATION_SPLIT"
    retry = "refused"
    listed = ("published", "missing")
    published: tuple[str, ...]
    missing: tuple[str, ...]
