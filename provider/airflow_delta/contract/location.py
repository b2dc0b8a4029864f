"""The location of a table: one normal form that identity, access, locks, assets, lineage and Spark read.

Every spelling of a location gives the same :attr:`Location.key`; links of a local path and endpoints are seen through by
:meth:`Location.resolved`. A scheme is known here or nowhere. The module imports only the standard library, since it is sent to
clusters.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.masking import masked, secret_of_location

S3, AZURE, GCS, HDFS, FILE = "S3", "Azure", "GCS", "HDFS", "file"
"""Kinds of stores."""


class Spellings(NamedTuple):
    """How locations of one kind of store are spelled.

    :param schemes: those that mean it.
    :param uri: scheme in handles, logs and OpenLineage, and for object_store.
    :param hadoop: scheme that Hadoop, and so Spark, opens.
    :param asset: authority of its assets (``delta://s3/...``).
    """

    schemes: tuple[str, ...]
    uri: str
    hadoop: str
    asset: str


STORES: Mapping[str, Spellings] = {
    S3: Spellings(("s3", "s3a", "s3n"), "s3", "s3a", "s3"),
    GCS: Spellings(("gs", "gcs"), "gs", "gs", "gs"),
    AZURE: Spellings(("az", "azure", "abfs", "abfss", "wasb", "wasbs"), "abfss", "abfss", "abfs"),
    HDFS: Spellings(("hdfs",), "hdfs", "hdfs", "hdfs"),
    FILE: Spellings(("file",), "file", "file", "file"),
}
"""The one table of stores. A container of Azure without its account is ``az``, as a URI and as an asset."""

SCHEMES: Mapping[str, str] = {scheme: store for store, spellings in STORES.items() for scheme in spellings.schemes}
"""The kind of store behind each scheme; a URL of an Azure account (``https://``) is one of Azure's."""

OBJECT_STORES = (S3, AZURE, GCS)
OBJECT_SCHEMES = "|".join(sorted((scheme for scheme, store in SCHEMES.items() if store in OBJECT_STORES), key=len, reverse=True))
"""The schemes of object stores, for a regular expression."""

PAGES: Mapping[str, str] = {S3: "docs/how-to/s3.md", AZURE: "docs/how-to/azure.md", GCS: "docs/how-to/gcs.md"}
"""The page that says how workers and Spark reach a store."""

_NO_ACCOUNT = "az"
_SCHEME = lazy_pattern(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_LOCAL = lazy_pattern(r"file:(?://(?:localhost)?)?(?=/)", re.IGNORECASE)

# Names by the rules of each cloud, without their lower limits of length (emulators have none).
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html (the rules of old buckets, too)
# https://cloud.google.com/storage/docs/buckets#naming
# https://learn.microsoft.com/rest/api/storageservices/naming-and-referencing-containers--blobs--and-metadata
_BUCKET = lazy_pattern(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,253}[A-Za-z0-9])?")
_CONTAINER = lazy_pattern(r"\$(?:root|web|logs)|[a-z0-9](?:-?[a-z0-9]){0,62}")
_WORKSPACE = lazy_pattern(r"[A-Za-z0-9](?:[A-Za-z0-9._ -]{0,254}[A-Za-z0-9])?")
_ACCOUNT = lazy_pattern(r"[a-z0-9]{1,24}(?:-secondary)?")
_AUTHORITY = lazy_pattern(r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,253})?|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?")
_AZURE_SUFFIXES = (
    "core.windows.net",
    "core.chinacloudapi.cn",
    "core.usgovcloudapi.net",
    "core.cloudapi.de",
    "fabric.microsoft.com",
)
PUBLIC_AZURE = _AZURE_SUFFIXES[0]
_DEFAULT_PORT = ":8020"
_FABRIC = "fabric.microsoft.com"
_AZURE_HOST = lazy_pattern(rf"([a-z0-9-]+)\.(?:dfs|blob)\.({'|'.join(map(re.escape, _AZURE_SUFFIXES))})")


@dataclass(frozen=True, slots=True)
class Location:
    """Where a table is.

    :param store: :data:`S3`, :data:`AZURE`, :data:`GCS`, :data:`HDFS` or :data:`FILE`.
    :param bucket: bucket, container, or name node; empty for local paths.
    :param path: begins with a slash unless it is empty, and does not end with one; not URL-encoded.
    :param host: host of an Azure account (``account.dfs.core.windows.net``); ``None`` if the location does not name it.
    """

    store: str
    bucket: str
    path: str
    host: str | None = None

    @classmethod
    def parse(cls, uri: str, options: Mapping[str, str] | None = None) -> Location:
        """Return the location that a URI or an absolute path names.

        :param options: storage options under their canonical names. A container of Azure without its account gets it from them,
            in the cloud of their endpoint, unless that is a server of one's own.
        """
        found = _parsed(uri)
        given = options or {}
        account, endpoint = (given.get("azure_storage_account_name") or "").lower(), given.get("azure_storage_endpoint")
        if found.store != AZURE or found.host is not None or not account:
            return found
        if endpoint:
            host = azure_host(endpoint)
            return replace(found, host=host) if host is not None and host.partition(".")[0] == account else found
        _check(_ACCOUNT, account, "storage account", uri)
        return replace(found, host=f"{account}.dfs.{PUBLIC_AZURE}")

    def resolved(self, options: Mapping[str, str] | None = None) -> Location:
        """Return the place itself: equal, as are their keys, for two locations that lead to the same place.

        Links of a local path are followed, as this machine has them now. A container of Azure is that of the endpoint, if the
        options name one: the store opens it, whatever account the location names.

        :param options: storage options under their canonical names.
        """
        if self.store == FILE:
            return replace(self, path=_local(os.path.realpath(self.path or "/")))
        if self.store == HDFS:
            return replace(self, path=_plain(self.path))
        endpoint = (options or {}).get("azure_storage_endpoint")
        if self.store != AZURE or not endpoint:
            return self
        found = _AZURE_HOST.fullmatch((urlsplit(endpoint).hostname or "").lower())
        return replace(self, host=f"{found[1]}.dfs.{found[2]}" if found else None)

    @property
    def uri(self) -> str:
        """The spelling that a handle, the log of a transaction and the pages have; a path if it is local."""
        if self.store == FILE:
            return self.path or "/"
        return f"{self.root}{self.path}"

    @property
    def key(self) -> str:
        """What is equal for two spellings of one location: for access and locks. Of one place: ``resolved().key``."""
        if self.store == FILE:
            return f"file://{self.path or '/'}"
        if self.store == HDFS:  # names of hosts have no case, and 8020 is Hadoop's default
            return f"hdfs://{self.bucket.lower().removesuffix(_DEFAULT_PORT)}{self.path}"
        return self.uri

    @property
    def root(self) -> str:
        """The store, account and bucket: what one set of credentials is for."""
        if self.store == FILE:
            return "file://"
        if self.store == AZURE:
            return f"{STORES[AZURE].uri}://{self.bucket}@{self.host}" if self.host else f"{_NO_ACCOUNT}://{self.bucket}"
        return f"{STORES[self.store].uri}://{self.bucket}"

    @property
    def spark(self) -> str:
        """The location as Hadoop, and so Spark, opens it.

        :raises DeltaIllegalArgumentException: if it is a container of Azure without its account, which Hadoop needs.
        """
        if self.store == FILE:
            return self.uri
        if self.store == AZURE and self.host is None:
            raise DeltaIllegalArgumentException(
                f"Spark needs the storage account of {self.uri}. Set the login of the connection to its name, or write "
                f"abfss://{self.bucket}@<account>.dfs.{PUBLIC_AZURE}{self.path}.",
                table=self.uri,
            )
        return f"{STORES[self.store].hadoop}://{self.root.partition('://')[2]}{self.path}"

    @property
    def asset(self) -> str:
        """The authority of its asset, which is not its bucket: ``s3`` of ``delta://s3/bucket/path``."""
        return _NO_ACCOUNT if self.store == AZURE and self.host is None else STORES[self.store].asset

    @property
    def account(self) -> str | None:
        """The name of an Azure account."""
        return self.host.split(".")[0] if self.host else None

    @property
    def azure_endpoint(self) -> str | None:
        """The endpoint of an account outside of Azure's public cloud, which the account's name alone does not tell."""
        suffix = self.host.partition(".dfs.")[2] if self.host else ""
        return f"https://{self.account}.blob.{suffix}" if suffix and suffix != PUBLIC_AZURE else None

    @property
    def dataset(self) -> tuple[str, str]:
        """Namespace and name by OpenLineage's rules, as its Spark integration names a table."""
        if self.store == FILE:
            return "file", self.path or "/"
        return self.root, self.path.strip("/") or "/"

    def is_of_store(self, other: Location) -> bool:
        """Return whether two locations are in one bucket: a container without its account may be that of any account."""
        mine, theirs = replace(self, path=""), replace(other, path="")
        if None in (self.host, other.host):
            mine, theirs = replace(mine, host=None), replace(theirs, host=None)
        return mine.key == theirs.key

    def holds(self, other: Location) -> bool:
        """Return whether another location is this one or below it, or may be."""
        return self.is_of_store(other) and (other.path == self.path or other.path.startswith(f"{self.path}/"))

    def check_openable(self, uri: str) -> None:
        """Refuse a prefix on an object store with a part that is empty, ``.`` or ``..``, which its clients read differently.

        :raises DeltaIllegalArgumentException: if the path has one.
        """
        if self.store not in OBJECT_STORES:
            return
        odd = next((part for part in self.path.split("/")[1:] if part in ("", ".", "..")), None)
        if odd is not None:
            raise DeltaIllegalArgumentException(
                f"The location {masked(uri)} has {f'the part {odd!r}' if odd else 'an empty part (//)'}. On an object store that "
                "is another place than without it, and cannot be opened. Write it with single slashes and without dots.",
                table=masked(uri),
            )


def scheme_of(uri: str) -> str:
    """Return the scheme of a URI in lower case, :data:`FILE` for a path."""
    match = _SCHEME.match(uri)
    return match[1].lower() if match else FILE


def store_of(uri: str) -> str | None:
    """Return the kind of store that holds a URI or a path; ``None`` for an unknown scheme. Nothing else is checked."""
    scheme = scheme_of(uri)
    if scheme in ("http", "https"):
        return AZURE if _is_azure_url(uri) else None
    return SCHEMES.get(scheme)


def check_no_secret(uri: str) -> None:
    """Refuse a location with credentials: it appears in the log, in XCom, in assets and on pages.

    :raises DeltaIllegalArgumentException: if it has a user, a password, or a parameter such as ``?sig=``.
    """
    if (what := secret_of_location(uri)) is not None:
        raise DeltaIllegalArgumentException(
            f"The location {masked(uri)} contains credentials ({what}), but locations are stored and shown in clear text. Put "
            "the credentials into the connection (login and password, or storage_options).",
            table=masked(uri),
        )


@lru_cache(maxsize=1024)
def _parsed(uri: str) -> Location:
    check_no_secret(uri)
    if local := _LOCAL.match(uri):
        return Location(FILE, "", _local(unquote(uri[local.end() :])))
    match = _SCHEME.match(uri)
    if match is None:
        return Location(FILE, "", _local(uri))
    scheme, rest = match[1].lower(), uri[match.end() :]
    authority, slash, path = rest.partition("/")
    store = store_of(uri)
    if store is None or store == FILE:
        raise DeltaIllegalArgumentException(
            f"The scheme {scheme}:// of the location {uri} is not supported. Supported: local paths, "
            f"{', '.join(f'{known}://' for known in SCHEMES)}, and https:// URLs of Azure's accounts.",
            table=uri,
        )
    path = f"{slash}{path}".rstrip("/")
    if scheme in ("http", "https"):
        container, slash, path = unquote(path.lstrip("/")).partition("/")
        return _azure(container, authority, f"{slash}{path}", uri)
    if store == AZURE:
        container, at, host = authority.partition("@")
        return _azure(container, host if at else None, path, uri)
    if store == HDFS:
        _check(_AUTHORITY, authority, "name node", uri)
        return Location(HDFS, authority, _plain(path))
    _check(_BUCKET, authority, "bucket", uri)
    return Location(store, authority, path)


def _azure(container: str, host: str | None, path: str, uri: str) -> Location:
    host = host.lower() if host is not None else None
    if host is not None and "." in host:
        found = _AZURE_HOST.fullmatch(host)
        if found is None:
            raise DeltaIllegalArgumentException(
                f"The host {host!r} of the location {uri} is not that of an Azure account, such as account.dfs.{PUBLIC_AZURE}. "
                "Write az://container/path, and set azure_storage_account_name and azure_storage_endpoint in storage_options.",
                table=uri,
            )
        _check(_ACCOUNT, found[1], "storage account", uri)
        host = f"{found[1]}.dfs.{found[2]}"
    elif host is not None:
        _check(_ACCOUNT, host, "storage account", uri)
        host = f"{host}.dfs.{PUBLIC_AZURE}"
    fabric = host is not None and host.endswith(_FABRIC)
    _check(_WORKSPACE if fabric else _CONTAINER, container, "container", uri)
    return Location(AZURE, container, path, host)


def _check(rule: re.Pattern[str], name: str, what: str, uri: str) -> None:
    if not name:
        raise DeltaIllegalArgumentException(f"The location {uri} names no {what}.", table=uri)
    if not rule.fullmatch(name):
        raise DeltaIllegalArgumentException(
            f"{name!r} in the location {uri} is not a valid name of a {what}. It has letters and digits, and for some stores "
            "single dots, hyphens and underscores between them. Correct the location.",
            table=uri,
        )


def azure_host(url: str) -> str | None:
    """Return the host of an account in one of Azure's clouds (``account.dfs.core.windows.net``); ``None`` for another server.

    :param url: an endpoint, of the Blob API or of Data Lake Storage.
    """
    authority = url.partition("://")[2].partition("/")[0].lower()
    found = _AZURE_HOST.fullmatch(authority)
    return f"{found[1]}.dfs.{found[2]}" if found is not None else None


def _is_azure_url(uri: str) -> bool:
    return azure_host(uri) is not None


def _local(path: str) -> str:
    """Return a local path with single slashes; ``..`` stays, since it leads elsewhere behind a symbolic link."""
    absolute = path if path.startswith("/") else os.path.abspath(path)
    parts = "/".join(part for part in absolute.split("/") if part not in ("", "."))
    return f"/{parts}" if parts else ""


def _plain(path: str) -> str:
    """Return a path of HDFS as Hadoop's class ``Path`` has it: without dots and empty parts."""
    return f"/{posixpath.normpath(f'/{path}').lstrip('/')}".rstrip("/")


def dataset_name(uri: str) -> tuple[str, str]:
    """Return namespace and name of a table.

    :param uri: URI of the table, or an absolute path.
    """
    try:
        return Location.parse(uri).dataset
    except DeltaIllegalArgumentException:  # not a table of ours: an asset may name anything
        head, _, tail = uri.partition("://")
        authority, _, path = tail.partition("/")
        return f"{head.lower()}://{authority}", path.strip("/") or "/"
