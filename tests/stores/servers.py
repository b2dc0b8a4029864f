"""The object stores of the tests, each with what obstore and Spark need to reach it.

Every store has the same members: ``container()`` makes an empty bucket, ``root()`` and ``spark_root()`` are its URI for either
side, ``options`` are storage options, ``connection()`` is the same as a user writes it into Airflow, ``hadoop`` are Hadoop's
settings, of which ``emulator`` are those that a connection has no word for, and ``spark`` names the JAR that Spark loads.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import json
import sys
import threading
import urllib.request
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import urlencode

from stores.install import GCS_CONNECTOR, PROGRAMS
from stores.process import LOOPBACK, Service, answers, free_port

HERE = Path(__file__).parent
HADOOP = "3.5.0"
"""The version that the pinned PySpark bundles."""

S3_PACKAGE = f"org.apache.hadoop:hadoop-aws:{HADOOP}"
AZURE_PACKAGE = f"org.apache.hadoop:hadoop-azure:{HADOOP}"

REGION = "us-east-1"

GCS_CONNECTOR_ON_HADOOP_3_5 = {
    "fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
    "fs.AbstractFileSystem.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFS",
    "fs.gs.block.size": str(64 << 20),
    "fs.gs.inputstream.inplace.seek.limit": str(8 << 20),
    "fs.gs.inputstream.min.range.request.size": str(2 << 20),
    "fs.gs.outputstream.buffer.size": str(8 << 20),
    "fs.gs.rewrite.max.chunk.size": str(512 << 20),
}
"""Hadoop 3.5 has a connector of its own, whose defaults (``64m``) Google's cannot read, and which cannot speak to an emulator."""


class Versitygw(Service):
    """S3: the Versity gateway, with objects as files and their metadata in extended attributes."""

    ACCESS_KEY, SECRET_KEY = "lake-writer", "lake-writer-secret"
    spark = {"spark.jars.packages": S3_PACKAGE}
    emulator: ClassVar[dict[str, str]] = {}

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.url = f"http://{LOOPBACK}:{self.port}"
        objects = directory / "objects"
        objects.mkdir(exist_ok=True)
        argv = [
            PROGRAMS["versitygw"], "--access", self.ACCESS_KEY, "--secret", self.SECRET_KEY, "--region", REGION,
            "--port", f"{LOOPBACK}:{self.port}", "--keep-alive", "--quiet", "--health", "/health", "posix", objects,
        ]  # fmt: skip
        self._token = directory / "token"
        self._token.write_text("of-the-container")
        super().__init__("versitygw", argv, directory, lambda: answers(f"{self.url}/health"))

    def container(self) -> str:
        """Make a bucket and return its name."""
        return make_bucket(self.options)

    def root(self, container: str) -> str:
        """Return a bucket's URI."""
        return f"s3://{container}"

    def spark_root(self, container: str) -> str:
        """Return a bucket's URI for Hadoop."""
        return f"s3a://{container}"

    @property
    def options(self) -> dict[str, str]:
        """Storage options."""
        return s3_options(self.url, self.ACCESS_KEY, self.SECRET_KEY)

    def signed(self, way: str, url: str) -> dict[str, str]:
        """Return the storage options at another URL, by the key, or by a role that a container has."""
        options = {**self.options, "aws_endpoint_url": url}
        if way == "role":
            del options["aws_access_key_id"], options["aws_secret_access_key"]
            options |= {
                "aws_container_credentials_full_uri": f"{role_endpoint(self.ACCESS_KEY, self.SECRET_KEY)}/v1/credentials",
                "aws_container_authorization_token_file": str(self._token),
            }
        return options

    def connection(self, root: str, url: str | None = None) -> dict[str, Any]:
        """Return a connection of Airflow to a bucket."""
        options = {"endpoint": url or self.url, "REGION": REGION}
        return {"host": root, "login": self.ACCESS_KEY, "password": self.SECRET_KEY, "extra": {"storage_options": options}}

    @property
    def hadoop(self) -> dict[str, str]:
        """Hadoop's settings."""
        return {
            "fs.s3a.endpoint": self.url,
            "fs.s3a.endpoint.region": REGION,
            "fs.s3a.path.style.access": "true",
            "fs.s3a.access.key": self.ACCESS_KEY,
            "fs.s3a.secret.key": self.SECRET_KEY,
        }


