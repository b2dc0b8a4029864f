"""moto with writes that take turns: alone, it looks for a key and then puts it, so that two writers can both create it."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from moto.server import ThreadedMotoServer

from stores.process import LOOPBACK, free_port


class LockedMotoServer(ThreadedMotoServer):
    """A drop-in for moto's server: one write at a time, in the order in which their bodies are complete."""

    def behind(self, moto: Any) -> Any:
        """Return the application that answers, given moto's: what a server puts before it."""
        return moto

    def _server_entry(self) -> None:
        from moto.moto_server.threaded_moto_server import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
        from werkzeug.serving import make_server
        from werkzeug.wsgi import get_input_stream

        lock, moto = threading.Lock(), self.behind(DomainDispatcherApplication(create_backend_app))

        def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            if environ["REQUEST_METHOD"] not in ("PUT", "POST", "DELETE"):
                return moto(environ, start_response)
            body = get_input_stream(environ, max_content_length=None).read()  # before the turn: a slow client holds nobody up
            environ |= {"wsgi.input": io.BytesIO(body), "wsgi.input_terminated": True, "CONTENT_LENGTH": str(len(body))}
            with lock:
                return list(moto(environ, start_response))

        self._server = make_server(self._ip_address, self._port, application, True, request_handler=MotoRequestHandler)
        self._server_ready_event.set()
        self._server.serve_forever()


@contextmanager
def s3_server() -> Iterator[str]:
    """Run a server that speaks S3, on loopback, and yield its endpoint.

    moto keeps one set of buckets for all servers of a process: those made meanwhile are removed at the end.
    """
    port = free_port()
    server = LockedMotoServer(ip_address=LOOPBACK, port=port, verbose=False)
    server.start()
    endpoint = f"http://{LOOPBACK}:{port}"
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
    s3 = boto3.resource("s3", endpoint_url=endpoint, **keys)
    kept = {bucket.name for bucket in s3.buckets.all()}
    try:
        yield endpoint
    finally:
        for bucket in s3.buckets.all():
            if bucket.name not in kept:
                bucket.objects.all().delete()
                bucket.delete()
        s3.meta.client.close()
        server.stop()
