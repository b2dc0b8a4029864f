"""When a table is expected and when it last came: what its page says of the Dags with deadlines that wait for it, or write it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import deltalake
import pyarrow as pa
import pytest
from airflow.sdk import AsyncCallback, DeadlineAlert
from sqlalchemy import event, func, select
from sqlalchemy.engine import Engine

from airflow_delta.airflow_internals import database
from airflow_delta.assets.deadline import LastCommitDeadline
from airflow_delta.assets.delta import delta_asset
from ui.auth_manager import ScopedAuthManager
from ui.runs import Runs

pytestmark = pytest.mark.airflow

AHEAD = int(datetime(2100, 1, 1, 7, tzinfo=UTC).timestamp() * 1000)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("awaited")
    before = os.environ.get("UI_TABLES")
    os.environ["UI_TABLES"] = str(path)
    yield path
    if before is None:
        del os.environ["UI_TABLES"]
    else:
        os.environ["UI_TABLES"] = before


@pytest.fixture(scope="module")
def runs(airflow_app: Any, lake: Path) -> Runs:
    return Runs("awaited")


@pytest.fixture
def page(client: Any, airflow: Any, lake: Path) -> Callable[..., Any]:
    """What the page of a table says, as JSON; ``text`` as the user sees it."""

    def get(table: Path, user: str = "admin", kind: str = "api/table", **parameters: int) -> Any:
        airflow.ask_again()
        more = "".join(f"&{name}={value}" for name, value in parameters.items())
        answer = client(user).get(f"/delta-tables/{kind}?table={quote(str(table), safe='')}{more}")
        assert answer.status_code == 200, answer.text
        return answer.json() if kind.startswith("api/") else answer.text

    return get


@pytest.fixture
def days(lake: Path, airflow: Any, request: pytest.FixtureRequest) -> Path:
    """A table by day of another writer, which has the first of March.

    Its name has no words: Airflow hides what other tests of this process gave it as secrets, in rendered fields as well.
    """
    path = lake / hashlib.sha256(request.node.name.encode()).hexdigest()[:12]
    write(path, 1)
    airflow.asset(str(path))
    return path


def write(path: Path, day: int) -> None:
    rows = pa.table({"day": [date(2026, 3, day)], "id": [day]})
    deltalake.write_deltalake(str(path), rows, mode="append", partition_by=["day"])


def miss_deadlines() -> None:
    """What the scheduler does in each of its rounds."""
    with database.create_session() as session:
        over = select(database.Deadline).where(database.Deadline.deadline_time < datetime.now(UTC), ~database.Deadline.missed)
        for deadline in session.scalars(over):
            deadline.handle_miss(session)


def milliseconds(day: int, hour: int) -> int:
    return int(datetime(2026, 3, day, hour, tzinfo=UTC).timestamp() * 1000)


def test_expected_until_it_is_there(runs, page, days):
    run_id = runs.begin("awaited_ahead", 2, awaited=str(days))
    (one,) = page(days)["freshness"]
    assert (one["dag_id"], one["run_id"], one["task_id"]) == ("awaited_ahead", "manual__2026-03-02", "there")
    assert one["waits_for"] == {"partitions": "day = :day", "parameters": [":day = 2026-03-02"]}
    assert (one["state"], one["expected"], one["missed"], one["last"]) == ("waiting", AHEAD, False, None)
    write(days, 3)  # of another day: it goes on waiting
    runs.look("awaited_ahead", run_id)
    assert page(days)["freshness"][0]["state"] == "waiting"
    write(days, 2)
    before = datetime.now(UTC).timestamp() * 1000
    runs.look("awaited_ahead", run_id)
    (one,) = page(days)["freshness"]
    assert (one["state"], one["expected"], one["missed"]) == ("in_time", None, False)
    last = one["last"]
    assert (last["version"], last["late"], last["run"]["run_id"]) == (2, False, "manual__2026-03-02")
    assert before - 1000 <= last["timestamp"] <= datetime.now(UTC).timestamp() * 1000 + 1000
    # The next run waits for the next day, and the last one is still told.
    runs.begin("awaited_ahead", 4, awaited=str(days))
    (one,) = page(days)["freshness"]
    assert (one["state"], one["expected"], one["last"]["version"]) == ("waiting", AHEAD, 2)
    text = page(days, kind="table")
    for part in (
        "Expected by",
        "2100-01-01 07:00:00 UTC",
        'title="in 7',
        "<code>day = :day</code>",
        "<code>:day = 2026-03-04</code>",
        "Version 2",
    ):
        assert part in text
    write(days, 5)
    assert page(days, before=1)["freshness"] == []  # an older page of the history


def test_late_and_come_late(runs, page, days):
    run_id = runs.begin("awaited_late", 2, awaited=str(days))
    (one,) = page(days)["freshness"]
    assert (one["state"], one["expected"], one["missed"]) == ("late", milliseconds(2, 7), False)
    miss_deadlines()
    assert page(days)["freshness"][0]["missed"]
    text = page(days, kind="table")
    assert "Late since" in text
    assert "callback called" in text
    write(days, 2)
    runs.look("awaited_late", run_id)
    (one,) = page(days)["freshness"]
    assert (one["state"], one["missed"], one["last"]["late"], one["last"]["version"]) == ("came_late", True, True, 1)


def test_the_next_deadline_follows_from_the_schedule(runs, page, days):
    runs.begin("awaited_daily", 1, awaited=str(days))
    with database.create_session() as session:
        dag = session.get(database.DagModel, "awaited_daily")
        due, dag.is_paused = dag.next_dagrun + timedelta(hours=7), False
    (one,) = page(days)["freshness"]
    assert (one["state"], one["expected"]) == ("came_late", int(due.timestamp() * 1000))
    with database.create_session() as session:
        session.get(database.DagModel, "awaited_daily").is_paused = True
    assert page(days)["freshness"][0]["expected"] is None


def test_a_table_whose_own_dag_has_a_deadline_and_one_that_counts_from_its_commits(runs, page, lake):
    runs.begin("awaited_since_the_last", 1)
    deadlines = select(database.Deadline).join(database.DagRun).where(database.DagRun.dag_id == "awaited_since_the_last")
    with database.create_session() as session:
        assert session.scalars(deadlines).all() == []  # nothing was committed yet
    runs.run("written_by_seven", 1)
    waits, one = page(lake / "written")["freshness"]
    assert (waits["state"], waits["expected"]) == ("waiting", None)
    assert (one["writes"], one["task_id"], one["state"], one["last"]["version"]) == (True, "txn.commit", "in_time", 0)
    assert "its own commit" in page(lake / "written", kind="table")

    # Seven hours after that commit, the next one is late.
    with database.create_session() as session:
        event = select(func.max(database.AssetEvent.timestamp)).where(database.AssetEvent.source_dag_id == "written_by_seven")
        committed = session.scalar(event)
    run_id = runs.begin("awaited_since_the_last", 2)
    waits, _ = page(lake / "written")["freshness"]
    assert (waits["run_id"], waits["state"], waits["waits_for"]) == (run_id, "waiting", {"version": 1})
    assert waits["expected"] == int((committed + timedelta(hours=7)).timestamp() * 1000)


def test_only_what_the_user_may_see(runs, page, days, monkeypatch):
    for dag_id in ("hidden_awaited", "awaited_late"):
        runs.begin(dag_id, 1, awaited=str(days))
    assert {one["dag_id"] for one in page(days)["freshness"]} == {"hidden_awaited", "awaited_late"}
    (one,) = page(days, "viewer")["freshness"]
    assert (one["dag_id"], one["last"]["version"]) == ("awaited_late", 0)
    monkeypatch.setattr(ScopedAuthManager, "hidden_entities", {"XCOM"})
    (one,) = page(days, "viewer")["freshness"]
    assert (one["state"], one["last"]["version"], one["last"]["url"]) == ("came_late", None, None)
    monkeypatch.setattr(ScopedAuthManager, "hidden_entities", {"TASK_INSTANCE"})
    assert page(days, "viewer")["freshness"] == []


def test_what_other_tasks_were_given_hides_nothing(runs, page, days):
    """A template of theirs gave a list, and their intervals are beyond the calendar."""
    for dag_id in ("awaited_ahead", "awaited_daily", "awaited_late"):
        run_id = runs.begin(dag_id, 3, awaited=str(days))
    fields_table, alert_table = database.RenderedTaskInstanceFields, database.DeadlineAlert
    tries = database.latest_tries().table
    with database.create_session() as session:
        of_task = select(fields_table).join(tries, database.rendered_by(fields_table, tries))
        (fields,) = session.scalars(of_task.where(tries.dag_id == "awaited_late", tries.run_id == run_id))
        fields.rendered_fields = {**fields.rendered_fields, "table": [str(days)]}
        serialized = database.SerializedDagModel.get("awaited_daily", session=session)
        (alert,) = session.scalars(select(alert_table).where(alert_table.serialized_dag_id == serialized.id))
        alert_id, interval, alert.interval = alert.id, alert.interval, timedelta.max.total_seconds()
        session.get(database.DagModel, "awaited_daily").is_paused = False
    try:
        found = page(days)
        assert found["notices"] == []
        assert {one["dag_id"] for one in found["freshness"]} == {"awaited_ahead", "awaited_daily"}
    finally:
        with database.create_session() as session:
            session.get(alert_table, alert_id).interval = interval
            session.get(database.DagModel, "awaited_daily").is_paused = True


def test_a_dag_that_is_gone_is_not_late_for_ever(runs, page, days):
    runs.begin("awaited_late", 4, awaited=str(days))
    assert page(days)["freshness"][0]["state"] == "late"
    with database.create_session() as session:
        session.get(database.DagModel, "awaited_late").is_stale = True
    assert page(days)["freshness"] == []
    with database.create_session() as session:
        session.get(database.DagModel, "awaited_late").is_stale = False


def test_what_is_awaited_is_asked_for_all_dags_at_once(runs, page, days):
    for dag_id in ("awaited_ahead", "awaited_late"):
        runs.begin(dag_id, 5, awaited=str(days))
    asked: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        asked.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        assert len(page(days)["freshness"]) == 2
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    fields = database.RenderedTaskInstanceFields.__tablename__
    assert sum(fields in statement for statement in asked) == 1


def test_an_airflow_without_deadlines_has_the_rest_of_the_page(page, days, monkeypatch):
    monkeypatch.setitem(database._MODULES, "DeadlineAlert", "airflow.models.gone")
    found = page(days)
    assert (found["freshness"], found["version"]) == ([], 0)
    assert [notice for notice in found["notices"] if "Deadlines" in notice]


def test_an_airflow_without_assets_makes_its_runs_without_the_deadline(runs, lake, monkeypatch, caplog):
    monkeypatch.setitem(database._MODULES, "AssetEvent", "airflow.models.gone")
    runs.begin("awaited_since_the_last", 7)
    assert "cannot be looked up" in caplog.text


@pytest.mark.parametrize(
    ("table", "conn_id"),
    [
        ("s3a://lake/raw//a b?c#d%2Fe", None),
        ("abfss://Box@account.blob.core.windows.net/raw/", None),
        ("/data/./x/../ä%41", None),
        ("raw/ a/b%2Fc", "my conn/1"),
        ("delta://connection/c%2Fd/raw", None),
    ],
)
def test_a_reference_survives_airflows_serialization(table, conn_id):
    from airflow.serialization.decoders import decode_deadline_alert
    from airflow.serialization.encoders import encode_deadline_alert

    alert = DeadlineAlert(LastCommitDeadline(table, conn_id), timedelta(hours=1), AsyncCallback("ui.staged.missed"))
    found = decode_deadline_alert(json.loads(json.dumps(encode_deadline_alert(alert)))).reference.inner_ref
    assert found == alert.reference
    assert found.asset_uri == delta_asset(table, conn_id).uri
