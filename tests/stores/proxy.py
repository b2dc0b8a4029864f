"""An HTTP proxy between a client and a store that fails on request: ``python proxy.py PORT CONTROL_PORT STORE_HOST:PORT``.

Requests go to the store byte for byte, Host header and all, so signatures hold. Faults are rules, set and read through the second
port (:class:`FaultProxy` is the tests' side of it). A rule names a request by its method, a pattern of its target and its number
among those that match; the first rule that matches a request decides.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import h11

if __name__ != "__main__":
    from stores.process import LOOPBACK, Service, free_port, listens

_CHUNK = 64 * 1024


@dataclass
class Rule:
    """What happens to which requests.

    :param fault: ``status`` (answer without asking the store), ``status_after`` (the store carries the request out, the answer is
        an error), ``lost`` (the store carries it out, then the connection is reset), ``reset`` (before the store sees it),
        ``truncated`` (half of the body, then the connection is reset), ``cut`` (half of the body, as if that were all of it),
        ``slow`` (the body in pieces, ``seconds`` between them),
        ``latency`` (``seconds`` before the store is asked), ``stale`` (a listing without its last object).
    :param method: an HTTP method; empty: any.
    :param target: a regular expression that is searched in the path and query as sent.
    :param skip: how many matching requests pass first.
    :param times: to how many matching requests it happens; ``None``: to all.
    :param status: of ``status`` and ``status_after``.
    :param code: the error code in the body.
    :param seconds: of ``slow`` and ``latency``.
    """

    fault: str
    method: str = ""
    target: str = ""
    skip: int = 0
    times: int | None = 1
    status: int = 503
    code: str = "SlowDown"
    seconds: float = 0.0
    seen: int = field(default=0, init=False)
    done: int = field(default=0, init=False)

    def takes(self, method: str, target: str) -> bool:
        """Count a request; return whether the fault happens to it."""
        if (self.method and self.method != method) or not re.search(self.target, target):
            return False
        self.seen += 1
        if self.seen <= self.skip or (self.times is not None and self.done >= self.times):
            return False
        self.done += 1
        return True


class Peer:
    """One side of a connection, as h11 events."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, role: Any) -> None:
        self.reader, self.writer, self.http = reader, writer, h11.Connection(role)

    async def event(self) -> Any:
        while (event := self.http.next_event()) is h11.NEED_DATA:
            if self.http.they_are_waiting_for_100_continue:
                await self.send(h11.InformationalResponse(status_code=100, headers=[]))
            self.http.receive_data(await self.reader.read(_CHUNK))
        return event

    async def body(self) -> AsyncIterator[bytes]:
        while isinstance(event := await self.event(), h11.Data):
            yield bytes(event.data)

    async def send(self, event: Any) -> None:
        data = self.http.send(event)
        if data:
            self.writer.write(data)
            await self.writer.drain()

    def reset(self) -> None:
        """Close with RST instead of FIN."""
        raw = self.writer.get_extra_info("socket")
        with suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


