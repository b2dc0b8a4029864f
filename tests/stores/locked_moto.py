"""moto with writes that take turns: alone, it looks for a key and then puts it, so that two writers can both create it."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from moto.server import ThreadedMotoServer

from stores.process import LOOPBACK, free_port


class LockedMotoServer(ThreadedMotoServer):
    """A drop-in for moto's server: one write at a time, in the order in which their bodies are complete."""

    def _server_entry(self) -> None:
        from moto.moto_server.threaded_moto_server import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
        from werkzeug.serving import make_server
        from werkzeug.wsgi import get_input_stream

        lock, moto = threading.Lock(), DomainDispatcherApplication(create_backend_app)

        def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            if environ["REQUEST_METHOD"] not in ("PUT", "POST", "DELETE"):
                return moto(environ, start_response)  # type: ignore[no-any-return]
            body = get_input_stream(environ, max_content_length=None).read()  # before the turn: a slow client holds nobody up
            environ |= {"wsgi.input": io.BytesIO(body), "wsgi.input_terminated": True, "CONTENT_LENGTH": str(len(body))}
            with lock:
                return list(moto(environ, start_response))

        self._server = make_server(self._ip_address, self._port, application, True, request_handler=MotoRequestHandler)
        self._server_ready_event.set()
        self._server.serve_forever()


@contextmanager
def s3_server() -> Iterator[str]:
    """Run a server that speaks S3, on loopback, and yield its endpoint."""
    port = free_port()
    server = LockedMotoServer(ip_address=LOOPBACK, port=port, verbose=False)
    server.start()
    try:
        yield f"http://{LOOPBACK}:{port}"
    finally:
        server.stop()