class Azurite(Service):
    """Azure Blob Storage: Microsoft's emulator. It has no hierarchical namespace, so Spark's driver speaks to its Blob API."""

    ACCOUNT = "devstoreaccount1"
    KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
    """The emulator's own, known to everybody."""
    spark = {"spark.jars.packages": AZURE_PACKAGE}
    # Renaming a directory that another task has made already finds its marker twice.
    emulator: ClassVar[dict[str, str]] = {"mapreduce.fileoutputcommitter.algorithm.version": "2"}

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.url = f"http://{LOOPBACK}:{self.port}/{self.ACCOUNT}"
        argv = [
            PROGRAMS["node"], PROGRAMS["azurite"], "--blobHost", LOOPBACK, "--blobPort", self.port,
            "--location", directory / "objects", "--skipApiVersionCheck", "--disableTelemetry", "--silent",
        ]  # fmt: skip
        super().__init__("azurite", argv, directory, lambda: answers(self.url))

    def container(self) -> str:
        """Make a container and return its name."""
        name = f"lake-{uuid.uuid4().hex[:12]}"
        headers = {"x-ms-date": format_datetime(datetime.now(UTC), usegmt=True), "x-ms-version": "2021-12-02"}
        path = f"/{self.ACCOUNT}/{name}"
        text = "PUT" + "\n" * 12 + "".join(f"{key}:{value}\n" for key, value in headers.items())
        text += f"/{self.ACCOUNT}{path}\nrestype:container"
        signature = base64.b64encode(hmac.digest(base64.b64decode(self.KEY), text.encode(), hashlib.sha256)).decode()
        headers |= {"Authorization": f"SharedKey {self.ACCOUNT}:{signature}", "Content-Type": ""}
        _send("PUT", f"{self.url}/{name}?restype=container", b"", headers)
        return name

    def root(self, container: str) -> str:
        """Return a container's URI."""
        return f"az://{container}"

    def spark_root(self, container: str) -> str:
        """Return a container's URI for Hadoop."""
        return f"abfs://{container}@{self.ACCOUNT}.dfs.core.windows.net"

    @property
    def options(self) -> dict[str, str]:
        """Storage options."""
        return {
            "azure_storage_account_name": self.ACCOUNT,
            "azure_storage_account_key": self.KEY,
            "azure_storage_endpoint": self.url,
            "allow_http": "true",
        }

    def signed(self, way: str, url: str) -> dict[str, str]:
        """Return the storage options at another URL, by the key, or by a shared access signature of the account."""
        options = {**self.options, "azure_storage_endpoint": f"{url}/{self.ACCOUNT}"}
        if way == "sas":
            del options["azure_storage_account_key"]
            options["azure_storage_sas_token"] = self._sas()
        return options

    def _sas(self) -> str:
        fields = {"sp": "rwdlacx", "ss": "b", "srt": "sco", "st": "", "se": "2099-01-01T00:00:00Z", "sip": "", "spr": ""}
        version = "2021-12-02"
        text = "".join(f"{part}\n" for part in (self.ACCOUNT, *fields.values(), version, ""))
        signature = base64.b64encode(hmac.digest(base64.b64decode(self.KEY), text.encode(), hashlib.sha256)).decode()
        return urlencode({**{name: value for name, value in fields.items() if value}, "sv": version, "sig": signature})

    @property
    def hadoop(self) -> dict[str, str]:
        """Hadoop's settings. An account of Azure's own needs only the key."""
        return {
            f"fs.azure.account.key.{self.ACCOUNT}.dfs.core.windows.net": self.KEY,
            f"fs.azure.account.key.{self.ACCOUNT}.blob.core.windows.net": self.KEY,
            "fs.azure.account.hns.enabled": "false",
            "fs.azure.fns.account.service.type": "BLOB",
            "fs.azure.abfs.endpoint": f"{LOOPBACK}:{self.port}",
            "fs.azure.always.use.https": "false",
            "fs.azure.networking.library": "JDK_HTTP_URL_CONNECTION",  # Hadoop's default insists on TLS
            **self.emulator,
        }

    def connection(self, root: str, url: str | None = None) -> dict[str, Any]:
        """Return a connection of Airflow to a container."""
        options = {"AZURE_STORAGE_ENDPOINT": url or self.url}
        return {"host": root, "login": self.ACCOUNT, "password": self.KEY, "extra": {"storage_options": options}}

    @property
    def connection_string(self) -> str:
        """The same for Azure's own clients."""
        return f"DefaultEndpointsProtocol=http;AccountName={self.ACCOUNT};AccountKey={self.KEY};BlobEndpoint={self.url};"


