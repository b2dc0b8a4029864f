"""One Airflow for all scenarios, and all scenarios at once: what takes minutes in a scenario is waiting.

Each test of this folder is a scenario: a function of :class:`live.runs.Live` (and of parameters). Before the first one, all that
were selected are started in threads; the tests then only tell how their scenario ended.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
AT_ONCE = int(os.environ.get("LIVE_SCENARIOS_AT_ONCE", "14"))
STARTED: pytest.StashKey[dict[str, Future[None]]] = pytest.StashKey()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.live)


@pytest.fixture(scope="session")
def live(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A running Airflow. ``LIVE_HOME`` names a directory that is kept, with all logs and tables; so is that of a failure."""
    from live.airflow_services import Airflow
    from live.runs import Live

    kept = os.environ.get("LIVE_HOME")
    home = Path(kept) if kept else Path(tempfile.mkdtemp(prefix="live-airflow-"))
    if kept:
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
    # Below /tmp where there is one: the temporary directory of some systems has a name too long for a socket.
    sockets = Path(tempfile.mkdtemp(prefix="live-pg-", dir="/tmp" if os.path.isdir("/tmp") else None))
    airflow = Airflow(home, sockets)
    failed_before = request.session.testsfailed
    started = False
    try:
        airflow.start()
        started = True
        yield Live(airflow)
    finally:
        airflow.stop()
        shutil.rmtree(sockets, ignore_errors=True)
        if not kept and started and request.session.testsfailed == failed_before:
            shutil.rmtree(home, ignore_errors=True)
        else:
            print(f"\nAirflow's home, with all logs and tables: {home}")


@pytest.fixture(scope="session", autouse=True)
def scenarios(request: pytest.FixtureRequest, live: Any) -> Iterator[None]:
    """Start every selected scenario."""
    items = [item for item in request.session.items if HERE in item.path.parents and isinstance(item, pytest.Function)]
    started: dict[str, Future[None]] = {}
    request.session.stash[STARTED] = started
    over = threading.Event()

    def play(item: pytest.Function) -> None:
        if not over.is_set():
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            item.obj(live=live, **parameters)

    executor = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="scenario")
    for item in items:
        started[item.nodeid] = executor.submit(play, item)
    yield
    over.set()
    live.airflow.stop()  # whatever a scenario still waits for ends with an error
    executor.shutdown(wait=True, cancel_futures=True)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Tell how the scenario ended."""
    scenario = pyfuncitem.session.stash.get(STARTED, {}).get(pyfuncitem.nodeid)
    if scenario is None:
        return None
    scenario.result()
    return True
