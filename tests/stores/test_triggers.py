"""Triggers whose store refuses them, or whose network goes away: what is final ends them, what heals does not."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from airflow_delta.log import AddFile, DeltaLog
from airflow_delta.log.storage.errors import StoreAccessError, StoreRefusedError, StoreUnavailableError
from airflow_delta.log.storage.object import ObjectStore
from airflow_delta.transaction import Operation
from airflow_delta.triggers.delta import DeltaTableVersionTrigger
from stores.process import LOOPBACK, free_port
from stores.servers import Versitygw
from support.table import metadata


class Lake:
    """A table in a bucket, and the connection of its triggers."""

    def __init__(self, store: Versitygw, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self._environment = store, monkeypatch
        self.root = store.root(store.container())
        self.log = DeltaLog.for_table(f"{self.root}/t", store.options)
        transaction = self.log.start_transaction()
        transaction.update_metadata_for_new_table(metadata())
        transaction.commit([], Operation.manual_update())
        self.connect()

    def connect(self, root: str | None = None, url: str | None = None, **changes: str) -> None:
        connection = {"conn_type": "delta", **self.store.connection(root or self.root, url), **changes}
        self._environment.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))

    def append(self) -> int:
        add = AddFile(path="a", partition_values={}, size=1, modification_time=1, data_change=True)
        return self.log.start_transaction().commit([add], Operation.write())


@pytest.fixture
def lake(versitygw: Versitygw, monkeypatch: pytest.MonkeyPatch) -> Lake:
    return Lake(versitygw, monkeypatch)


@pytest.fixture
def failed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the trigger said about its failures."""
    told: list[str] = []
    logger = logging.getLogger("a trigger")
    monkeypatch.setattr(DeltaTableVersionTrigger, "log", logger)
    for level in ("info", "error"):
        monkeypatch.setattr(logger, level, lambda text, *values: told.append(text % values))
    return told


@asynccontextmanager
async def looking(**arguments: Any) -> AsyncIterator[asyncio.Task[dict[str, Any]]]:
    """A trigger at work, as the task that ends with its first event."""
    trigger = DeltaTableVersionTrigger("t", delta_conn_id="lake", after_version=0, **{"poll_interval": 0.05, **arguments})

    async def first() -> dict[str, Any]:
        async for event in trigger.run():
            return dict(event.payload.get("commit", event.payload))
        raise AssertionError("it ended")

    task = asyncio.create_task(first())
    try:
        yield task
    finally:
        task.cancel()
        with suppress(BaseException):
            await task


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not is_true():
            await asyncio.sleep(0.01)


BOTH = pytest.mark.parametrize("single_event", [False, True], ids=["a watcher", "a deferred sensor"])


@BOTH
@pytest.mark.parametrize(
    ("changes", "kind", "says"),
    [
        ({"login": "nobody"}, StoreAccessError, "404 XAdminUserNotFound.* Check login and password"),
        ({"password": "wrong"}, StoreAccessError, "SignatureDoesNotMatch.* Check login and password"),
        ({"root": "s3://no-such-bucket"}, StoreRefusedError, "NoSuchBucket.* Check the bucket"),
    ],
    ids=["unknown key", "wrong secret", "no bucket"],
)
def test_a_store_that_refuses_ends_it(
    lake: Lake, failed: list[str], single_event: bool, changes: dict[str, str], kind: type[Exception], says: str
) -> None:
    lake.connect(**changes)

    async def run() -> None:
        async with asyncio.timeout(120), looking(single_event=single_event) as event:
            await event

    with pytest.raises(kind, match=f"{says}.*connection 'lake'"):
        asyncio.run(run())
    assert len(failed) == 4


@BOTH
def test_credentials_that_are_mended_in_time(lake: Lake, failed: list[str], single_event: bool) -> None:
    lake.connect(password="wrong")
    lake.append()

    async def run() -> None:
        async with looking(single_event=single_event, poll_interval=0.5) as event:
            await until(lambda: len(failed) > 1)
            lake.connect()
            assert (await event)["version"] == 1

    asyncio.run(run())


class Network:
    """What lies between the client and the store: a port that takes connections while it is up."""

    def __init__(self, store: Versitygw) -> None:
        self._port, self._store = free_port(), store.port
        self.url = f"http://{LOOPBACK}:{self._port}"
        self._open: set[asyncio.StreamWriter] = set()

    async def up(self) -> None:
        self._server = await asyncio.start_server(self._connected, LOOPBACK, self._port)

    async def down(self) -> None:
        self._server.close()
        for writer in self._open:
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        its_reader, its_writer = await asyncio.open_connection(LOOPBACK, self._store)
        self._open |= {writer, its_writer}
        await asyncio.gather(self._pass_on(reader, its_writer), self._pass_on(its_reader, writer))

    @staticmethod
    async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()


class TestNetwork:
    """A client that gives up at once: else it would repeat its requests for minutes, and each look would last as long."""

    @pytest.fixture
    def network(self, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Network:
        monkeypatch.setattr(ObjectStore, "_client", ObjectStore._single_shot)
        network = Network(lake.store)
        lake.connect(url=network.url)
        return network

    @staticmethod
    def outage(lake: Lake, network: Network, ends: Callable[[], bool], **arguments: Any) -> int:
        """Return the version that a trigger tells of after its network was away."""

        async def run() -> int:
            await network.up()
            try:
                async with looking(**arguments) as event:
                    await asyncio.sleep(0.5)
                    await network.down()
                    await asyncio.to_thread(lake.append)
                    await until(lambda: ends() or event.done())
                    await network.up()
                    return int((await event)["version"])
            finally:
                await network.down()

        return asyncio.run(run())

    def test_a_watcher_outlasts_any(self, lake: Lake, failed: list[str], network: Network) -> None:
        assert self.outage(lake, network, lambda: len(failed) > 9) == 1

    def test_a_deferred_sensor_outlasts_a_short_one(self, lake: Lake, failed: list[str], network: Network) -> None:
        assert self.outage(lake, network, lambda: bool(failed), single_event=True, poll_interval=0.5) == 1

    def test_and_not_a_long_one(self, lake: Lake, failed: list[str], network: Network) -> None:
        with pytest.raises(StoreUnavailableError, match="Check the connection 'lake'"):
            self.outage(lake, network, lambda: len(failed) > 9, single_event=True)
        assert len(failed) == 4
