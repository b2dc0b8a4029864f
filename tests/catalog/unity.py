"""Unity Catalog on loopback, the server of the crate ``olai-uc-server``, and tables in it with real rows."""

from __future__ import annotations

import base64
import json
import urllib.request
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_delta.catalog.client import UnityCatalogClient
from airflow_delta.catalog.open import open_in_catalog, stage_in_catalog
from airflow_delta.contract.catalog_names import TableName
from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.actions import Action, AddFile, Metadata
from airflow_delta.transaction import CommitPolicy, Operation
from stores.install import UC_SERVER
from stores.process import LOOPBACK, Service, answers, free_port

API = "/api/2.1/unity-catalog"
SCHEMA = (
    '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}},'
    '{"name":"name","type":"string","nullable":true,"metadata":{}}]}'
)
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class UnityCatalogServer(Service):
    """The server, with managed tables below ``lake`` and its own state in memory. It has the catalog ``main``."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.url = f"http://{LOOPBACK}:{self.port}"
        self.lake = directory / "lake"
        self.lake.mkdir(exist_ok=True)
        config = directory / "unity.yaml"
        key = base64.b64encode(b"k" * 32).decode()
        config.write_text(
            f"local_storage: {{allowed-roots: ['{directory}']}}\n"
            f"managed_storage_root: 'file://{self.lake}'\n"
            f"encryption: {{active: {{id: tests, key: '{key}'}}}}\n"
        )
        argv = [UC_SERVER, "serve", "--host", LOOPBACK, "--port", self.port, "--no-ui", "--config", config]
        super().__init__("unity-catalog", argv, directory, lambda: answers(f"{self.url}{API}/catalogs"))

    def start(self, timeout: float = 60.0) -> UnityCatalogServer:
        """Start the server and make the catalog."""
        super().start(timeout)
        self.post("/catalogs", {"name": "main"})
        return self

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send a request of the catalog's own API."""
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}{API}{path}", json.dumps(body).encode(), headers, method="POST")
        with _direct.open(request) as answer:
            return json.load(answer)

    def delete(self, path: str) -> None:
        """Delete something."""
        _direct.open(urllib.request.Request(f"{self.url}{API}{path}", method="DELETE")).close()

    def make_schema(self) -> str:
        """Make a schema of a new name, and return it with its catalog."""
        name = f"s{uuid.uuid4().hex[:12]}"
        self.post("/schemas", {"name": name, "catalog_name": "main"})
        return f"main.{name}"


def open_log(url: str, name: str) -> DeltaLog:
    """Open a table by its name."""
    return DeltaLog(open_in_catalog(UnityCatalogClient(url), TableName.parse(name)))


def create(url: str, name: str, *, properties: Mapping[str, str] | None = None, schema: str = SCHEMA, **more: Any) -> DeltaLog:
    """Create a table, and return its log."""
    store = stage_in_catalog(UnityCatalogClient(url), TableName.parse(name))
    log = DeltaLog(store)
    txn = log.start_transaction()
    configuration = {**store.committer.required_properties, **(properties or {})}
    txn.update_metadata_for_new_table(Metadata(id=str(uuid.uuid4()), schema_string=schema, configuration=configuration, **more))
    assert txn.commit([], Operation("CREATE TABLE")) == 0
    return log


def write_rows(log: DeltaLog, rows: Iterable[tuple[int, str]]) -> AddFile:
    """Write a Parquet file into the table's directory."""
    rows = list(rows)
    table = pa.table({"id": pa.array([r[0] for r in rows], pa.int64()), "name": pa.array([r[1] for r in rows], pa.string())})
    path = f"part-{uuid.uuid4()}.parquet"
    place = Path(str(log.store.local_root), path)
    place.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, place)
    return AddFile(
        path=path,
        partition_values={},
        size=place.stat().st_size,
        modification_time=place.stat().st_mtime_ns // 1_000_000,
        data_change=True,
        stats=json.dumps({"numRecords": len(rows)}),
    )


def append(
    log: DeltaLog, rows: Iterable[tuple[int, str]], *, also: Iterable[Action] = (), txn_id: str | None = None, **policy: Any
) -> int:
    """Append rows and return the version."""
    txn = log.start_transaction(txn_id=txn_id, policy=CommitPolicy(**policy))
    return txn.commit([write_rows(log, rows), *also], Operation.write("Append"))


@dataclass
class CatalogTable:
    """A table of a test.

    :param url: of the server, or of a proxy in front of it.
    """

    server: UnityCatalogServer
    name: str
    url: str

    @property
    def log(self) -> DeltaLog:
        """The log, opened anew."""
        return open_log(self.url, self.name)

    @property
    def path(self) -> Path:
        """The table's directory."""
        return Path(str(open_log(self.server.url, self.name).store.local_root))

    @property
    def published(self) -> list[int]:
        """The versions that are in the log on storage."""
        return sorted(int(file.stem) for file in (self.path / "_delta_log").glob("*.json") if file.stem.isdigit())

    @property
    def staged(self) -> list[str]:
        """The names of staged commits."""
        return sorted(file.name for file in (self.path / "_delta_log" / "_staged_commits").glob("*.json"))

    @property
    def known(self) -> Any:
        """What the catalog knows."""
        return UnityCatalogClient(self.server.url).load_table(TableName.parse(self.name))
