"""Airflow's own database, auth manager and session tokens around the pages; the storage is a directory."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

_home = tempfile.mkdtemp(prefix="airflow-delta-ui-")
atexit.register(shutil.rmtree, _home, ignore_errors=True)

if "airflow" not in sys.modules:  # else another folder's tests have configured it; their database does as well
    os.environ.update(
        AIRFLOW_HOME=_home,
        AIRFLOW__CORE__LOAD_EXAMPLES="False",
        AIRFLOW__CORE__UNIT_TEST_MODE="False",
        AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{_home}/airflow.db",
        AIRFLOW__LOGGING__LOGGING_LEVEL="WARNING",
    )


@pytest.fixture(scope="session")
def airflow_app() -> Iterator[Any]:
    """What the API server does with the plugin: the app mounted, the auth manager initialised, tokens refreshed."""
    environment = {
        "AIRFLOW__CORE__AUTH_MANAGER": "ui.auth_manager.ScopedAuthManager",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,op:op,viewer:viewer",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": f"{_home}/passwords.json",
        "AIRFLOW__API_AUTH__JWT_SECRET": "a secret of the tests, long enough for HMAC-SHA512, which wants sixty-four bytes",
        # As airflow.api_fastapi.main sets it: connections come from the database.
        "_AIRFLOW_PROCESS_CONTEXT": "server",
    }
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    from airflow.api_fastapi.app import init_auth_manager, purge_cached_app
    from airflow.api_fastapi.auth.middlewares.refresh_token import JWTRefreshMiddleware
    from airflow.utils.db import initdb
    from fastapi import FastAPI

    from airflow_delta.links.pages import URL_PREFIX
    from airflow_delta.ui.pages import create_app
    from airflow_delta.ui.reader import schedule

    schedule.FRESH_FOR = schedule.LISTED_FOR = 0.0  # a test reads again what it has changed
    schedule.READ_TIMEOUT = 180.0  # readers of a busy machine
    initdb()
    root = FastAPI()
    root.mount(URL_PREFIX, create_app())
    init_auth_manager(root)
    root.add_middleware(JWTRefreshMiddleware)
    yield root
    purge_cached_app()
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The directory of the tables that the Dags of ``ui.runs`` write."""
    path = str(tmp_path_factory.mktemp("lake"))
    before = os.environ.get("UI_TABLES")
    os.environ["UI_TABLES"] = path
    yield path
    if before is None:
        del os.environ["UI_TABLES"]
    else:
        os.environ["UI_TABLES"] = before


@pytest.fixture
def client(airflow_app: Any) -> Callable[..., Any]:
    """Return a browser of a user with a role; ``None``: one that nobody has signed in on."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from starlette.testclient import TestClient

    def open_browser(role: str | None = "viewer") -> TestClient:
        browser = TestClient(airflow_app, follow_redirects=False, raise_server_exceptions=False)
        if role is not None:
            user = SimpleAuthManagerUser(username=role, role=role)
            browser.cookies.set("_token", get_auth_manager().generate_jwt(user))
        return browser

    return open_browser


@pytest.fixture
def airflow(airflow_app: Any) -> Iterator[Airflow]:
    """What Airflow knows, empty at first."""
    state = Airflow()
    state.ask_again()
    yield state
    state.clear()
    state.ask_again()


class Airflow:
    """Assets, events, runs and connections in Airflow's database, which other tests may use as well."""

    def __init__(self) -> None:
        self.assets: list[int] = []
        self.connections: list[str] = []

    def ask_again(self) -> None:
        """Have the pages look up tables and connections again now."""
        from airflow_delta.ui import known

        known._kept = None

    def asset(self, table: str, *, name: str | None = None, uri: str | None = None) -> int:
        from airflow.models.asset import AssetModel
        from airflow.utils.session import create_session

        from airflow_delta.assets.delta import delta_asset_uri

        uri = uri or delta_asset_uri(table)
        with create_session() as session:
            asset = AssetModel(name=name or uri, uri=uri, group="asset", extra={})
            session.add(asset)
            session.flush()
            self.assets.append(asset.id)
            return int(asset.id)

    def event(
        self, asset_id: int, table: str, version: int, *, dag_id: str = "load", run_id: str = "manual__1", **extra: Any
    ) -> None:
        """Record the event of a commit, as a commit task does."""
        from airflow.models.asset import AssetEvent
        from airflow.utils.session import create_session

        told = {
            "table": table,
            "version": version,
            "read_version": version - 1,
            "transaction_id": f"t-{version}",
            "operation": "WRITE",
            "timestamp": 1_700_000_000_000 + version,
            "num_records": 10 * version,
            "num_bytes": 1000 * version,
            "attempts": 1,
            "versions_checked": 0,
            "committed_before": False,
        }
        with create_session() as session:
            session.add(
                AssetEvent(
                    asset_id=asset_id,
                    extra={**told, **extra},
                    source_dag_id=dag_id,
                    source_run_id=run_id,
                    source_task_id="commit",
                    source_map_index=-1,
                )
            )

    def connection(self, conn_id: str, base_path: str, **more: Any) -> None:
        from airflow.models.connection import Connection
        from airflow.utils.session import create_session

        self.connections.append(conn_id)
        with create_session() as session:
            session.add(Connection(conn_id=conn_id, conn_type="delta", host=base_path, **more))

    def clear(self) -> None:
        from airflow.models.asset import AssetEvent, AssetModel
        from airflow.models.connection import Connection
        from airflow.utils.session import create_session
        from sqlalchemy import delete

        with create_session() as session:
            session.execute(delete(AssetEvent).where(AssetEvent.asset_id.in_(self.assets)))
            session.execute(delete(AssetModel).where(AssetModel.id.in_(self.assets)))
            session.execute(delete(Connection).where(Connection.conn_id.in_(self.connections)))
