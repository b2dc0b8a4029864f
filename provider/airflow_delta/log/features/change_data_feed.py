"""What the change data feed forbids in a table's metadata (Delta's ``performCdcMetadataCheck`` and its sister)."""

from __future__ import annotations

from airflow_delta.exceptions import DeltaIllegalStateException
from airflow_delta.log.actions.actions import Metadata
from airflow_delta.log.features.properties import TableProperties
from airflow_delta.log.schema.types import parse_schema

CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = RESERVED = ("_change_type", "_commit_version", "_commit_timestamp")


def is_enabled(metadata: Metadata) -> bool:
    """Return whether changes are recorded for readers of the change data feed."""
    return TableProperties(metadata.configuration).enable_change_data_feed


def check_reserved_columns(new: Metadata, old: Metadata | None) -> None:
    """Check that no top-level column has a name that the feed uses itself (Delta's ``performCdcMetadataCheck``).

    :param old: ``None`` for a new table.
    :raises DeltaIllegalStateException: one has: DELTA_TABLE_ALREADY_CONTAINS_CDC_COLUMNS where the feed is being switched on,
        RESERVED_CDC_COLUMNS_ON_WRITE where it was on before.
    """
    if not is_enabled(new):
        return
    used = ", ".join(f.name for f in parse_schema(new.schema_string).fields if f.name.lower() in RESERVED)
    if not used:
        return
    if old is not None and is_enabled(old):
        raise DeltaIllegalStateException(
            f"The columns {used} cannot be written while the change data feed is on, which uses these names itself "
            "(RESERVED_CDC_COLUMNS_ON_WRITE). Rename them, or switch delta.enableChangeDataFeed off."
        )
    raise DeltaIllegalStateException(
        f"The change data feed cannot be switched on: the table has the columns {used}, names that the feed uses itself "
        "(DELTA_TABLE_ALREADY_CONTAINS_CDC_COLUMNS). Rename them first."
    )


def check_column_mapping(new: Metadata, old: Metadata | None, *, has_file_actions: bool, operation: str) -> None:
    """Check that a commit does not both change files and switch column mapping on, drop or rename columns, with the feed on.

    Readers of the feed could not tell which schema the changes have (Delta's ``performCdcColumnMappingCheck``).

    :param old: ``None`` for a new table, which counts as one without column mapping, as in Delta.
    :raises DeltaIllegalStateException: it does (Delta: DELTA_BLOCK_COLUMN_MAPPING_AND_CDC_OPERATION).
    """
    from airflow_delta.log.features import column_mapping

    if not has_file_actions or not is_enabled(new) or column_mapping.mode(new.configuration) == "none":
        return
    switched_on = old is None or column_mapping.mode(old.configuration) == "none"
    if switched_on or (old is not None and column_mapping.drops_or_renames(new, old)):
        raise DeltaIllegalStateException(
            f"{operation} may not change files in the commit that switches column mapping on, drops or renames columns, while "
            "the change data feed is on (DELTA_BLOCK_COLUMN_MAPPING_AND_CDC_OPERATION). Change the schema in a commit of its "
            "own, or switch delta.enableChangeDataFeed off."
        )