class Proxy:
    """The rules, what they did, and the connections."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.rules: list[Rule] = []
        self.requests: list[dict[str, Any]] = []

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = Peer(reader, writer, h11.SERVER)
        store: Peer | None = None
        try:
            while True:
                request = await client.event()
                if not isinstance(request, h11.Request):
                    return
                if store is None or store.http.our_state is not h11.IDLE:
                    store = await self._connect(store)
                if not await self._exchange(client, store, request):
                    return
                if store.http.our_state is h11.DONE and store.http.their_state is h11.DONE:
                    store.http.start_next_cycle()
                else:
                    store.writer.close()
                    store = None
                if client.http.our_state is not h11.DONE or client.http.their_state is not h11.DONE:
                    return
                client.http.start_next_cycle()
        except (OSError, h11.ProtocolError):
            client.reset()
        finally:
            client.writer.close()
            if store is not None:
                store.writer.close()

    async def _connect(self, old: Peer | None) -> Peer:
        if old is not None:
            old.writer.close()
        return Peer(*await asyncio.open_connection(self.host, self.port), h11.CLIENT)

    async def _exchange(self, client: Peer, store: Peer, request: h11.Request) -> bool:
        """Answer one request; return whether the connection goes on."""
        method, target = request.method.decode(), request.target.decode()
        rule = next((rule for rule in self.rules if rule.takes(method, target)), None)
        fault = rule.fault if rule else ""
        noted = {"method": method, "target": target, "fault": fault, "status": 0, "bytes": 0}
        self.requests.append(noted)
        if fault == "reset":
            client.reset()
            return False
        if rule is not None and fault == "status":
            async for _ in client.body():
                pass
            noted["status"] = rule.status
            await self._error(client, method, rule)
            return True
        if rule is not None and fault == "latency":
            await asyncio.sleep(rule.seconds)
        await self._forward(client, store, request)
        response = await store.event()
        while isinstance(response, h11.InformationalResponse):
            response = await store.event()
        noted["status"] = response.status_code
        chunks = [chunk async for chunk in store.body()]
        noted["bytes"] = sum(map(len, chunks))
        if fault == "lost":
            client.reset()
            return False
        if rule is not None and fault == "status_after":
            await self._error(client, method, rule)
            return True
        if fault == "cut":
            whole = b"".join(chunks)
            chunks, response = _with_body(whole[: len(whole) // 2], response)
        if fault == "stale":
            chunks, response = _without_last(b"".join(chunks), response)
        await client.send(h11.Response(status_code=response.status_code, headers=response.headers, reason=response.reason))
        if fault == "truncated":
            whole = b"".join(chunks)
            await client.send(h11.Data(data=whole[: len(whole) // 2]))
            client.reset()
            return False
        for chunk in chunks:
            if rule is not None and fault == "slow":
                for piece in _pieces(chunk, 8):
                    await client.send(h11.Data(data=piece))
                    await asyncio.sleep(rule.seconds)
            else:
                await client.send(h11.Data(data=chunk))
        await client.send(h11.EndOfMessage())
        return True

    @staticmethod
    async def _forward(client: Peer, store: Peer, request: h11.Request) -> None:
        # h11 answers "Expect: 100-continue" on this side itself: the store is not asked to.
        headers = [(name, value) for name, value in request.headers.raw_items() if name.lower() != b"expect"]
        await store.send(h11.Request(method=request.method, target=request.target, headers=headers))
        async for chunk in client.body():
            await store.send(h11.Data(data=chunk))
        await store.send(h11.EndOfMessage())

    @staticmethod
    async def _error(client: Peer, method: str, rule: Rule) -> None:
        code = escape(rule.code)
        body = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>{code} by the proxy</Message></Error>"
        headers = [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))]
        await client.send(h11.Response(status_code=rule.status, headers=headers))
        if method != "HEAD":
            await client.send(h11.Data(data=body.encode()))
        await client.send(h11.EndOfMessage())

    async def control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve the other port: GET is the report, PUT sets the rules and forgets what happened."""
        peer = Peer(reader, writer, h11.SERVER)
        with suppress(OSError, h11.ProtocolError):
            request = await peer.event()
            body = b"".join([chunk async for chunk in peer.body()])
            if request.method == b"PUT":
                self.rules, self.requests = [], []
                for rule in json.loads(body):
                    self.rules.append(Rule(**rule))
            answer = json.dumps({"rules": [asdict(rule) for rule in self.rules], "requests": self.requests}).encode()
            headers = [("Content-Type", "application/json"), ("Content-Length", str(len(answer))), ("Connection", "close")]
            await peer.send(h11.Response(status_code=200, headers=headers))
            await peer.send(h11.Data(data=answer))
            await peer.send(h11.EndOfMessage())
        writer.close()


def _pieces(data: bytes, number: int) -> list[bytes]:
    size = max(1, -(-len(data) // number))
    return [data[at : at + size] for at in range(0, len(data), size)]


_OBJECT = re.compile(rb"<Contents>.*?</Contents>|<Blob>.*?</Blob>", re.DOTALL)


def _without_last(body: bytes, response: Any) -> tuple[list[bytes], Any]:
    """Return a listing of the S3, Azure or GCS XML APIs without its last object."""
    objects = list(_OBJECT.finditer(body))
    if objects:
        body = body[: objects[-1].start()] + body[objects[-1].end() :]
    return _with_body(body, response)


def _with_body(body: bytes, response: Any) -> tuple[list[bytes], Any]:
    """Return an answer with another body, under its length."""
    headers = [
        (name, value)
        for name, value in response.headers.raw_items()
        if name.lower() not in (b"content-length", b"transfer-encoding")
    ]
    headers.append((b"Content-Length", str(len(body)).encode()))
    return [body], h11.Response(status_code=response.status_code, headers=headers, reason=response.reason)


class FaultProxy:
    """The proxy as a process, and its control.

    :param url: the store's, ``http://127.0.0.1:9000``.
    """

    def __init__(self, url: str, directory: Path) -> None:
        self._port, self._control = free_port(), free_port()
        address = url.removeprefix("http://").partition("/")[0]
        self.url = f"http://{LOOPBACK}:{self._port}"
        argv = [sys.executable, __file__, self._port, self._control, address]
        self.service = Service("fault-proxy", argv, directory, lambda: listens(self._port) and listens(self._control))
        self._http = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def __enter__(self) -> FaultProxy:
        self.service.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.service.stop()

    def set(self, *rules: Rule) -> None:
        """Replace the rules, and forget the requests so far."""
        body = [{key: value for key, value in asdict(rule).items() if key not in ("seen", "done")} for rule in rules]
        self._http.open(
            urllib.request.Request(f"http://{LOOPBACK}:{self._control}/", json.dumps(body).encode(), method="PUT")
        ).close()

    @property
    def requests(self) -> list[dict[str, Any]]:
        """The requests since :meth:`set`, in the order in which they came: method, target, fault, the store's status, bytes."""
        return list(self._report()["requests"])

    @property
    def faults(self) -> list[int]:
        """How often each rule took effect."""
        return [rule["done"] for rule in self._report()["rules"]]

    def _report(self) -> dict[str, Any]:
        with self._http.open(f"http://{LOOPBACK}:{self._control}/") as answer:
            return dict(json.load(answer))


async def main() -> None:
    port, control, address = sys.argv[1:]
    host, _, store = address.partition(":")
    proxy = Proxy(host, int(store))
    servers = [
        await asyncio.start_server(proxy.connection, "127.0.0.1", int(port), backlog=512),
        await asyncio.start_server(proxy.control, "127.0.0.1", int(control)),
    ]
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    asyncio.run(main())
