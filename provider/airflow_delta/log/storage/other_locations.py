"""Which other buckets and accounts the credentials of a connection may be used for."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_delta.contract.location import Location
from airflow_delta.exceptions import PathOutsideTableException
from airflow_delta.log.storage.options import OTHER_LOCATIONS, canonical_options
from airflow_delta.masking import masked


def check_other_location(root: str, uri: str, options: Mapping[str, str], connection: str | None = None) -> None:
    """Refuse a location that the log of a table names outside of the table's own store, account and bucket.

    :raises PathOutsideTableException: unless it is in the same kind of store, and below one of the options' ``other_locations``.
    """
    own, other = (Location.parse(place, canonical_options(options, place)) for place in (root, uri))
    if own.root == other.root:
        return
    where = f"The log of table {root} names files in {masked(uri)}, in another store, account or bucket than the table."
    if own.store != other.store:
        raise PathOutsideTableException(
            f"{where} A connection reaches one kind of store. Copy the files (deep clone).", table=root
        )
    allowed = [place.strip() for place in options.get(OTHER_LOCATIONS, "").split(",") if place.strip()]
    if ".." not in other.path.split("/") and any(Location.parse(place).holds(other) for place in allowed):
        return
    whose = f"the extra of the connection {connection!r}" if connection else "its storage options"
    raise PathOutsideTableException(
        f"{where} They are not opened with the table's credentials. If they belong to it, as those of a shallow clone do, add "
        f'their location to other_locations in {whose}: {{"other_locations": "{other.root}/..."}}.',
        table=root,
    )
