"""Names of tables by OpenLineage's rules, as its Spark integration names the location of a table."""

from __future__ import annotations

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.staging.location import Location


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
