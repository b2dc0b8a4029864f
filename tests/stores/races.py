"""Writers of one store that race for the same object."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError

ROUNDS = int(os.environ.get("STORE_ROUNDS", "100"))


WRITERS = 8


def check_races(container: Any) -> None:
    """Have several writers create the same objects: of each, one succeeds, and its content stays."""

    def put(key: str, writer: int) -> bool:
        try:
            obstore.put(container, key, b"%d" % writer * 100, mode="create")
        except AlreadyExistsError:
            return False
        return True

    with ThreadPoolExecutor(WRITERS) as pool:
        for number in range(ROUNDS):
            key = f"log/{number:020}.json"
            won = list(pool.map(lambda writer, key=key: put(key, writer), range(WRITERS)))
            assert won.count(True) == 1
            assert bytes(obstore.get(container, key).bytes()) == b"%d" % won.index(True) * 100
