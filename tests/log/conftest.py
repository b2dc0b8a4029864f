from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """An empty place for a table."""
    return tmp_path / "table"


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """A real HTTP server that speaks S3. Of two conditional puts of one key, one fails."""
    from stores.locked_moto import s3_server

    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def s3_options(s3_endpoint: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": s3_endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "aws_allow_http": "true",
    }


@pytest.fixture
def s3_client(s3_options: dict[str, str]):
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=s3_options["AWS_ENDPOINT_URL"],
        aws_access_key_id="test",
        aws_secret_access_key="test",
        region_name="us-east-1",
    )
    yield client
    client.close()


@pytest.fixture
def s3_bucket(s3_client) -> str:
    bucket = f"lake-{uuid.uuid4().hex[:12]}"
    s3_client.create_bucket(Bucket=bucket)
    return bucket


@pytest.fixture
def s3_table(s3_bucket: str) -> str:
    """An empty place for a table on S3."""
    return f"s3://{s3_bucket}/lake/table"
