"""A client of Unity Catalog's API for Delta tables (``/delta/v1``): load, commit, publish, create, credentials.

It knows requests and answers; :mod:`airflow_delta.catalog.committer` decides what a conflict or a lost answer means for a commit.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import msgspec
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from airflow_delta import http_answers
from airflow_delta.catalog.answers import (
    CatalogCommit,
    CatalogConfig,
    Credential,
    Credentials,
    FailureAnswer,
    LoadedTable,
    StagingTable,
)
from airflow_delta.contract.catalog_names import TableName
from airflow_delta.exceptions import (
    CatalogAccessException,
    CatalogConflictException,
    CatalogException,
    CatalogLimitException,
    CatalogNotFoundException,
    CatalogUnavailableException,
    DeltaTableNotFoundException,
)
from airflow_delta.version import __version__

logger = logging.getLogger(__name__)

API = "/api/2.1/unity-catalog/delta/v1"
PROTOCOL_VERSIONS = "1.0"
CONNECT_TIMEOUT, TIMEOUT = 10.0, 60.0
_ATTEMPTS = 5
_NO_TABLE = ("NoSuchTableException", "NotFoundException")

T = TypeVar("T")


class UnityCatalogClient:
    """Requests to one server. Threads may share it.

    :param url: the server, without the API's path, such as ``https://dbc-1234.cloud.databricks.com``.
    :param token: sent as a bearer token; ``None`` to send none.
    :param renew: returns the token that is valid now, when the server does not accept this one (401); ``None`` if it is for good.
    :param whose: whose settings these are, for errors.
    """

    def __init__(
        self, url: str, token: str | None = None, *, renew: Callable[[], str | None] | None = None, whose: str = "the catalog"
    ) -> None:
        self.url = url.rstrip("/")
        self._whose = whose
        self._headers = {"User-Agent": f"airflow-provider-delta/{__version__}", "Accept": "application/json"}
        self._token = token
        self._renew = renew
        self._lock = threading.Lock()

    @cached_property
    def _http(self) -> httpx.Client:
        # A redirect would carry the token to another server.
        timeout = httpx.Timeout(TIMEOUT, connect=CONNECT_TIMEOUT)
        http = httpx.Client(base_url=f"{self.url}{API}", headers=self._headers, timeout=timeout, follow_redirects=False)
        weakref.finalize(self, http.close)
        return http

    # -- requests --------------------------------------------------------------------------------------------------------------

    def config(self, catalog: str) -> CatalogConfig:
        """Return what the server offers for a catalog.

        :raises CatalogNotFoundException: if it does not have this API, or no such catalog.
        """
        parameters = {"catalog": catalog, "protocol-versions": PROTOCOL_VERSIONS}
        try:
            return self._get("/config", CatalogConfig, parameters, about=f"the configuration of catalog {catalog}")
        except CatalogNotFoundException as error:
            if error.kind is not None:
                raise
            raise CatalogNotFoundException(
                f"{self.url}, of {self._whose}, does not know Delta's API of version {PROTOCOL_VERSIONS} ({API}). It is an older "
                "server, whose commits go through /delta/preview/commits, which this provider does not use, or another service.",
                status=error.status,
            ) from error

    def load_table(self, name: TableName) -> LoadedTable:
        """Return a table as the catalog knows it now.

        :raises DeltaTableNotFoundException: if there is no table of that name.
        """
        try:
            return self._get(_path(name), LoadedTable, about=f"table {name}")
        except CatalogNotFoundException as error:
            if error.kind not in _NO_TABLE:
                raise
            raise DeltaTableNotFoundException(
                f"There is no table {name}. Check the name and what the token's owner may see, or create it "
                f"(DeltaCreateTableOperator). {error.message}",
                table=str(name),
            ) from error

    def credentials(self, name: TableName, operation: str) -> tuple[Credential, ...]:
        """Return temporary credentials for a table's storage.

        :param operation: ``READ`` or ``READ_WRITE``.
        """
        about = f"credentials for table {name}"
        return self._get(f"{_path(name)}/credentials", Credentials, {"operation": operation}, about=about).storage_credentials

    def add_commit(
        self,
        name: TableName,
        table_uuid: str,
        commit: CatalogCommit,
        *,
        published: int | None = None,
        also: tuple[Mapping[str, Any], ...] = (),
    ) -> LoadedTable:
        """Ask for a version. Never repeated here: only the caller can find out whether a lost answer was a yes.

        :param published: version up to which all are published, to tell the catalog.
        :param also: further updates that belong to the commit.
        :raises CatalogConflictException: if the version is taken, or the name is another table's by now.
        :raises CatalogLimitException: if there are too many versions that are not published.
        :raises CatalogUnavailableException: if it is not known whether the catalog has accepted it.
        """
        updates = [{"action": "add-commit", "commit": msgspec.to_builtins(commit)}, *map(dict, also)]
        if published is not None:
            updates.append(_published(published))
        return self._post(
            _path(name),
            _update(table_uuid, *updates),
            LoadedTable,
            about=f"version {commit.version} of table {name}",
            repeat=False,
        )

    def change_definition(
        self, name: TableName, table_uuid: str, etag: str, updates: tuple[Mapping[str, Any], ...]
    ) -> LoadedTable:
        """Change what the catalog keeps of a table's definition, without a commit.

        :param etag: of the answer that the change starts from.
        :raises CatalogConflictException: if the catalog's table has changed since.
        """
        request = _update(table_uuid, *updates)
        request["requirements"].append({"type": "assert-etag", "etag": etag})
        return self._post(_path(name), request, LoadedTable, about=f"the definition of table {name}", repeat=False)

    def report_published(self, name: TableName, table_uuid: str, version: int) -> LoadedTable:
        """Tell the catalog that all versions up to this one are published."""
        about = f"the published versions of table {name}"
        return self._post(_path(name), _update(table_uuid, _published(version)), LoadedTable, about=about)

    def stage_table(self, name: TableName) -> StagingTable:
        """Reserve the name of a new table, and a location."""
        path = f"{_schema_path(name)}/staging-tables"
        return self._post(path, {"name": name.table}, StagingTable, about=f"a new table {name}", repeat=False)

    def reservation_credentials(self, name: TableName, table_id: str) -> tuple[Credential, ...]:
        """Return temporary credentials for the location of a reserved table, which is their prefix."""
        path, about = f"/staging-tables/{quote(table_id, safe='')}/credentials", f"the reservation {table_id} of table {name}"
        return self._get(path, Credentials, about=about).storage_credentials

    def create_table(self, name: TableName, request: Mapping[str, Any]) -> LoadedTable:
        """Make a table of a reservation whose first commit is written."""
        path = f"{_schema_path(name)}/tables"
        return self._post(path, {"name": name.table, **request}, LoadedTable, about=f"table {name}", repeat=False)

    # -- how they are sent -----------------------------------------------------------------------------------------------------

    def _get(self, path: str, kind: type[T], parameters: Mapping[str, str] | None = None, *, about: str) -> T:
        return self._repeated(lambda: self._decoded(self._send("GET", path, about, params=parameters), kind, about))

    def _post(self, path: str, body: Mapping[str, Any], kind: type[T], *, about: str, repeat: bool = True) -> T:
        content = msgspec.json.encode(body)

        def post() -> T:
            return self._decoded(self._send("POST", path, about, content=content), kind, about)

        return self._repeated(post, everything=repeat)

    def _repeated(self, request: Callable[[], T], *, everything: bool = True) -> T:
        """Send a request again while the server cannot be reached, or, if it may be repeated, whenever it may succeed later."""

        def may_help(error: BaseException) -> bool:
            if isinstance(error, CatalogUnavailableException):
                return everything or not error.may_have_happened
            return everything and isinstance(error, CatalogLimitException)

        wait = wait_random_exponential(multiplier=0.1, max=5)
        retrying = Retrying(retry=retry_if_exception(may_help), stop=stop_after_attempt(_ATTEMPTS), wait=wait, reraise=True)
        return retrying(request)

    def _send(self, method: str, path: str, about: str, **given: Any) -> httpx.Response:
        headers = {"Content-Type": "application/json"} if "content" in given else {}
        token = self._token
        response = self._request(method, path, about, headers, token, given)
        if response.status_code == 401 and (renewed := self._renewed(token)) is not None:
            # Who asks is checked before anything is done, so even a commit may be asked for again.
            response = self._request(method, path, about, headers, renewed, given)
        if response.is_success:
            return response
        raise self._failure(response, about)

    def _request(
        self, method: str, path: str, about: str, headers: Mapping[str, str], token: str | None, given: Mapping[str, Any]
    ) -> httpx.Response:
        sent = {**headers, **({"Authorization": f"Bearer {token}"} if token else {})}
        try:
            return http_answers.request(self._http, method, path, headers=sent, **given)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise self._unavailable(about, error, may_have_happened=False) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._unavailable(about, error, may_have_happened=True) from error

    def _renewed(self, refused: str | None) -> str | None:
        """Return another token than the one that was refused, if there is one by now."""
        with self._lock:
            if self._token != refused:  # by another thread
                return self._token
            if self._renew is None:
                return None
            token = self._renew()
            if not token or token == refused:
                return None
            self._token = token
            return token

    def _unavailable(self, about: str, error: Exception, *, may_have_happened: bool) -> CatalogUnavailableException:
        return CatalogUnavailableException(
            f"{self.url}, of {self._whose}, did not answer about {about}: {type(error).__name__}: {error}",
            may_have_happened=may_have_happened,
        )

    def _decoded(self, response: httpx.Response, kind: type[T], about: str) -> T:
        try:
            return msgspec.json.decode(response.content, type=kind)
        except msgspec.DecodeError as error:  # an answer of 200 by something in between, or of another version
            raise CatalogUnavailableException(
                f"{self.url}, of {self._whose}, gave an answer about {about} that is not of Delta's API: {error}",
                status=response.status_code,
            ) from error

    def _failure(self, response: httpx.Response, about: str) -> CatalogException:
        status = response.status_code
        try:
            failure = msgspec.json.decode(response.content, type=FailureAnswer).error
            message, kind = failure.message, failure.type
        except msgspec.DecodeError:
            message, kind = response.text[:300], None
        text = f"{self.url}, of {self._whose}, answered about {about} with {status}{f' {kind}' if kind else ''}: {message}"
        if status in (401, 403):
            why = (
                "Check the token (password) of the connection" if status == 401 else "Grant what is missing to the token's owner"
            )
            return CatalogAccessException(f"{text}. {why}.", status=status, kind=kind)
        if status == 404:
            return CatalogNotFoundException(text, status=status, kind=kind)
        if status == 409:
            return CatalogConflictException(text, status=status, kind=kind)
        if status == 429:
            return CatalogLimitException(text, status=status, kind=kind)
        if status >= 500 and status != 501:
            return CatalogUnavailableException(text, status=status, kind=kind)
        return CatalogException(text, status=status, kind=kind)


def _schema_path(name: TableName) -> str:
    return f"/catalogs/{quote(name.catalog, safe='')}/schemas/{quote(name.schema, safe='')}"


def _path(name: TableName) -> str:
    return f"{_schema_path(name)}/tables/{quote(name.table, safe='')}"


def _published(version: int) -> dict[str, Any]:
    return {"action": "set-latest-backfilled-version", "latest-published-version": version}


def _update(table_uuid: str, *updates: Mapping[str, Any]) -> dict[str, Any]:
    return {"requirements": [{"type": "assert-table-uuid", "uuid": table_uuid}], "updates": list(updates)}
