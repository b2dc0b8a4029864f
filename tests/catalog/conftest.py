"""Unity Catalog as a process on loopback. If it is not installed, every test here fails, and none is skipped."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_delta.testing.lake import run_dag
from catalog.unity import CatalogTable, UnityCatalogServer, create
from stores.install import UC_SERVER
from stores.proxy import FaultProxy

__all__ = ["run_dag"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.catalog)


@pytest.fixture(scope="session")
def unity(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UnityCatalogServer]:
    if not UC_SERVER.exists():
        pytest.fail("Not installed: Unity Catalog. Run python tests/stores/install.py unity-catalog", pytrace=False)
    with UnityCatalogServer(tmp_path_factory.mktemp("unity")) as server:
        yield server


@pytest.fixture(scope="session")
def proxied(unity: UnityCatalogServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultProxy]:
    """A proxy in front of the catalog, which fails on request."""
    with FaultProxy(unity.url, tmp_path_factory.mktemp("proxy")) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def schema(unity: UnityCatalogServer) -> str:
    return unity.make_schema()


@pytest.fixture
def name(schema: str) -> str:
    """The name of a table that does not exist."""
    return f"{schema}.t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def table(unity: UnityCatalogServer, name: str) -> CatalogTable:
    """A new table without rows."""
    create(unity.url, name)
    return CatalogTable(unity, name, unity.url)


@pytest.fixture
def proxied_table(table: CatalogTable, proxied: FaultProxy) -> Iterator[CatalogTable]:
    """The same table, to which requests go through the proxy."""
    proxied.set()
    yield CatalogTable(table.server, table.name, proxied.url)
    proxied.set()
