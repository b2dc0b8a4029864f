"""An auth manager that knows single Dags and assets, as role-based ones do; Airflow's simple one knows roles only."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

HIDDEN = "hidden"
"""Dags and assets whose id or name begins with this are for administrators only."""


class ScopedAuthManager(SimpleAuthManager):
    """Refuse Dags that begin with :data:`HIDDEN`, the assets in :attr:`hidden_assets`, and what of Dags is in
    :attr:`hidden_entities`, to all but administrators.
    """

    hidden_assets: set[str] = set()
    hidden_connections: set[str] = set()
    hidden_entities: set[str] = set()

    def is_authorized_connection(self, *, method: Any, user: Any, details: Any = None) -> bool:
        """Let everybody read connections, but for hidden ones."""
        conn_id = details.conn_id if details is not None and details.conn_id else ""
        hidden = conn_id.startswith(HIDDEN) or conn_id in self.hidden_connections
        if method == "GET" and not hidden and user is not None and user.role:
            return True
        return super().is_authorized_connection(method=method, user=user, details=details)

    def is_authorized_dag(self, *, user: Any, details: Any = None, **kwargs: Any) -> bool:
        if details is not None and details.id and details.id.startswith(HIDDEN) and not self._is_admin(user):
            return False
        if getattr(kwargs.get("access_entity"), "name", None) in self.hidden_entities and not self._is_admin(user):
            return False
        return super().is_authorized_dag(user=user, details=details, **kwargs)

    def is_authorized_asset(self, *, user: Any, details: Any = None, **kwargs: Any) -> bool:
        if details is not None and details.id in self.hidden_assets and not self._is_admin(user):
            return False
        return super().is_authorized_asset(user=user, details=details, **kwargs)
