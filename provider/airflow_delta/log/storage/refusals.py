"""What a store says when it refuses a request, and whether that is final."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from airflow_delta.contract.location import AZURE, GCS, S3
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.storage.answers import StoreAnswer
from airflow_delta.log.storage.errors import StoreAccessError, StoreRefusedError

_TAG = {name: lazy_pattern(rf"<{name}>(.*?)</{name}>", re.DOTALL) for name in ("Code", "Message")}
_MESSAGE = lazy_pattern(r'"message"\s*:\s*"((?:[^"\\]|\\.)*)"')
_NOT_OF_OBJECTS = lazy_pattern("Bucket|Container|Filesystem|Account|User")
"""Of codes with status 404 that do not say that an object is missing; Versity's gateway knows no user by an unknown key."""
_MAY_PASS = frozenset({408, 409, 412, 429})
_CODES_MAY_PASS = frozenset(
    ("RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch", "Md5Mismatch", "ThrottlingException")
)
"""Codes with a status of 4xx that say something about the connection, or about load, rather than about the request."""
_LONGEST = 400

_WRONG_CREDENTIALS = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "AuthenticationFailed", "AuthorizationHeaderMalformed")
_CREDENTIALS = {
    S3: "login and password (or AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, aws_conn_id)",
    AZURE: "login and password (or AZURE_STORAGE_SAS_TOKEN, AZURE_CLIENT_ID with AZURE_CLIENT_SECRET, wasb_conn_id)",
    GCS: "GOOGLE_SERVICE_ACCOUNT (or GOOGLE_SERVICE_ACCOUNT_KEY, gcp_conn_id)",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that says that the request was not done and never will be.

    :param status: HTTP status; 0 if the request was not sent.
    :param code: the store's own code, such as ``AccessDenied``.
    :param said: status, code and message as one text.
    :param tokenless: there were no credentials to sign the request with.
    """

    status: int
    code: str
    said: str
    tokenless: bool = False

    @classmethod
    def of(cls, error: BaseException, put: str | None = None) -> Refusal | None:
        """Return the refusal in a client's error; ``None`` if the request may have been done, or may succeed later.

        :param put: key of the object, if the request was to create it.
        """
        answer = StoreAnswer.of(error)
        if answer.not_sent:
            return cls(0, "", "plain HTTP is not allowed, or the endpoint is not a URL")
        status = answer.status
        code, message = (_found(_TAG[name], answer.body) for name in ("Code", "Message"))
        message = message or _found(_MESSAGE, answer.body)
        is_final = 400 <= status < 500 and status not in _MAY_PASS and code not in _CODES_MAY_PASS
        if answer.is_of_credentials(put):
            if not is_final and not answer.redirected and (status or not answer.asks_machine):
                return None
            why = str(status) if status else "the machine has none, or does not answer"
            said = ": ".join(part for part in (" ".join(part for part in (why, code) if part), message) if part)
            return cls(status, "", f"no credentials could be found ({said})", True)
        if answer.redirected:
            return cls(301, "", "301: the bucket is in another region, or the endpoint is not its own")
        if not is_final:
            return None
        if status == 404 and not _NOT_OF_OBJECTS.search(code) and "bucket" not in message.lower():
            return None
        said = ": ".join(part for part in (" ".join(part for part in (str(status), code) if part), message) if part)
        return cls(status, code, said)

    @property
    def of_access(self) -> bool:
        """Whether it is for the credentials, or for want of any."""
        return self.tokenless or self.status in (401, 403) or self._unknown_user

    @property
    def _unknown_user(self) -> bool:
        return self.status == 404 and "User" in self.code

    def way_out(self, store: str, whose: str) -> str:
        """Return what to change."""
        credentials = f"Set {_CREDENTIALS[store]} in {whose}, or give the worker a role."
        if self.tokenless or self.status == 401:
            return credentials
        if self.code in ("ExpiredToken", "InvalidToken", "TokenRefreshRequired", "ExpiredAuthenticationToken"):
            return f"The session token of {whose} has expired: renew it, or let aws_conn_id or a role fetch a new one."
        if self.code in _WRONG_CREDENTIALS or self._unknown_user:
            return f"Check {_CREDENTIALS[store]}, and region and endpoint, in {whose}."
        if self.status == 403:
            return f"Let the credentials of {whose} read, list, write and delete below the table."
        if self.status in (301, 404):
            return f"Check the bucket or container in the location, and region and endpoint in {whose}."
        if self.status == 0:
            return f"Check the endpoint in {whose}; for http:// also set allow_http to true."
        return f"Check the storage options of {whose}."


def is_panic(error: BaseException) -> bool:
    """Return whether an exception is a panic of a client in Rust: a ``BaseException``, which no other handler catches."""
    return type(error).__name__ == "PanicException" and not isinstance(error, Exception)


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raise a :class:`RuntimeError` in place of a panic inside a ``with`` block."""
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        raise RuntimeError(f"the client failed: {error}") from error


def access_refused(refusal: Refusal) -> type[StoreRefusedError]:
    """Return the class of the error for a refusal."""
    return StoreAccessError if refusal.of_access else StoreRefusedError


def exists_for_certain(error: BaseException) -> bool:
    """Return whether a store that did not create an object says that it exists, not just that others are about to create it."""
    answer = StoreAnswer.of(error)
    return answer.status == 412 or _found(_TAG["Code"], answer.body) == "BlobAlreadyExists"


def _found(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return " ".join(match[1].split())[:_LONGEST].rstrip(".") if match else ""
