"""moto with turns has one winner of a conditional put. Alone, it has two now and then."""

from __future__ import annotations

import boto3
import pytest

from stores.locked_moto import s3_server
from stores.races import check_races
from stores.servers import make_bucket, s3_options
from stores.tables import client

KEYS = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}


@pytest.fixture
def options():
    with s3_server() as endpoint:
        yield s3_options(endpoint, "test", "test")


def test_put_if_absent_has_one_winner(options):
    check_races(client(options, f"s3://{make_bucket(options)}"))


def test_the_next_server_has_no_buckets_of_the_last():
    with s3_server() as outer:
        kept = make_bucket(s3_options(outer, "test", "test"))
        for _ in range(2):
            with s3_server() as inner:
                s3 = boto3.client("s3", endpoint_url=inner, region_name="us-east-1", **KEYS)
                assert [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]] == [kept]
                s3.create_bucket(Bucket="lake")
                s3.put_object(Bucket="lake", Key="t/part", Body=b"rows")
                s3.close()
