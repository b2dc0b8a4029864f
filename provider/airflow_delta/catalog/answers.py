"""What Unity Catalog's API for Delta tables answers, as far as it is used here (its ``delta.yaml``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from airflow_delta.lazy_patterns import lazy_pattern

STAGED_COMMITS = "_delta_log/_staged_commits"
_FILE_NAME = lazy_pattern(r"(\d{20})\.[0-9A-Za-z_-]+\.json")


class CatalogCommit(msgspec.Struct, rename="kebab", frozen=True):
    """A commit that the catalog has accepted.

    :param timestamp: its in-commit timestamp, in milliseconds since the epoch, as is ``file_modification_timestamp``.
    :param file_name: of its file in ``_delta_log/_staged_commits``.
    """

    version: int
    timestamp: int
    file_name: str
    file_size: int
    file_modification_timestamp: int

    def __post_init__(self) -> None:
        """Refuse a name that is not that of a staged commit of this version: it becomes part of a path."""
        match = _FILE_NAME.fullmatch(self.file_name)
        if match is None or int(match[1]) != self.version:
            raise ValueError(f"{self.file_name!r} is not the name of a staged commit of version {self.version}")

    @property
    def path(self) -> str:
        """Its path, relative to the table."""
        return f"{STAGED_COMMITS}/{self.file_name}"


class TableMetadata(msgspec.Struct, rename="kebab", frozen=True):
    """What the catalog knows of a table besides its versions.

    :param columns: the schema; types in the server's own spelling.
    """

    etag: str
    table_type: str
    table_uuid: str
    location: str
    properties: Mapping[str, str] = {}
    columns: Any = None


class LoadedTable(msgspec.Struct, rename="kebab", frozen=True):
    """A table as the catalog knows it.

    :param commits: those that the catalog does not know to be published, in any order.
    :param latest_table_version: ``None`` if the catalog does not decide on the table's versions.
    """

    metadata: TableMetadata
    commits: tuple[CatalogCommit, ...] | None = None
    latest_table_version: int | None = None

    @property
    def is_managed(self) -> bool:
        """Whether the catalog decides on the table's versions."""
        return self.metadata.properties.get("delta.feature.catalogManaged") in ("supported", "enabled")


class Credential(msgspec.Struct, rename="kebab", frozen=True):
    """Temporary credentials for a part of the storage.

    :param expiration_time_ms: milliseconds since the epoch; ``None`` if they do not expire.
    """

    prefix: str
    operation: str
    config: Mapping[str, str] = {}
    expiration_time_ms: int | None = None

    def __repr__(self) -> str:
        """Return everything but the values."""
        return f"Credential({self.prefix!r}, {self.operation}, {', '.join(self.config)}, {self.expiration_time_ms})"


class Credentials(msgspec.Struct, rename="kebab", frozen=True):
    """An answer with credentials."""

    storage_credentials: tuple[Credential, ...] = ()


class StagedProtocol(msgspec.Struct, rename="kebab", frozen=True):
    """What a new table's protocol must have."""

    min_reader_version: int = 3
    min_writer_version: int = 7
    reader_features: tuple[str, ...] = ()
    writer_features: tuple[str, ...] = ()


class StagingTable(msgspec.Struct, rename="kebab", frozen=True):
    """A reserved table: its first commit is to be written at ``location``.

    :param required_properties: without a value: the writer's choice.
    """

    table_id: str
    location: str
    required_protocol: StagedProtocol
    required_properties: Mapping[str, str | None] = {}
    storage_credentials: tuple[Credential, ...] = ()


class CatalogConfig(msgspec.Struct, rename="kebab", frozen=True):
    """What the server offers."""

    protocol_version: str
    endpoints: tuple[str, ...] = ()


class Failure(msgspec.Struct, frozen=True):
    """Why a request failed."""

    message: str = ""
    type: str | None = None


class FailureAnswer(msgspec.Struct, frozen=True):
    """The body of an answer to a request that failed."""

    error: Failure
