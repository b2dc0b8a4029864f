"""The connection of type ``delta_unity_catalog``: tables by their names in Unity Catalog."""

from __future__ import annotations

from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.hooks.fields import CATALOG_TYPE


class UnityCatalogHook(DeltaHook):
    """Reach tables by their names in Unity Catalog, which decides on the versions of catalog-managed ones.

    The connection's host is the URL of the server, its password the token. Credentials of the storage come from the catalog,
    unless there are some in the ``storage_options`` in its extra. :class:`~airflow_delta.hooks.delta.DeltaHook` and all operators
    take such a connection, too.

    :param delta_conn_id: id of a connection of type ``delta_unity_catalog``.
    """

    default_conn_name = "delta_unity_catalog_default"
    conn_type = CATALOG_TYPE
    hook_name = "Delta Lake in Unity Catalog"

    def __init__(self, delta_conn_id: str = default_conn_name) -> None:
        super().__init__(delta_conn_id)
