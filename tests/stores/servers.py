"""The object stores of the tests. Each has the storage options by which obstore reaches it, and makes empty containers."""

from __future__ import annotations

import urllib.request
import uuid
from collections.abc import Mapping
from pathlib import Path

from stores.install import PROGRAMS
from stores.process import LOOPBACK, Service, answers, free_port

REGION = "us-east-1"


class Versitygw(Service):
    """S3: the Versity gateway, with objects as files and their metadata in extended attributes."""

    ACCESS_KEY, SECRET_KEY = "lake-writer", "lake-writer-secret"

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.url = f"http://{LOOPBACK}:{self.port}"
        (directory / "objects").mkdir()
        argv = [
            PROGRAMS["versitygw"], "--access", self.ACCESS_KEY, "--secret", self.SECRET_KEY, "--region", REGION,
            "--port", f"{LOOPBACK}:{self.port}", "--keep-alive", "--quiet", "--health", "/health", "posix", directory / "objects",
        ]  # fmt: skip
        super().__init__("versitygw", argv, directory, lambda: answers(f"{self.url}/health"))

    def container(self) -> str:
        """Make a bucket and return its name."""
        import boto3

        name = f"lake-{uuid.uuid4().hex[:12]}"
        client = boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=self.ACCESS_KEY,
            aws_secret_access_key=self.SECRET_KEY,
            region_name=REGION,
        )
        client.create_bucket(Bucket=name)
        client.close()
        return name

    def root(self, container: str) -> str:
        """Return the URI of a container."""
        return f"s3://{container}"

    @property
    def options(self) -> dict[str, str]:
        """Storage options."""
        return {
            "aws_endpoint_url": self.url,
            "aws_access_key_id": self.ACCESS_KEY,
            "aws_secret_access_key": self.SECRET_KEY,
            "aws_region": REGION,
        }


class Azurite(Service):
    """Azure Blob Storage: Microsoft's emulator."""

    ACCOUNT = "devstoreaccount1"
    KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
    """The emulator's own, known to everybody."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.url = f"http://{LOOPBACK}:{self.port}/{self.ACCOUNT}"
        argv = [
            PROGRAMS["node"], PROGRAMS["azurite"], "--blobHost", LOOPBACK, "--blobPort", self.port, "--location", directory / "data",
            "--skipApiVersionCheck", "--disableTelemetry", "--silent",
        ]  # fmt: skip
        super().__init__("azurite", argv, directory, lambda: answers(self.url))

    def container(self) -> str:
        """Make a container and return its name."""
        name = f"lake-{uuid.uuid4().hex[:12]}"
        signed_put(f"{self.url}/{name}?restype=container", self.ACCOUNT, self.KEY)
        return name

    def root(self, container: str) -> str:
        """Return the URI of a container."""
        return f"az://{container}"

    @property
    def options(self) -> dict[str, str]:
        """Storage options."""
        return {
            "azure_storage_account_name": self.ACCOUNT,
            "azure_storage_account_key": self.KEY,
            "azure_storage_endpoint": self.url,
            "allow_http": "true",
        }

    @property
    def connection_string(self) -> str:
        """The same for Azure's own clients."""
        return (
            f"DefaultEndpointsProtocol=http;AccountName={self.ACCOUNT};AccountKey={self.KEY};BlobEndpoint={self.url};"
        )
