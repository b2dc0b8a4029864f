"""The user of a request, and what Airflow lets them see.

The auth manager makes every decision, for the same cookie or token that Airflow's own API takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends

from airflow_delta.airflow_internals import database
from airflow_delta.airflow_internals.web import (
    AssetDetails,
    ConnectionDetails,
    DagAccessEntity,
    DagDetails,
    GetUserDep,
    get_auth_manager,
    requires_access_asset,
)
from airflow_delta.contract.tags import DAG_ID_TAG, TAG_PREFIX
from airflow_delta.hooks.delta import DeltaHook

if TYPE_CHECKING:
    from airflow_delta.airflow_internals.web import ResourceMethod

may_see_assets = Depends(requires_access_asset("GET"))
"""Every page and endpoint requires permission to read assets."""


class Viewer:
    """The user of one request; each question is put to the auth manager once.

    :param user: as Airflow's own dependency returns it.
    """

    def __init__(self, user: Any) -> None:
        self._user = user
        self._dags: dict[tuple[str, DagAccessEntity], bool] = {}
        self._connections: dict[tuple[ResourceMethod, str], bool] = {}

    @property
    def name(self) -> str:
        """Return the user's name."""
        return str(self._user.get_name())

    def may_read_asset(self, asset_id: int) -> bool:
        """Return whether the user may read an asset."""
        details = AssetDetails(id=str(asset_id))
        return bool(get_auth_manager().is_authorized_asset(method="GET", details=details, user=self._user))

    def may_read_connection(self, conn_id: str) -> bool:
        """Return whether the user may read a connection."""
        return self._may("GET", conn_id)

    def may_read_rows(self, conn_id: str | None) -> bool:
        """Return whether the user may read rows of a table: whether they may edit the connection that reaches it.

        Airflow has no right to use a connection. Who may edit one decides whom its credentials are sent to, and so gets at the
        rows without these pages.

        :param conn_id: ``None``: reached with the API server's credentials, as ``delta_default`` without any is.
        """
        return self._may("PUT", conn_id or DeltaHook.default_conn_name)

    def _may(self, method: ResourceMethod, conn_id: str) -> bool:
        if (method, conn_id) not in self._connections:
            details = ConnectionDetails(conn_id=conn_id, team_name=database.Connection.get_team_name(conn_id))
            allowed = get_auth_manager().is_authorized_connection(method=method, details=details, user=self._user)
            self._connections[method, conn_id] = bool(allowed)
        return self._connections[method, conn_id]

    def may_read_run(self, dag_id: str, entity: DagAccessEntity = DagAccessEntity.RUN) -> bool:
        """Return whether the user may read the runs (or another entity) of a Dag, even if Airflow no longer has it."""
        if (dag_id, entity) not in self._dags:
            details = DagDetails(id=dag_id, team_name=database.DagModel.get_team_name(dag_id))
            self._dags[dag_id, entity] = bool(
                get_auth_manager().is_authorized_dag(method="GET", access_entity=entity, details=details, user=self._user)
            )
        return self._dags[dag_id, entity]

    def may_read_task(self, dag_id: str) -> bool:
        """Return whether the user may read the task instances of a Dag."""
        return self.may_read_run(dag_id, DagAccessEntity.TASK_INSTANCE)

    def may_read_xcom(self, dag_id: str) -> bool:
        """Return whether the user may read the XComs of a Dag."""
        return self.may_read_run(dag_id, DagAccessEntity.XCOM)

    def may_read_app_id(self, app_id: str) -> bool:
        """Return whether an application id may be shown: by default it starts with the id of the Dag that committed."""
        first, separator, _ = app_id.partition("/")
        return not separator or self.may_read_run(first)

    def without_hidden_dags(self, commit: Mapping[str, Any]) -> dict[str, Any]:
        """Return a commit's summary without the names of Dags that the user may not see."""
        tags: dict[str, str] = dict(commit["tags"])
        dag_id = tags.get(DAG_ID_TAG)
        hidden = dag_id is not None and not self.may_read_run(dag_id)
        if hidden:
            tags = {name: value for name, value in tags.items() if not name.startswith(TAG_PREFIX)}
        app_transactions = {
            app_id: version
            for app_id, version in commit["app_transactions"].items()
            if not hidden and self.may_read_app_id(app_id)
        }
        return {**commit, "tags": tags, "app_transactions": app_transactions, "run_hidden": hidden}


async def viewer(user: GetUserDep) -> Viewer:
    """Return the viewer of a request (dependency)."""
    return Viewer(user)


ViewerDep = Annotated[Viewer, Depends(viewer)]
