"""A relay before a store that adds latency to each request and counts them: ``python relay.py PORT CONTROL_PORT STORE_HOST:PORT``.

It passes bytes on without parsing HTTP: the first line after an answer is the next request. That holds for clients that send one
request at a time on a connection, as obstore, boto3 and delta-rs do, and takes a tenth of the CPU of the fault proxy of tests/stores.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
if __name__ != "__main__":
    sys.path.insert(0, str(HERE.parent / "tests"))
    from stores.process import LOOPBACK, Service, free_port, listens


class State:
    """What the relay adds, and what it saw."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.latency = 0.0
        self.requests: list[dict[str, Any]] = []


class Upstream(asyncio.Protocol):
    """The connection to the store."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def connection_made(self, transport: Any) -> None:
        self.client.store = transport
        self.client.flush()

    def data_received(self, data: bytes) -> None:
        self.client.answered(data)

    def connection_lost(self, _: Exception | None) -> None:
        self.client.transport.close()


class Client(asyncio.Protocol):
    """A connection of the client; each request waits before it goes on to the store."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.store: Any = None
        self.waiting: list[bytes] = []
        self.held = False
        self.request: dict[str, Any] | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        loop = asyncio.get_running_loop()
        self._connecting = loop.create_task(loop.create_connection(lambda: Upstream(self), self.state.host, self.state.port))

    def data_received(self, data: bytes) -> None:
        if self.request is None or self.request["down"]:
            method, target, _ = data[:4096].split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
            self.request = {
                "method": method,
                "target": target,
                "status": 0,
                "up": 0,
                "down": 0,
                "begun": time.time(),
                "ended": 0.0,
            }
            self.state.requests.append(self.request)
            self.held = True
            asyncio.get_running_loop().call_later(self.state.latency, self.release)
        self.request["up"] += len(data)
        self.waiting.append(data)
        self.flush()

    def release(self) -> None:
        self.held = False
        self.flush()

    def flush(self) -> None:
        if self.store is not None and not self.held and self.waiting:
            self.store.writelines(self.waiting)
            self.waiting = []

    def answered(self, data: bytes) -> None:
        if self.request is not None:
            if not self.request["down"]:
                self.request["status"] = int(data[9:12])
            self.request["down"] += len(data)
            self.request["ended"] = time.time()
        self.transport.write(data)

    def connection_lost(self, _: Exception | None) -> None:
        if self.store is not None:
            self.store.close()


class Control(asyncio.Protocol):
    """One line in, ``{"latency": 0.02}`` or nothing; JSON of the requests since the last line that set something out."""

    def __init__(self, state: State) -> None:
        self.state = state

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        body = data.split(b"\r\n\r\n", 1)[1]
        answer = json.dumps(self.state.requests).encode()
        if body:
            self.state.latency = json.loads(body)["latency"]
            self.state.requests, answer = [], b"[]"
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(answer)}\r\nConnection: close\r\n\r\n".encode()
        self.transport.write(head + answer)
        self.transport.close()


class Relay:
    """The relay as a process.

    :param url: the store's, ``http://127.0.0.1:9000``.
    """

    def __init__(self, url: str, directory: Path) -> None:
        self._port, self._control = free_port(), free_port()
        self.url = f"http://{LOOPBACK}:{self._port}"
        argv = [sys.executable, __file__, self._port, self._control, url.removeprefix("http://").partition("/")[0]]
        self.service = Service("relay", argv, directory, lambda: listens(self._port) and listens(self._control))
        self._http = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def __enter__(self) -> Relay:
        self.service.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.service.stop()

    def reset(self, latency: float) -> None:
        """Set the seconds that each request waits, and forget the requests so far."""
        body = json.dumps({"latency": latency}).encode()
        self._http.open(f"http://{LOOPBACK}:{self._control}/", body).close()

    @property
    def requests(self) -> list[dict[str, Any]]:
        """The requests since :meth:`reset`, in the order in which they came."""
        with self._http.open(f"http://{LOOPBACK}:{self._control}/") as answer:
            return list(json.load(answer))

    @property
    def cpu(self) -> float:
        """Seconds of CPU that the relay has taken."""
        times = self.service.process.cpu_times()
        return float(times.user + times.system)


async def main() -> None:
    port, control, address = sys.argv[1:]
    host, _, store = address.partition(":")
    state = State(host, int(store))
    loop = asyncio.get_running_loop()
    servers = [
        await loop.create_server(lambda: Client(state), "127.0.0.1", int(port), backlog=512),
        await loop.create_server(lambda: Control(state), "127.0.0.1", int(control)),
    ]
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    asyncio.run(main())