class FakeGcs(Service):
    """Google Cloud Storage: fake-gcs-server, which has the JSON API, behind :mod:`stores.gcs_xml`, which adds the XML API."""

    PROJECT = "lake"
    spark = {"spark.jars": str(GCS_CONNECTOR)}
    emulator: ClassVar[dict[str, str]] = {
        **GCS_CONNECTOR_ON_HADOOP_3_5,
        "fs.gs.project.id": PROJECT,
        "fs.gs.operation.move.enable": "false",  # the emulator does not know that request
    }

    def __init__(self, directory: Path) -> None:
        port, self.port = free_port(), free_port()
        emulator, self.url = f"http://{LOOPBACK}:{port}", f"http://{LOOPBACK}:{self.port}"
        argv = [
            PROGRAMS["fake-gcs-server"], "-scheme", "http", "-host", LOOPBACK, "-port", port, "-backend", "memory",
            "-external-url", self.url, "-public-host", f"{LOOPBACK}:{port}", "-log-level", "warn",
        ]  # fmt: skip
        self._emulator = Service("fake-gcs-server", argv, directory, lambda: answers(f"{emulator}/_internal/healthcheck"))
        argv = [sys.executable, HERE / "gcs_xml.py", self.port, emulator]
        super().__init__("gcs-xml", argv, directory, lambda: answers(f"{self.url}/_internal/healthcheck"))

    def start(self, timeout: float = 60.0) -> Self:
        """Start the emulator and the API in front of it."""
        self._emulator.start(timeout)
        try:
            super().start(timeout)
        except BaseException:
            self._emulator.stop()
            raise
        self.startup_seconds += self._emulator.startup_seconds
        return self

    def stop(self) -> None:
        """End both."""
        super().stop()
        self._emulator.stop()

    @property
    def memory(self) -> int:
        """Resident bytes of both."""
        return super().memory + self._emulator.memory

    def container(self) -> str:
        """Make a bucket and return its name."""
        name = f"lake-{uuid.uuid4().hex[:12]}"
        body = json.dumps({"name": name}).encode()
        _send("POST", f"{self.url}/storage/v1/b?project={self.PROJECT}", body, {"Content-Type": "application/json"})
        return name

    def root(self, container: str) -> str:
        """Return a bucket's URI."""
        return f"gs://{container}"

    def spark_root(self, container: str) -> str:
        """Return a bucket's URI for Hadoop."""
        return f"gs://{container}"

    @property
    def options(self) -> dict[str, str]:
        """Storage options. obstore takes a GCS endpoint, and that it needs no token, only from a service account's key."""
        return {"google_service_account_key": self._key(self.url), "allow_http": "true"}

    def signed(self, way: str, url: str) -> dict[str, str]:
        """Return the storage options at another URL, without a signature ("key"), or by a token."""
        if way == "token":
            return {"google_bearer_token": "of-the-workload", "google_base_url": url, "allow_http": "true"}
        return {**self.options, "google_service_account_key": self._key(url)}

    def connection(self, root: str, url: str | None = None) -> dict[str, Any]:
        """Return a connection of Airflow to a bucket."""
        options = {"GOOGLE_SERVICE_ACCOUNT_KEY": self._key(url or self.url), "allow_http": True}
        return {"host": root, "extra": {"storage_options": options}}

    @staticmethod
    def _key(url: str) -> str:
        return json.dumps(
            {"gcs_base_url": url, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
        )

    @property
    def hadoop(self) -> dict[str, str]:
        """Hadoop's settings."""
        return {
            **self.emulator,
            "fs.gs.storage.root.url": self.url,
            "fs.gs.auth.type": "UNAUTHENTICATED",
        }


STORES = {"s3": Versitygw, "azure": Azurite, "gcs": FakeGcs}
WAYS = ("s3-role", "azure-sas", "gcs-token")
"""The stores again, with requests signed in other ways than by a key, of which the client's errors say other things."""


@functools.cache
def role_endpoint(access_key: str, secret_key: str) -> str:
    """Serve the credentials of a role, as a container finds them, until this process ends; return the URL."""
    answer = json.dumps(
        {"AccessKeyId": access_key, "SecretAccessKey": secret_key, "Token": "", "Expiration": "2099-01-01T00:00:00Z"}
    ).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://{LOOPBACK}:{server.server_address[1]}"


def s3_options(url: str, access_key: str, secret_key: str) -> dict[str, str]:
    """Return the storage options of an S3 store on loopback."""
    return {
        "aws_endpoint_url": url,
        "aws_access_key_id": access_key,
        "aws_secret_access_key": secret_key,
        "aws_region": REGION,
        "aws_allow_http": "true",
    }


def make_bucket(options: Mapping[str, str], name: str | None = None) -> str:
    """Make an S3 bucket and return its name."""
    client = s3_client(options)
    name = name or f"lake-{uuid.uuid4().hex[:12]}"
    client.create_bucket(Bucket=name)
    client.close()
    return name


def s3_client(options: Mapping[str, str]) -> Any:
    """Return boto3's client of an S3 store."""
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=options["aws_endpoint_url"],
        aws_access_key_id=options["aws_access_key_id"],
        aws_secret_access_key=options["aws_secret_access_key"],
        region_name=options["aws_region"],
    )


def _send(method: str, url: str, body: bytes, headers: Mapping[str, str]) -> None:
    request = urllib.request.Request(url, data=body, method=method, headers=dict(headers))
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30).close()
