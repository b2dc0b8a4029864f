"""Publications whose tables are worked on side by side, as on an object store, although the tables are local."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from airflow_delta.publication import plan, publish, steps


@contextmanager
def side_by_side() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (plan, publish, steps):
            patch.setattr(module, "asks_a_network", lambda _logs: True)
        yield
