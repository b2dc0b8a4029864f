"""What the change data feed forbids in metadata (Delta's ``performCdcMetadataCheck``, ``performCdcColumnMappingCheck``)."""

from __future__ import annotations

from airflow_delta.contract.delta_names import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
)
from airflow_delta.exceptions import DeltaIllegalStateException
from airflow_delta.log.actions.actions import Metadata
from airflow_delta.log.features import column_mapping
from airflow_delta.log.features.properties import TableProperties
from airflow_delta.log.schema.types import (
    parse_schema,
)

RESERVED = (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP)


def is_feed_enabled(metadata: Metadata) -> bool:
    """Return whether the change data feed is on."""
    return TableProperties(metadata.configuration).enable_change_data_feed


def check_reserved_columns(new: Metadata, old: Metadata | None) -> None:
    """Check that no top-level column has a name reserved for the feed (Delta's ``performCdcMetadataCheck``).

    :param old: ``None`` for a new table.
    :raises DeltaIllegalStateException: if one has (Delta: DELTA_TABLE_ALREADY_CONTAINS_CDC_COLUMNS if the feed is being enabled,
        RESERVED_CDC_COLUMNS_ON_WRITE if it was enabled before).
    """
    if not is_feed_enabled(new):
        return
    used = ", ".join(f.name for f in parse_schema(new.schema_string).fields if f.name.lower() in RESERVED)
    if not used:
        return
    if old is not None and is_feed_enabled(old):
        raise DeltaIllegalStateException(
            f"The columns {used} cannot be written while the change data feed is enabled, which reserves these names "
            "(RESERVED_CDC_COLUMNS_ON_WRITE). Rename them, or disable delta.enableChangeDataFeed."
        )
    raise DeltaIllegalStateException(
        f"The change data feed cannot be enabled: the table has the columns {used}, whose names the feed reserves "
        "(DELTA_TABLE_ALREADY_CONTAINS_CDC_COLUMNS). Rename them first."
    )


def check_column_mapping(new: Metadata, old: Metadata | None, *, has_file_actions: bool, operation: str) -> None:
    """Check that a commit with the feed on does not change files and also enable column mapping, drop or rename columns.

    Readers of the feed could not tell which schema the changes have (Delta's ``performCdcColumnMappingCheck``).

    :param old: ``None`` for a new table, which counts as having no column mapping, as in Delta.
    :raises DeltaIllegalStateException: if it does (Delta: DELTA_BLOCK_COLUMN_MAPPING_AND_CDC_OPERATION).
    """
    if not has_file_actions or not is_feed_enabled(new) or column_mapping.mode(new.configuration) == "none":
        return
    switched_on = old is None or column_mapping.mode(old.configuration) == "none"
    if switched_on or (old is not None and column_mapping.drops_or_renames(new, old)):
        raise DeltaIllegalStateException(
            f"{operation} cannot change files in a commit that enables column mapping, drops or renames columns, while the "
            "change data feed is enabled (DELTA_BLOCK_COLUMN_MAPPING_AND_CDC_OPERATION). Change the schema in a separate "
            "commit, or disable delta.enableChangeDataFeed."
        )
