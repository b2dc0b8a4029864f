"""The user of a request to Airflow's API server, and what the auth manager is asked about.

Waits for: public dependencies for the apps of plugins. Without them there are no pages.
"""

from __future__ import annotations

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod
from airflow.api_fastapi.auth.managers.models.resource_details import (
    AssetDetails,
    ConnectionDetails,
    DagAccessEntity,
    DagDetails,
)
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_asset

__all__ = [
    "AssetDetails",
    "ConnectionDetails",
    "DagAccessEntity",
    "DagDetails",
    "GetUserDep",
    "ResourceMethod",
    "get_auth_manager",
    "requires_access_asset",
]
