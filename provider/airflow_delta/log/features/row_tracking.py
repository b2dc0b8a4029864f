"""The high-water mark of assigned row ids, which a metadata domain holds (Delta protocol, "Row Tracking")."""

from __future__ import annotations

import msgspec

from airflow_delta.contract.delta_names import ROW_TRACKING_DOMAIN
from airflow_delta.exceptions import DeltaLogCorruptedException
from airflow_delta.log.actions.actions import DomainMetadata


class HighWaterMark(msgspec.Struct, rename="camel"):
    row_id_high_water_mark: int


def high_water_mark(domain: DomainMetadata, *, table: str, version: int) -> int:
    """Return the highest row id in use (Delta's RowId.extractHighWatermark).

    :raises DeltaLogCorruptedException: if the domain is malformed.
    """
    try:
        return msgspec.json.decode(domain.configuration, type=HighWaterMark).row_id_high_water_mark
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DeltaLogCorruptedException(
            f"The domain {ROW_TRACKING_DOMAIN} of version {version} of table {table} has no row id high water mark ({error}). "
            "Do not add rows until its writer has repaired it, or row ids would be assigned twice.",
            table=table,
            version=version,
        ) from error
