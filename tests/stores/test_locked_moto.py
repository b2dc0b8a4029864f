"""moto with turns has one winner of a conditional put. Alone, it has two now and then."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError

from stores.locked_moto import LockedMotoServer
from stores.process import LOOPBACK, free_port
from stores.servers import make_bucket, s3_options
from stores.tables import client
from stores.test_stores import ROUNDS, WRITERS


@pytest.fixture
def options():
    port = free_port()
    server = LockedMotoServer(ip_address=LOOPBACK, port=port, verbose=False)
    server.start()
    yield s3_options(f"http://{LOOPBACK}:{port}", "test", "test")
    server.stop()


def test_put_if_absent_has_one_winner(options):
    container = client(options, f"s3://{make_bucket(options)}")

    def put(key: str, writer: int) -> bool:
        try:
            obstore.put(container, key, b"%d" % writer, mode="create")
        except AlreadyExistsError:
            return False
        return True

    with ThreadPoolExecutor(WRITERS) as pool:
        for number in range(ROUNDS):
            key = f"log/{number}"
            won = list(pool.map(lambda writer, key=key: put(key, writer), range(WRITERS)))
            assert won.count(True) == 1
            assert bytes(obstore.get(container, key).bytes()) == b"%d" % won.index(True)
