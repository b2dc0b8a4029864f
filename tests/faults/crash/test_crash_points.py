"""A process can die at any point. The points are found by running: every effect on the table, on a file system or on XCom, the
begin and end of each hook after a commit, and Spark's work. A step of the provider that no scenario comes by fails a test here.

On a running Airflow, ``tests/live`` kills the main ones (test_reruns.py, test_concurrency.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.log.storage.base import LogStore
from faults.crash.cases import Case
from faults.crash.host import Host
from faults.crash.scenarios import SCENARIOS
from faults.crash.sites import sites
from faults.shared.layers import EFFECTS, READS

pytestmark = pytest.mark.spark

ELSEWHERE = {
    "private_directory.py::_is_private: os.makedirs": "a directory of this user on this machine",
    "log/delta_log.py::DeltaLog.checkpoint: delete": "only for a table that was committed to wrongly: tests/log/checksum",
    "catalog/": "a table of a catalog: tests/catalog",
    "operators/": "Airflow's own stores: tests/airflow/test_earlier_try.py, test_restart.py, test_durable_stage.py, tests/live",
    "tasks/": "Airflow's own stores: tests/airflow/test_earlier_try.py, test_restart.py, test_durable_stage.py, tests/live",
    "task_notes.py": "Airflow's own stores: tests/ui/test_transactions.py",
    "sensors/": "a sensor changes no table",
    "testing/": "folders of a test: tests/testing",
    "table/preview/": "a preview changes no table, and the next try writes it anew: tests/table/preview",
    "table/state/previews.py": "what is left of a preview goes with the transaction: tests/table/preview",
}
"""Sites of :mod:`faults.crash.sites` that no scenario reaches, or a folder of them, and why."""


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.close()


@pytest.fixture(scope="module")
def reached() -> dict[str, set[str]]:
    """What each scenario has come by."""
    return {}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_task_that_is_killed_anywhere_and_runs_again_changes_nothing(
    name: str, tmp_path: Path, host: Host, reached: dict[str, set[str]], request: Any, is_long: bool, figures: Callable[..., None]
) -> None:
    spark = request.getfixturevalue("spark") if SCENARIOS[name].on_spark else None
    case = Case(host, name, tmp_path / "case", spark)
    case.run_without_faults()
    reached[name] = {site for trail in case.trails.values() for _, site, _ in trail}
    killed = 0
    for task in case.killed:
        for point in case.points(task, every=is_long):
            case.kill(task, point)
            killed += 1
    figures(f"crash points, {name}", tried=sum(len(case.trails[task]) for task in case.killed), killed=killed, failed=0)


def test_every_effect_of_the_provider_has_a_crash_point(reached: dict[str, set[str]], request: pytest.FixtureRequest) -> None:
    chosen = {item.callspec.params["name"] for item in request.session.items if "host" in getattr(item, "fixturenames", ())}
    if chosen != SCENARIOS.keys():
        pytest.skip("only some of the scenarios were chosen")
    assert reached.keys() == chosen, "the scenarios ran in several processes, or some failed: with pytest-xdist, --dist loadfile"
    come_by = set().union(*reached.values())
    missing = [
        f"{site.name}, line {site.first}" for site in sites()
        if not any(map(site.holds, come_by)) and not site.name.startswith(tuple(ELSEWHERE))
    ]  # fmt: skip
    assert not missing, f"No crash scenario comes by {missing}"


def test_every_effect_that_is_come_by_is_a_known_site(reached: dict[str, set[str]]) -> None:
    known = sites()
    unknown = {place for places in reached.values() for place in places if place and not any(s.holds(place) for s in known)}
    assert not unknown, f"faults.crash.sites does not see the effects at {sorted(unknown)}"


def test_every_method_of_a_store_is_known_to_have_an_effect_or_none() -> None:
    methods = {name for name in vars(LogStore) if not name.startswith("_")} - {
        "root",
        "local_root",
        "options",
        "fresh_options",
        "connection",
        "committer",
        "probes",
    }
    assert methods <= {*EFFECTS, *READS}, methods - {*EFFECTS, *READS}


def test_the_sites_that_are_killed_elsewhere_are_there() -> None:
    names = [site.name for site in sites()]
    assert not [prefix for prefix in ELSEWHERE if not any(name.startswith(prefix) for name in names)]
