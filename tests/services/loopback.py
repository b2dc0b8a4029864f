"""What the services on loopback share: HTTP with JSON, a certificate, and the drivers that they run."""

from __future__ import annotations

import json
import re
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import parse_qsl, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from services.drivers import Driver, ServiceSpark
from stores.process import LOOPBACK


class Refused(Exception):
    """A request that the service would refuse.

    :param status: HTTP's.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class JsonService:
    """An HTTP server on loopback whose requests and answers are JSON; a string is answered as text.

    ``routes`` map ``"GET /runs/(\\d+)"`` to the name of a method, which gets the groups, the query or the body, and the headers.

    :param certificate: for HTTPS.
    """

    routes: ClassVar[dict[str, str]] = {}
    post_status = 200
    """Of a POST that went well."""

    def __init__(self, certificate: Certificate | None = None) -> None:
        self.requests: list[tuple[str, Any]] = []
        """Method and path, and the body, of each request."""
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                return

            def _answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                status, answer = service._answer(self.command, self.path, self.rfile.read(length), dict(self.headers))
                text = isinstance(answer, str)
                data = (answer if text else json.dumps(answer)).encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/plain" if text else "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_DELETE = do_PATCH = _answer

        self._server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate.path, certificate.key_path)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port: int = self._server.server_address[1]
        self.url = f"http{'s' if certificate else ''}://{LOOPBACK}:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def refusal(self, refused: Refused) -> Any:
        """Return the body of an answer that refuses."""
        return {"message": str(refused)}

    def _answer(self, method: str, target: str, data: bytes, headers: dict[str, str]) -> tuple[int, Any]:
        parts = urlsplit(target)
        body: Any = json.loads(data) if data else dict(parse_qsl(parts.query))
        self.requests.append((f"{method} {parts.path}", body))
        for pattern, name in self.routes.items():
            if match := re.fullmatch(pattern, f"{method} {parts.path}"):
                try:
                    told = getattr(self, name)(*match.groups(), body=body, headers=headers)
                except Refused as refused:
                    return refused.status, self.refusal(refused)
                return self.post_status if method == "POST" else 200, told
        return 404, self.refusal(Refused(404, f"There is no {method} {parts.path}"))


class Certificate:
    """A certificate for names on loopback, which is its own authority.

    :param directory: an existing directory for its files.
    """

    def __init__(self, directory: Path, *names: x509.GeneralName) -> None:
        self.path, self.key_path = directory / "certificate.pem", directory / "key.pem"
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "airflow-delta tests")])
        now = datetime.now(UTC)
        signed = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        self.path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        unlocked = serialization.NoEncryption()
        self.key_path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, unlocked))


class Drivers:
    """The drivers that a service runs, each by ``spark-submit``, at the same time as others.

    :param spark: the service's Spark.
    """

    def __init__(self, spark: ServiceSpark) -> None:
        self.spark = spark
        self.started: list[Driver] = []
        self.again: Callable[[int], bool] = lambda run: False
        """Whether the service runs a driver once more although it ended well, by the number of its run, from 1: it was lost."""
        self._pool = ThreadPoolExecutor(4)
        self._runs: dict[Any, Future[str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def start(self, key: Any, driver: Driver, *, retries: int = 0) -> None:
        """Start a driver.

        :param key: of the service's, by which it asks for the driver's state.
        :param retries: how often it runs the driver again if it failed.
        """
        self._runs[key] = self._pool.submit(self._run, driver, retries)

    def _run(self, driver: Driver, retries: int) -> str:
        for run in range(1, retries + 2):
            self.started.append(driver)
            done = self.spark.run(driver)
            if done.returncode == 0 and not self.again(run):
                return done.stdout
        raise ChildProcessError(done.stdout[-3000:])

    def wait(self, key: Any) -> None:
        """Return when a driver has ended."""
        wait([self._runs[key]])

    @property
    def told(self) -> str:
        """The states of all, with the ends of their output."""
        return "\n".join(f"{key}: {' '.join(self.state(key))}" for key in self._runs)

    def state(self, key: Any) -> tuple[str, str]:
        """Return whether a driver is ``running``, has ``succeeded`` or has ``failed``, and the end of its output."""
        run = self._runs[key]
        if not run.done():
            return "running", ""
        error = run.exception()
        return ("succeeded", run.result()[-3000:]) if error is None else ("failed", str(error))
