"""Where a store's table is: its location, and the same place however it is spelled."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_delta.contract.location import FILE, Location

if TYPE_CHECKING:
    from airflow_delta.log.storage.base import LogStore
from airflow_delta.log.storage.options import canonical_options


def location_of(store: LogStore) -> Location:
    """Return the location of a table, with the account that the options of its store name."""
    return Location.parse(store.root, canonical_options(store.options, store.root))


def store_place(store: LogStore, directory: str = "") -> Location:
    """Return where a store, or a directory in it, is, however it is spelled: two are one place if their keys are equal.

    :param directory: not URL-encoded.
    """
    return spelled_place(store, directory).resolved(canonical_options(store.options, store.root))


def spelled_place(store: LogStore, directory: str = "") -> Location:
    """Return where a store, or a directory in it, is, without looking at links.

    :param directory: not URL-encoded.
    """
    root = Location(FILE, "", store.local_root.rstrip("/")) if store.local_root is not None else location_of(store)
    return replace(root, path=f"{root.path}/{directory}") if directory else root
