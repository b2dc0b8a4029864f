"""Errors of a catalog that decides on the versions of its tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_delta.exceptions.base import DeltaError

if TYPE_CHECKING:
    from typing import Unpack

    from airflow_delta.exceptions.base import About


class CatalogException(DeltaError):
    """A catalog refused a request, or gave an answer that cannot be understood.

    :param status: the HTTP status of the answer; ``None`` if there was none.
    :param kind: the catalog's own name of the error, such as ``NoSuchSchemaException``.
    """

    error_class = "DELTA_CATALOG_REQUEST_FAILED"

    def __init__(self, message: str, *, status: int | None = None, kind: str | None = None, **about: Unpack[About]) -> None:
        super().__init__(message, **about)
        self.status = status
        self.kind = kind


class CatalogAccessException(CatalogException, PermissionError):
    """The catalog does not accept the token (401), or who it belongs to may not do this (403)."""

    error_class = "DELTA_CATALOG_ACCESS_DENIED"
    retry = "refused"


class CatalogNotFoundException(CatalogException, LookupError):
    """The catalog has no such catalog, schema or table, or the server does not know Delta's API."""

    error_class = "DELTA_CATALOG_NOT_FOUND"
    retry = "refused"


class CatalogConflictException(CatalogException):
    """Another client was faster: the version is taken, the table is another one by now, or the name is in use (409)."""

    error_class = "DELTA_CATALOG_CONFLICT"


class CatalogLimitException(CatalogException, OSError):
    """The catalog takes no more requests, or no more commits before some are published (429). Nothing was done."""

    error_class = "DELTA_CATALOG_LIMIT"


class CatalogUnavailableException(CatalogException, OSError):
    """The catalog did not answer, or failed (5xx).

    :param may_have_happened: whether it may have done what it was asked for.
    """

    error_class = "DELTA_CATALOG_UNAVAILABLE"

    def __init__(
        self,
        message: str,
        *,
        may_have_happened: bool = True,
        status: int | None = None,
        kind: str | None = None,
        **about: Unpack[About],
    ) -> None:
        super().__init__(message, status=status, kind=kind, **about)
        self.may_have_happened = may_have_happened
