"""What an error of obstore says about the request that failed: its type, and the fields of the client's own error.

An error's message mixes the client's words with others': the key, the URL (unless a token is in it), the body of the answer.
Below it, obstore prints object_store's error as a value (``{:#?}`` in Rust), a field a line. Texts of others are quoted there,
with line breaks escaped, so no key and no body can look like a field. What is not found there is not known.
"""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

from obstore import exceptions as errors

from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.light_dataclasses import dataclass

_VALUE = "\n\nDebug source:\n"
_SOURCE = lazy_pattern(r'\A\w+ \{\n +(?:store|path): "(?:[^"\\\n]|\\.)*",\n +source: (\w+)')
_METHOD = lazy_pattern(r"^ +method: ([A-Z]+),$", re.MULTILINE)
_URI = lazy_pattern(r"^ +uri: Some\(\n +(\S+),\n +\),$", re.MULTILINE)
_STATUS = lazy_pattern(r"^ +inner: Status \{\n +status: (\d{3}),$", re.MULTILINE)
_BODY = lazy_pattern(r'^ +body: Some\(\n +"((?:[^"\\\n]|\\.)*)",$', re.MULTILINE)
_REDIRECT = lazy_pattern(r"^ +inner: BareRedirect,$", re.MULTILINE)
_NOT_SENT = lazy_pattern(r"^ +source: reqwest::Error \{\n +kind: Builder,$", re.MULTILINE)
_ESCAPE = lazy_pattern(r"\\(?:u\{([0-9a-f]+)\}|(.))")
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "0": "\0"}

_OF_TYPE = {errors.PermissionDeniedError: 403, errors.UnauthenticatedError: 401}
_TYPED = frozenset({401, 403, 404, 409, 412})
"""Statuses for which object_store has types: of the request itself, never of one for credentials."""
_MACHINE = (
    "/latest/api/token",
    "/latest/meta-data/iam/security-credentials",
    "/metadata/identity/oauth2/token",
    "/service-accounts/default/token",
)
"""Ends of the paths at which a machine of AWS, Azure or Google is asked for its own credentials."""


@dataclass(frozen=True, slots=True)
class StoreAnswer:
    """What is known about a request that failed.

    :param status: HTTP status; 0 if there was no answer, or it is unknown.
    :param body: of the answer.
    :param method: HTTP method; empty if it is unknown.
    :param url: empty if the client does not say.
    :param source: name of the client's error in its error: ``TokenRequest``, ``ListRequest``, ``RetryError``.
    :param redirected: it was sent elsewhere without an address.
    :param not_sent: the client could not make a request of it.
    :param is_typed: the client's type says that the answer is that to the request itself.
    """

    status: int
    body: str
    method: str
    url: str
    source: str
    redirected: bool
    not_sent: bool
    is_typed: bool

    @classmethod
    def of(cls, error: BaseException) -> StoreAnswer:
        """Read an error."""
        value = str(error).rpartition(_VALUE)[2] if _VALUE in str(error) else ""
        status = next((status for kind, status in _OF_TYPE.items() if isinstance(error, kind)), int(_found(_STATUS, value) or 0))
        return cls(
            status=status,
            body=_ESCAPE.sub(_unescaped, _found(_BODY, value)),
            method=_found(_METHOD, value),
            url=_found(_URI, value),
            source=_found(_SOURCE, value),
            redirected=_REDIRECT.search(value) is not None,
            not_sent=_NOT_SENT.search(value) is not None,
            is_typed=not isinstance(error, errors.GenericError),
        )

    def is_of_credentials(self, put: str | None) -> bool:
        """Return whether the request was one for credentials, so the one that needs them was never sent.

        :param put: key of the object, if the request was to create it.
        """
        if self.is_typed:
            return False
        if self.source.startswith("Token"):
            return True
        if self.source != "RetryError":  # a listing, for example
            return False
        if self.status in _TYPED:
            return True
        if put is None:
            return self.asks_machine
        # The client hides a URL with a token in it, as that of a put on Azure.
        return self.method not in ("", "PUT") or bool(self.url and not self._path.endswith(f"/{unquote(put)}"))

    @property
    def has_no_range(self) -> bool:
        """Whether a part of an object was asked for, and the store does not have it or does not send parts."""
        return self.status == 416 or "Range" in self.source or self.source == "NotPartial"

    @property
    def asks_machine(self) -> bool:
        """Whether the machine is asked for its own credentials: if it cannot be reached, there are none."""
        return self._path.rstrip("/").endswith(_MACHINE)

    @property
    def _path(self) -> str:
        return unquote(unquote(urlsplit(self.url).path))


def _found(pattern: re.Pattern[str], value: str) -> str:
    match = pattern.search(value)
    return match[1] if match else ""


def _unescaped(match: re.Match[str]) -> str:
    return chr(int(match[1], 16)) if match[1] else _ESCAPED.get(match[2], match[2])
