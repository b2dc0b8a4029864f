"""moto with turns has one winner of a conditional put. Alone, it has two now and then."""

from __future__ import annotations

import pytest

from stores.locked_moto import s3_server
from stores.servers import make_bucket, s3_options
from stores.tables import client
from stores.test_stores import check_races


@pytest.fixture
def options():
    with s3_server() as endpoint:
        yield s3_options(endpoint, "test", "test")


def test_put_if_absent_has_one_winner(options):
    check_races(client(options, f"s3://{make_bucket(options)}"))
