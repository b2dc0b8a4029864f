"""Tables on S3, Google Cloud Storage and Azure, through obstore.

A commit is a conditional put (``If-None-Match: *`` on S3), so two writers cannot both create a version. Conditional puts are sent
once: if the client retried them, a lost reply would look like a lost race.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, BinaryIO, TypeVar

import obstore
from obstore import exceptions as errors
from obstore import store as stores
from obstore.exceptions import BaseError

from airflow_delta.contract.location import AZURE, GCS, S3, Location, azure_host
from airflow_delta.exceptions import DeltaIllegalArgumentException, DeltaIllegalStateException
from airflow_delta.log.storage.answers import StoreAnswer
from airflow_delta.log.storage.base import FileStatus, LogStore
from airflow_delta.log.storage.credentials import Renewal
from airflow_delta.log.storage.endpoints import AZURE_ENDPOINT, client_config, with_place
from airflow_delta.log.storage.errors import AmbiguousPutError, StoreRefusedError, StoreUnavailableError
from airflow_delta.log.storage.file_names import LOG_DIRECTORY
from airflow_delta.log.storage.fork import check_runtime
from airflow_delta.log.storage.identity import check_environment, check_identity
from airflow_delta.log.storage.options import CLIENT_OPTIONS, ENDPOINTS, MAX_RETRIES, OWN_OPTIONS, canonical_options
from airflow_delta.log.storage.progress import tracked
from airflow_delta.log.storage.refusals import Refusal, access_refused, exists_for_certain, is_panic
from airflow_delta.log.storage.whole_reads import complete
from airflow_delta.masking import masked, secret_values

logger = logging.getLogger(__name__)

_THREADS = 16
_DELETE_BATCH = 1_000
_PAGE = 1_000
_SINGLE_PUT = 32 << 20
"""Bytes up to which a file is put in one request."""
_SINGLE_COPY = 5 << 30
"""Bytes up to which S3 copies an object in one request."""
_PART = 16 << 20
_PARTS_AT_ONCE = 4
_CONFLICT_RETRIES = 5
_CONFLICT_WAIT = 0.05
_CAUSES = 10
T = TypeVar("T")


class ObjectStore(LogStore):
    """A table on an object store; the client is made on first use, never at import or in a parent process.

    :param table_uri: ``s3://bucket/prefix`` and the like. The part after the bucket is the key itself, not URL-encoded.
    :param options: settings in any spelling of ``object_store``; also ``allow_http`` and the other client options.
    :param connection: name of the connection that they come from, for errors.
    """

    probes = False

    def __init__(self, table_uri: str, options: Mapping[str, str] | None = None, connection: str | None = None) -> None:
        self.root = table_uri.rstrip("/")
        self.options = dict(options or {})
        self.connection = connection
        self._secrets = secret_values(self.options)
        self._location = Location.parse(table_uri)
        self._prefix = self._location.path.removeprefix("/")
        self._reader: Any = None
        self._bucket: Any = None
        self._writer: Any = None
        self._renewal: Renewal | None = None

    # -- the client -----------------------------------------------------------------------------------------------------------

    def _client(self) -> Any:
        """Return the client with retries, for everything except conditional puts."""
        check_runtime(self.root)
        if self._reader is None:
            self._reader = self._make(None)
        return self._reader

    def _single_shot(self) -> Any:
        """Return the client that sends each request once."""
        check_runtime(self.root)
        if self._writer is None:
            self._writer = self._make({"max_retries": 0})
        return self._writer

    def _make(self, retry: Mapping[str, Any] | None, *, whole_bucket: bool = False) -> Any:
        named = canonical_options(self.options, self.root, whose=self._whose)
        given = {name: value for name, value in named.items() if name not in OWN_OPTIONS}
        check_identity(given, self._location.store, self._whose)
        check_environment(given, self._location.store, os.environ, self._whose)
        placed = with_place(given, self._location, os.environ)
        config: dict[str, Any] = client_config(
            {name: value for name, value in placed.items() if name not in CLIENT_OPTIONS and name != MAX_RETRIES}, self._location
        )
        client: dict[str, Any] = {
            name: _boolean(value) if name.startswith("allow_") else value
            for name, value in given.items()
            if name in CLIENT_OPTIONS
        }
        if any(config.get(name, "").lower().startswith("http://") for name in ENDPOINTS):
            client.setdefault("allow_http", True)
        store, bucket = self._location.store, self._location.bucket
        if store == AZURE:
            self._of_account(config)
        arguments: dict[str, Any] = {"prefix": None if whole_bucket else self._prefix or None, "config": config or None}
        if client:
            arguments["client_options"] = client
        if self._renewal is None:
            self._renewal = Renewal.of(store, named)
        if self._renewal is not None:
            arguments["credential_provider"] = self._renewal
            arguments["config"] = {name: value for name, value in config.items() if name not in self._renewal.replaces}
        if (repeats := retry or self._repeats(named)) is not None:
            arguments["retry_config"] = repeats
        make = {S3: stores.S3Store, GCS: stores.GCSStore, AZURE: stores.AzureStore}[store]
        try:
            return make(bucket, **arguments)
        except (BaseError, ValueError, TypeError) as error:
            raise self.error(
                DeltaIllegalArgumentException,
                f"The storage options of {self._whose} are not valid for table {self.root}: {self._told(error)}.",
            ) from error
        except BaseException as error:
            if not is_panic(error):
                raise
            raise self.error(
                DeltaIllegalArgumentException,
                f"The store of table {self.root} cannot be opened: its client failed ({self._told(error)}). Check the location, "
                f"and the storage options of {self._whose}.",
            ) from error

    def _repeats(self, options: Mapping[str, str]) -> dict[str, int] | None:
        given = options.get(MAX_RETRIES)
        if given is None:
            return None
        if not given.strip().isdecimal():
            raise self.error(
                DeltaIllegalArgumentException, f"{MAX_RETRIES} of {self._whose} is {given!r}; it must be a whole number."
            )
        return {"max_retries": int(given)}

    @property
    def _whose(self) -> str:
        return f"the connection {self.connection!r}" if self.connection else f"table {self.root}"

    def _of_account(self, config: dict[str, Any]) -> None:
        """Have the client use the account in the location, and no other, at the endpoint of its cloud."""
        account, given = self._location.account, config.get("azure_storage_account_name")
        if account is None:
            return
        if given is not None and given.lower() != account:
            raise self.error(
                DeltaIllegalArgumentException,
                f"The table {self.root} is in the storage account {account!r}, but {self._whose} is for the account {given!r}. "
                "Use a connection for each account.",
            )
        cloud = azure_host(config.get(AZURE_ENDPOINT) or "")
        if cloud is not None and cloud != self._location.host:
            raise self.error(
                DeltaIllegalArgumentException,
                f"The table {self.root} is at {self._location.host}, but {self._whose} is for {cloud}. Correct the location, or "
                "use a connection of that account and cloud.",
            )
        config["azure_storage_account_name"] = account
        endpoint = self._location.azure_endpoint
        if endpoint is not None:  # only the account's name would be sent to Azure's public cloud, where it may be somebody else's
            config.setdefault(AZURE_ENDPOINT, endpoint)

    def _told(self, error: BaseException) -> str:
        """Return the message of an error without secrets: the client's errors repeat URLs and headers.

        The error itself is masked too, since a traceback shows it beside ours.
        """
        told: BaseException | None = error
        for _ in range(_CAUSES):
            if told is None:
                break
            told.args = tuple(masked(part, self._secrets) if isinstance(part, str) else part for part in told.args)
            told = told.__cause__ or told.__context__
        return masked(_first_line(error), self._secrets)

    def _refused(self, error: BaseException, operation: str, path: str, *, put: bool = False) -> StoreRefusedError | None:
        """Return what is to be raised if the store refused for good."""
        refusal = Refusal.of(error, path if put else None)
        text = self._told(error)
        if refusal is None:
            return None
        kind = access_refused(refusal)
        said = masked(refusal.said, self._secrets) or text
        place = self._whose if self.connection else "the storage options"
        return kind(f"{operation} {self.root}/{path} was refused: {said}. {refusal.way_out(self._location.store, place)}")

    def _call(self, path: str, action: Callable[[], T], operation: str = "Reading") -> T:
        try:
            return action()
        except (errors.NotFoundError, FileNotFoundError) as error:
            if (refused := self._refused(error, operation, path)) is not None:
                raise refused from error
            raise FileNotFoundError(f"{self.root}/{path}") from error
        except errors.BaseError as error:
            self._check_renewal(error)
            if (refused := self._refused(error, operation, path)) is not None:
                raise refused from error
            if isinstance(error, errors.InvalidPathError):
                raise self.error(
                    DeltaIllegalStateException,
                    f"{operation} {self.root}/{path} failed: an object there has a name that the store's client cannot handle "
                    f"({self._told(error)}), and hides others from it. Rename the object, or move it elsewhere.",
                ) from error
            raise StoreUnavailableError(
                f"{operation} {self.root}/{path} failed: {self._told(error)}. Check {self._whose}."
            ) from error
        except BaseException as error:
            if not is_panic(error):
                raise
            raise StoreUnavailableError(
                f"{operation} {self.root}/{path} failed in the store's client: {self._told(error)}. Check {self._whose}."
            ) from error

    def _check_renewal(self, error: BaseException) -> None:
        """Raise why there are no credentials, if that is why a request was not sent: the client says so in words only."""
        why = self._renewal.error if self._renewal is not None else None
        if isinstance(error, errors.UnauthenticatedError) and why is not None:
            raise why

    # -- reading --------------------------------------------------------------------------------------------------------------

    def read(self, path: str) -> bytes:
        """Return an object's content."""
        client = self._client()

        def ranged() -> tuple[bytes, int]:
            # The length of a plain answer is that of what is left of it; that of a range also names the object's.
            found = obstore.get(client, path, options={"range": {"offset": 0}})
            return bytes(found.bytes()), int(found.meta["size"])

        def plain() -> tuple[bytes, int]:
            data = bytes(obstore.get(client, path).bytes())
            return data, int(obstore.head(client, path)["size"])

        def read() -> tuple[bytes, int]:
            try:
                return ranged()
            except errors.GenericError as error:
                if not StoreAnswer.of(error).has_no_range:
                    raise
            return plain()  # an empty object, or a store without ranges

        return complete(f"{self.root}/{path}", lambda: self._call(path, read))

    def read_many(self, paths: Sequence[str]) -> list[bytes]:
        """Return several objects' contents in the given order, read concurrently."""
        if len(paths) < 2:
            return [self.read(path) for path in paths]
        self._client()
        with ThreadPoolExecutor(min(_THREADS, len(paths))) as pool:
            return list(tracked(pool.map(self.read, paths), f"Reading files of {self.root}", len(paths)))

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Return up to ``length`` bytes from ``start``."""
        client = self._client()
        options: Any = {"range": (start, start + length)}

        def read() -> tuple[bytes, int]:
            found = obstore.get(client, path, options=options)
            return bytes(found.bytes()), min(length, int(found.meta["size"]) - start)

        return complete(f"{self.root}/{path}", lambda: self._call(path, read))

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return several ranges of an object, read concurrently."""
        if len(ranges) < 2:
            return [self.read_range(path, *found) for found in ranges]
        client = self._client()
        starts, lengths = [start for start, _ in ranges], [length for _, length in ranges]
        found = self._call(path, lambda: obstore.get_ranges(client, path, starts=starts, lengths=lengths, coalesce=0))
        # The client does not say how long the object is: what is shorter is read again, where that is compared.
        return [
            bytes(part) if len(part) == length else self.read_range(path, start, length)
            for part, (start, length) in zip(found, ranges, strict=True)
        ]

    def head(self, path: str) -> FileStatus | None:
        """Return an object's status, or ``None``."""
        client = self._client()
        try:
            return self._status(self._call(path, lambda: obstore.head(client, path)))
        except FileNotFoundError:
            return None

    def list_from(self, directory: str, start_name: str, *, stat: bool = True) -> list[FileStatus]:  # noqa: ARG002 - known anyway
        """Return the direct children of a directory from ``start_name`` on; the store skips earlier ones."""
        # The offset is exclusive: the name without its last character sorts before all requested names.
        found = []
        offset = f"{directory}/{start_name[:-1]}" if start_name else None
        for status in self._list(f"{directory}/", offset, children=True):
            name = status.path[len(directory) + 1 :]
            if "/" not in name and name >= start_name:
                found.append(status)
        return sorted(found, key=lambda status: status.path)

    @property
    def lists_in_pieces(self) -> bool:
        """Whether the store skips to a path. Not every version of Azure's API does: each piece would be a whole listing."""
        return self._location.store != AZURE

    def list_recursive(self, directory: str, *, cuts: Sequence[str] = ()) -> Iterator[FileStatus]:
        """Yield all objects below a directory."""
        prefix = f"{directory}/" if directory else None
        ends = sorted(set(cuts)) if self.lists_in_pieces else []
        if not ends:
            yield from self._list(prefix)
            return
        self._client()
        pieces = list(zip([None, *ends], [*ends, None], strict=True))
        with ThreadPoolExecutor(min(_THREADS, len(pieces))) as pool:
            for found in pool.map(lambda piece: list(self._list(prefix, *piece)), pieces):
                yield from found

    def list_readable(self, directory: str) -> Iterator[FileStatus]:
        """Yield the objects below a directory; pass over those that an odd name beside them hides, with a warning."""
        prefix, client = f"{directory}/" if directory else None, self._client()
        found = _unless_hidden(lambda: list(self._list(prefix)))
        if not isinstance(found, DeltaIllegalStateException):
            yield from found
            return
        listed = _unless_hidden(lambda: self._call(directory, lambda: obstore.list_with_delimiter(client, prefix), "Listing"))
        if not isinstance(listed, DeltaIllegalStateException):
            inner = dict.fromkeys(name.rstrip("/") for name in listed["common_prefixes"])
            for status in map(self._status, listed["objects"]):
                if status.size or not (_is_marker(status, directory) or status.path in inner):
                    yield status
            for name in inner:
                yield from self.list_readable(name)
            return
        # It is this directory that has it. An empty part (a//b) sorts before names that begin with a digit, a letter or "_".
        first = f"{prefix or ''}0"
        later = _unless_hidden(lambda: list(self._list(prefix, first)))
        are_all = isinstance(later, DeltaIllegalStateException)
        if are_all and LOG_DIRECTORY in directory.split("/"):
            raise found  # or nothing would show that the files beside it are those of a table
        lost = "all of it" if are_all else "what begins with another sign than a digit, a letter or '_'"
        logger.warning("%s Of the directory %s, %s is passed over.", found, f"{self.root}/{directory}", lost)
        if not isinstance(later, DeltaIllegalStateException):
            own = self.head(first)
            yield from [*([own] if own is not None else []), *later]

    def list_directories(self, directory: str) -> list[str]:
        """Return the names between a directory and the next slash."""
        client = self._client()
        try:
            listed = self._call(directory, lambda: obstore.list_with_delimiter(client, f"{directory}/"), "Listing")
        except FileNotFoundError:
            return []
        return sorted(prefix.rstrip("/").rpartition("/")[2] for prefix in listed["common_prefixes"])

    def list_children(self, directory: str) -> tuple[list[str], list[str]]:
        """Return the names in a directory that no slash follows (files), and those that a slash follows (directories)."""
        client = self._client()
        try:
            listed = self._call(
                directory, lambda: obstore.list_with_delimiter(client, f"{directory}/" if directory else None), "Listing"
            )
        except FileNotFoundError:
            return [], []
        directories = {prefix.rstrip("/").rpartition("/")[2] for prefix in listed["common_prefixes"]}
        objects = (status for status in map(self._status, listed["objects"]) if status.size or not _is_marker(status, directory))
        # Hadoop on Azure's Blob API marks a directory with an empty object of exactly its name.
        files = [status.name for status in objects if status.size or status.name not in directories]
        return sorted(files), sorted(directories)

    def list_visible(self, skip: Callable[[str], bool]) -> Iterator[FileStatus]:
        """Yield the objects of the table, except those below skipped names, whose pages are not fetched."""
        offset: str | None = None
        while True:
            for status in self._list(None, offset):
                first, slash, _ = status.path.partition("/")
                if not skip(first):
                    yield status
                elif slash and offset != (beyond := f"{first}/~"):
                    offset = beyond  # continue after everything below that name
                    break
            else:
                return

    def _list(
        self, prefix: str | None, offset: str | None = None, end: str | None = None, *, children: bool = False
    ) -> Iterator[FileStatus]:
        """Yield objects in order, except directory markers (``p=1/``), which the client lists without their trailing slash.

        :param end: last name.
        :param children: may leave out objects in subdirectories.
        """
        own, empty = (prefix or "").rstrip("/"), None
        for status in self._objects(prefix, offset, children=children):
            if end is not None and status.path > end:
                break
            if empty is not None and not status.path.startswith(f"{empty.path}/") and self.head(empty.path) is not None:
                yield empty
            empty = None
            if status.size:
                yield status
            elif not _is_marker(status, own):
                empty = status  # a marker if objects follow below it, or if no object has exactly that name
        if empty is not None and self.head(empty.path) is not None:
            yield empty

    def _objects(self, prefix: str | None, offset: str | None, *, children: bool = False) -> Iterator[FileStatus]:
        client, own = self._client(), prefix or ""
        pages = self._call(own, lambda: iter(obstore.list(client, prefix, offset=offset, chunk_size=_PAGE)), "Listing")
        while True:
            try:
                page = self._call(prefix or "", lambda pages=pages: next(pages, None), "Listing")  # type: ignore[misc]
            except FileNotFoundError:
                return
            if page is None:
                return
            for meta in page:
                yield self._status(meta)
            if not children or len(page) < _PAGE:
                continue
            inner, slash, _ = page[-1]["path"].removeprefix(own).partition("/")
            if slash and offset != (beyond := f"{own}{inner}/~"):
                offset = beyond  # the next page would go on in that subdirectory
                pages = iter(obstore.list(client, prefix, offset=offset, chunk_size=_PAGE))

    @staticmethod
    def _status(meta: Any) -> FileStatus:
        modified: datetime = meta["last_modified"]
        etag = meta.get("e_tag")
        if etag is not None:  # Azure has it without quotes in a listing, and with them of an object
            etag = etag.removeprefix("W/").strip('"')
        return FileStatus(meta["path"], int(meta["size"]), int(modified.timestamp() * 1000), etag=etag)

    # -- writing --------------------------------------------------------------------------------------------------------------

    def put_if_absent(self, path: str, data: bytes, *, durable: bool = True) -> None:  # noqa: ARG002 - always durable here
        """Create an object, unless it exists."""
        client = self._single_shot()
        for attempt in range(_CONFLICT_RETRIES + 1):
            try:
                obstore.put(client, path, data, mode="create", use_multipart=False)
            except errors.AlreadyExistsError as error:
                # S3 also replies 409 while another put of the key is in progress, which may still fail.
                if exists_for_certain(error) or self.head(path) is not None:
                    raise FileExistsError(f"{self.root}/{path}") from error
                if attempt == _CONFLICT_RETRIES:
                    raise OSError(
                        f"{self.root}/{path} cannot be written: the store reports a conflict, but the object does not exist"
                    ) from error
                time.sleep(_CONFLICT_WAIT * (attempt + 1))
                continue
            except (errors.PreconditionError, errors.NotModifiedError) as error:
                raise FileExistsError(f"{self.root}/{path}") from error
            except (errors.InvalidPathError, errors.NotSupportedError) as error:
                raise OSError(f"{self.root}/{path} cannot be written: {self._told(error)}") from error
            except (errors.BaseError, OSError) as error:
                self._check_renewal(error)
                if (refused := self._refused(error, "Writing", path, put=True)) is not None:
                    raise refused from error
                raise AmbiguousPutError(f"It is unknown whether {self.root}/{path} was written: {self._told(error)}") from error
            except BaseException as error:
                if not is_panic(error):
                    raise
                raise AmbiguousPutError(f"It is unknown whether {self.root}/{path} was written: {self._told(error)}") from error
            return

    def put(self, path: str, data: bytes, *, durable: bool = True) -> None:  # noqa: ARG002 - always durable here
        """Create or replace an object."""
        client = self._client()
        self._call(path, lambda: obstore.put(client, path, data, use_multipart=False), "Writing")

    def put_file(self, path: str, file: BinaryIO) -> None:
        """Create or replace an object; a large one is sent in parts and never in memory as a whole."""
        start = file.tell()
        size = file.seek(0, 2) - start
        file.seek(start)
        if size <= _SINGLE_PUT:
            self.put(path, file.read())
            return
        client = self._client()
        parts: dict[str, Any] = {"use_multipart": True, "chunk_size": _PART, "max_concurrency": _PARTS_AT_ONCE}
        self._call(path, lambda: obstore.put(client, path, file, **parts), "Writing")

    def copy_from(self, source: LogStore, source_path: str, path: str) -> int:
        """Create or replace an object; the store itself copies one that the same credentials reach in the same bucket."""
        near = isinstance(source, ObjectStore) and (source._location.root, source.options) == (self._location.root, self.options)
        status = source.head(source_path) if near else None
        if not isinstance(source, ObjectStore) or status is None or status.size > _SINGLE_COPY:
            return super().copy_from(source, source_path, path)
        if self._bucket is None:
            self._bucket = self._make(None, whole_bucket=True)
        client = self._bucket
        keys = [f"{store._prefix}/{key}".removeprefix("/") for store, key in ((source, source_path), (self, path))]
        self._call(source_path, lambda: obstore.copy(client, *keys), "Copying")
        copied = self.head(path)
        if copied is None or copied.size != status.size:  # a store that does not know of copies makes an empty object
            return super().copy_from(source, source_path, path)
        return status.size

    # -- deleting -------------------------------------------------------------------------------------------------------------

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects; missing ones are ignored."""
        client = self._client()
        wanted = list(paths)
        batches = range(0, len(wanted), _DELETE_BATCH)
        for start in tracked(batches, f"Deleting from {self.root}", len(wanted), count=_DELETE_BATCH):
            batch = wanted[start : start + _DELETE_BATCH]
            try:
                self._call(batch[0], lambda batch=batch: obstore.delete(client, batch), "Deleting")  # type: ignore[misc]
            except FileNotFoundError:
                for path in batch:
                    try:
                        self._call(path, lambda path=path: obstore.delete(client, path), "Deleting")  # type: ignore[misc]
                    except FileNotFoundError:
                        continue

    def delete_tree(self, directory: str) -> int:
        """Delete all objects below a directory."""
        if not directory.strip("/"):
            raise self.error(DeltaIllegalArgumentException, f"Refusing to delete the whole table directory of {self.root}.")
        paths = [status.path for status in self.list_recursive(directory)]
        self.delete(paths)
        return len(paths)


def _unless_hidden(read: Callable[[], T]) -> T | DeltaIllegalStateException:
    """Return what is read, or the error if the name of an object is one that the client cannot handle."""
    try:
        return read()
    except DeltaIllegalStateException as error:
        if not isinstance(error.__cause__, errors.InvalidPathError):
            raise
        return error


def _is_marker(empty: FileStatus, listed: str) -> bool:
    """Tell whether an empty object marks the listed directory, or another one, as written by older Hadoop versions."""
    return empty.path == listed or empty.name.endswith("_$folder$")


def _boolean(value: Any) -> bool:
    return value if isinstance(value, bool) else str(value).strip().lower() in ("true", "1", "yes")


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]
