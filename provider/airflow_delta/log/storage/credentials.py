"""Credentials that expire: who fetches new ones for a store, and when.

Options are text, and may go to other processes. What fetches new credentials is a function of this process, which an option
names; where the function is unknown, the values beside it are used for as long as they last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_delta.contract.location import GCS, S3

RENEWED_BY = "credentials_renewed_by"
"""Our own option: the name under which this process knows how to fetch the credentials again."""

EXPIRES_AT = "credentials_expire_at"
"""Our own option: until when they are valid, in seconds since the epoch."""

Fetch = Callable[[], Mapping[str, str]]
"""Fetches credentials, as storage options."""

UNKNOWN_LIFETIME = timedelta(minutes=10)
"""After which credentials of an unknown end are fetched again, less the client's own five minutes."""

_VALUES = {
    S3: {"access_key_id": "aws_access_key_id", "secret_access_key": "aws_secret_access_key", "token": "aws_session_token"},
    GCS: {"token": "google_bearer_token"},
}
_fetchers: dict[str, Fetch] = {}


def renewable(options: Mapping[str, str], name: str, fetch: Fetch) -> dict[str, str]:
    """Return options with the name under which stores of this process fetch their credentials again.

    :param name: of the identity, which says nothing about it: one for each connection as it is now.
    """
    _fetchers[name] = fetch
    return {**options, RENEWED_BY: name}


class Renewal:
    """What object_store's client calls for credentials, whenever those that it has are about to expire.

    :param store: kind of store.
    :param options: of the store, under their canonical names.
    """

    def __init__(self, store: str, options: Mapping[str, str], fetch: Fetch) -> None:
        self._names = _VALUES[store]
        self._fetch = fetch
        self._first: Mapping[str, str] | None = options if EXPIRES_AT in options else None
        self.error: BaseException | None = None
        """Why there are none at the moment: the client only says that there are none."""

    @classmethod
    def of(cls, store: str, options: Mapping[str, str]) -> Renewal | None:
        """Return it for a store whose credentials this process can fetch again."""
        fetch = _fetchers.get(options.get(RENEWED_BY, ""))
        return cls(store, options, fetch) if fetch is not None and store in _VALUES else None

    @property
    def replaces(self) -> frozenset[str]:
        """The options that it gives the client instead."""
        return frozenset((*self._names.values(), RENEWED_BY, EXPIRES_AT))

    def __call__(self) -> dict[str, Any]:
        """Return credentials as the client takes them."""
        try:
            options, self._first = self._first or self._fetch(), None
            self.error = None
        except BaseException as error:
            self.error = error
            raise
        until = options.get(EXPIRES_AT)
        expires = datetime.fromtimestamp(float(until), UTC) if until else datetime.now(UTC) + UNKNOWN_LIFETIME
        return {**{name: options.get(option) for name, option in self._names.items()}, "expires_at": expires}
