"""Tables that a transaction of several tasks creates in the catalog: reserved by the start task, made by the commit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG, task

from airflow_delta import delta_publication, delta_transaction
from airflow_delta.catalog import committer
from airflow_delta.catalog import open as opening
from airflow_delta.catalog.answers import StagingTable
from airflow_delta.catalog.client import UnityCatalogClient
from airflow_delta.contract.catalog_names import TableName
from airflow_delta.exceptions import (
    CatalogConflictException,
    CatalogNotFoundException,
    CommitStateUnknownException,
    DeltaIllegalStateException,
    DeltaTableNotFoundException,
    DeltaUnsupportedOperationException,
    HandleMismatchException,
)
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.operators.create import DeltaCreateTableOperator
from airflow_delta.operators.transaction import DeltaAbortOperator, DeltaCommitOperator, DeltaStartTransactionOperator
from airflow_delta.testing import killed_at
from catalog.unity import SCHEMA, CatalogTable, UnityCatalogServer, append, create, open_log
from stores.proxy import FaultProxy, Rule
from support.one_by_one import World

DAGS = Path(__file__).parent / "dags" / "catalog_dags.py"
ROWS = [(1, "a"), (2, "b")]
CREATE = {"method": "POST", "target": "/tables$"}


@pytest.fixture(autouse=True)
def _alone(request: pytest.FixtureRequest) -> None:
    if "run_dag" not in request.fixturenames:
        request.getfixturevalue("outside_of_the_task_runner")


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let the connection ``unity`` lead to a server."""

    def to(url: str) -> None:
        given = {"conn_type": "delta_unity_catalog", "host": url, "password": "a-token"}
        monkeypatch.setenv("AIRFLOW_CONN_UNITY", json.dumps(given))

    return to


@pytest.fixture
def new(unity: UnityCatalogServer, name: str, connect: Callable[[str], None]) -> CatalogTable:
    """A table that does not exist, and the connection to its catalog."""
    connect(unity.url)
    return CatalogTable(unity, name, unity.url)


@pytest.fixture
def reserves_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several reservations of one name, as Unity Catalog's own server makes them; this one makes one."""
    numbers = iter(range(1000))

    def stage(client: UnityCatalogClient, name: TableName) -> StagingTable:
        path = f"/catalogs/{name.catalog}/schemas/{name.schema}/staging-tables"
        return client._post(path, {"name": f"{name.table}_{next(numbers)}"}, StagingTable, about=f"{name}", repeat=False)

    monkeypatch.setattr(UnityCatalogClient, "stage_table", stage)


class Transaction(World):
    """A run of a transaction on a table of the catalog, with one stage."""

    def __init__(self, table: CatalogTable, run: str = "a_run", **start: Any) -> None:
        self.run_id = run
        self.rows = ROWS
        with DAG("a_dag", schedule=None) as self.dag:
            self.start = DeltaStartTransactionOperator(task_id="start", table=table.name, delta_conn_id="unity", **start)

            @task.delta_stage(engine="arrow", task_id="stage", transaction=self.start.output)
            def stage() -> pa.Table:
                ids, names = zip(*self.rows, strict=True)
                return pa.table({"id": pa.array(ids, pa.int64()), "name": list(names)})

            output = stage()
            self.stage = output.operator
            self.commit = DeltaCommitOperator(task_id="commit", transaction=self.start.output, staged=output)
            self.abort = DeltaAbortOperator(task_id="abort", transaction=self.start.output)

    def staged(self, handle: dict[str, Any], rows: list[tuple[int, str]] | None = None) -> Any:
        self.rows = rows or ROWS
        return self.run(self.stage, transaction=handle)

    def commits(self, handle: dict[str, Any], staged: Any) -> Any:
        return self.run(self.commit, transaction=handle, staged=staged)

    def aborts(self, handle: dict[str, Any]) -> Any:
        return self.run(self.abort, transaction=handle)


def place(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))


def rows_of(table: CatalogTable) -> list[tuple[int, str]]:
    found = DeltaHook("unity").get_df(table.name).to_pylist()
    return sorted((row["id"], row["name"]) for row in found)


def no_table(table: CatalogTable) -> bool:
    with pytest.raises(DeltaTableNotFoundException):
        open_log(table.server.url, table.name)
    return True


class DiesError(BaseException):
    """The process is gone."""


def dies(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object], *, after: bool) -> None:
    """Do something, and end right before or after the request that makes the table."""
    real = UnityCatalogClient.create_table

    def create_table(*given: Any) -> Any:
        if after:
            real(*given)
        raise DiesError

    with monkeypatch.context() as patched:
        patched.setattr(UnityCatalogClient, "create_table", create_table)
        with pytest.raises(DiesError):
            work()


# -- made ---------------------------------------------------------------------------------------------------------------------

MAPPED = {"delta.columnMapping.mode": "name"}
FEATURES = {f"delta.enable{name}": "true" for name in ("DeletionVectors", "ChangeDataFeed", "RowTracking")}


@pytest.mark.parametrize(
    "start",
    [
        {},
        {"schema": SCHEMA, "description": "all orders"},
        {"schema": SCHEMA, "properties": MAPPED},
        {"properties": MAPPED},
        {"schema": SCHEMA, "properties": FEATURES},
        {"properties": {"delta.checkpointPolicy": "v2", "delta.setTransactionRetentionDuration": None}},
    ],
    ids=["by the stage", "given", "mapped", "mapped by the stage", "features", "required ones given"],
)
def test_the_commit_makes_the_table(new: CatalogTable, start: dict[str, Any]) -> None:
    run = Transaction(new, **start)
    handle = run.begin()
    assert no_table(new)
    staged = run.staged(handle)
    assert no_table(new)
    result = run.commits(handle, staged)

    assert result["version"] == 0
    assert rows_of(new) == ROWS
    known = new.known.metadata
    assert known.location == handle["table"]
    assert known.table_uuid == handle["configuration"]["io.unitycatalog.tableId"]
    log = open_log(new.url, new.name).update()
    assert log.metadata.configuration["delta.checkpointPolicy"] == "v2"
    assert "catalogManaged" in (log.protocol.writer_features or ())
    assert all(log.metadata.configuration.get(key) == value for key, value in (start.get("properties") or {}).items())
    assert append(new.log, [(3, "c")]) == 1


def test_who_runs_again_after_the_commit_finds_it(new: CatalogTable) -> None:
    run = Transaction(new)
    handle = run.begin()
    staged = run.staged(handle)
    first = run.commits(handle, staged)
    again = run.commits(handle, staged)
    assert (again["version"], again["transactionId"]) == (0, first["transactionId"])
    assert run.aborts(handle)["outcome"] == "committed"
    assert run.begin()["committed"]["version"] == 0
    assert Transaction(new, "another").begin()["readVersion"] == 0
    assert rows_of(new) == ROWS


def test_a_definition_among_the_stages_makes_it(new: CatalogTable) -> None:
    run = Transaction(new)
    with run.dag:
        definition = DeltaCreateTableOperator(task_id="define", transaction=run.start.output, schema="id BIGINT, name STRING")
    handle = run.begin()
    defined = run.run(definition, transaction=handle)
    run.states, run.commit.allow_skipped = {"define": "success", "stage": "skipped"}, True
    assert run.commits(handle, defined)["version"] == 0
    assert rows_of(new) == []


# -- reserved once ------------------------------------------------------------------------------------------------------------


def test_the_start_task_finds_its_reservation_again(new: CatalogTable, caplog: pytest.LogCaptureFixture) -> None:
    run = Transaction(new)
    first, again = run.begin(), run.begin()
    assert first["table"] == again["table"]
    assert first["transactionId"] != again["transactionId"]
    assert run.commits(again, run.staged(again))["version"] == 0


def test_of_a_name_that_another_run_has_reserved_the_error_says_so(new: CatalogTable) -> None:
    Transaction(new, "one").begin()
    with pytest.raises(CatalogConflictException, match="another task has reserved the name"):
        Transaction(new, "two").begin()


@pytest.mark.parametrize("fault", ["lost", "status_after"])
def test_a_reservation_that_nobody_was_told_of_is_made_anew(
    new: CatalogTable, proxied: FaultProxy, connect: Callable[[str], None], reserves_again: None, fault: str
) -> None:
    connect(proxied.url)
    proxied.set(Rule(fault, method="POST", target="/staging-tables$"))
    run = Transaction(new)
    with pytest.raises(OSError, match="answer"):
        run.begin()
    handle = run.begin()
    proxied.set()
    assert run.commits(handle, run.staged(handle))["version"] == 0


def test_create_false_reserves_nothing(new: CatalogTable) -> None:
    with pytest.raises(DeltaTableNotFoundException):
        Transaction(new, create=False).begin()
    assert Transaction(new).begin()["readVersion"] == -1, "the name was not reserved"


def test_a_publication_reserves_nothing(new: CatalogTable) -> None:
    with DAG("a_dag", schedule=None) as dag, delta_publication("all"):
        for group, name in (("one", new.name), ("two", f"{new.name}x")):
            with delta_transaction(group, table=name, delta_conn_id="unity"):

                @task.delta_stage(engine="arrow")
                def rows() -> Any:
                    return pa.table({"id": [1]})

                rows()
    run = Transaction(new)
    run.dag = dag
    with pytest.raises(DeltaTableNotFoundException):
        run.run(dag.task_dict["all.one.start"])


# -- killed, lost, aborted ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [False, True], ids=["before the request", "after it"])
def test_a_commit_that_dies_and_runs_again_makes_one_table(
    new: CatalogTable, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    run = Transaction(new)
    handle = run.begin()
    staged = run.staged(handle)
    dies(monkeypatch, lambda: run.commits(handle, staged), after=after)
    assert after or no_table(new)
    first = (place(handle["table"]) / "_delta_log" / f"{0:020d}.json").read_bytes()

    assert run.commits(handle, staged)["version"] == 0

    assert (place(handle["table"]) / "_delta_log" / f"{0:020d}.json").read_bytes() == first
    assert rows_of(new) == ROWS
    assert new.known.latest_table_version == 0


@pytest.mark.parametrize("fault", ["lost", "status_after", "reset", "status"])
def test_an_answer_that_is_lost_is_found(
    new: CatalogTable, proxied: FaultProxy, connect: Callable[[str], None], fault: str
) -> None:
    connect(proxied.url)
    run = Transaction(new)
    handle = run.begin()
    staged = run.staged(handle)
    proxied.set(Rule(fault, **CREATE, status=500))
    assert run.commits(handle, staged)["version"] == 0
    assert proxied.faults == [1]
    proxied.set()
    assert rows_of(new) == ROWS


def test_a_catalog_that_is_gone_leaves_it_unknown_and_a_retry_settles_it(
    new: CatalogTable, proxied: FaultProxy, connect: Callable[[str], None]
) -> None:
    connect(proxied.url)
    run = Transaction(new)
    handle = run.begin()
    staged = run.staged(handle)
    proxied.set(
        Rule("lost", **CREATE),
        Rule("status", **CREATE, times=None, status=503),
        Rule("status", method="GET", target=f"/tables/{new.name.split('.')[-1]}$", skip=1, times=None, status=503),
    )
    with pytest.raises(CommitStateUnknownException):
        run.commits(handle, staged)
    proxied.set()
    assert run.aborts(handle)["outcome"] == "committed"
    assert run.commits(handle, staged)["version"] == 0
    assert rows_of(new) == ROWS


def test_an_abort_deletes_what_was_staged_and_leaves_the_reservation(new: CatalogTable) -> None:
    run = Transaction(new)
    handle = run.begin()
    staged = run.staged(handle)
    assert run.aborts(handle)["outcome"] == "deleted"
    assert not list(place(handle["table"]).rglob("*.parquet"))
    assert no_table(new)
    with pytest.raises(Exception, match="aborted"):
        run.commits(handle, staged)
    again = run.begin()
    assert again["table"] == handle["table"]
    assert run.commits(again, run.staged(again))["version"] == 0


def test_an_abort_after_a_commit_that_died_deletes_nothing(
    new: CatalogTable, monkeypatch: pytest.MonkeyPatch, reserves_again: None
) -> None:
    run = Transaction(new)
    handle = run.begin()
    staged = run.staged(handle)
    dies(monkeypatch, lambda: run.commits(handle, staged), after=False)
    assert run.aborts(handle)["outcome"] == "marked"
    assert list(place(handle["table"]).rglob("*.parquet"))
    with pytest.raises(Exception, match="aborted"):
        run.commits(handle, staged)
    again = run.begin()
    assert again["table"] != handle["table"], "a first version is there that may still become one"
    assert run.commits(again, run.staged(again))["version"] == 0
    assert rows_of(new) == ROWS


def test_rows_of_a_stage_that_ran_again_are_not_taken_for_committed(
    new: CatalogTable, monkeypatch: pytest.MonkeyPatch, reserves_again: None
) -> None:
    run = Transaction(new)
    handle = run.begin()
    dies(monkeypatch, lambda: run.commits(handle, run.staged(handle)), after=False)
    with pytest.raises(DeltaIllegalStateException, match="Clear the start task"):
        run.commits(handle, run.staged(handle, [(7, "later")]))
    assert no_table(new)
    again = run.begin()
    assert run.commits(again, run.staged(again, [(7, "later")]))["version"] == 0
    assert rows_of(new) == [(7, "later")]


# -- two at once --------------------------------------------------------------------------------------------------------------


def test_of_two_runs_that_create_a_table_one_does(new: CatalogTable, reserves_again: None) -> None:
    one, two = Transaction(new, "one"), Transaction(new, "two")
    first, second = one.begin(), two.begin()
    assert first["table"] != second["table"]
    staged, others = one.staged(first), two.staged(second, [(9, "z")])
    assert one.commits(first, staged)["version"] == 0
    for late in (lambda: two.commits(second, others), lambda: two.staged(second)):
        with pytest.raises(CatalogConflictException, match="another table's by now"):
            late()
    assert two.aborts(second)["outcome"] == "deleted"
    assert not list(place(second["table"]).rglob("*.parquet"))
    assert rows_of(new) == ROWS
    again = two.begin()
    assert (again["table"], again["readVersion"]) == (first["table"], 0)
    assert two.commits(again, two.staged(again, [(9, "z")]))["version"] == 1
    assert rows_of(new) == [*ROWS, (9, "z")]


def test_of_two_commits_at_once_one_makes_the_table(
    new: CatalogTable, reserves_again: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = Transaction(new, "one"), Transaction(new, "two")
    first, second = one.begin(), two.begin()
    staged, others = one.staged(first), two.staged(second, [(9, "z")])
    real = UnityCatalogClient.create_table

    def slow(*given: Any) -> Any:
        monkeypatch.setattr(UnityCatalogClient, "create_table", real)
        assert one.commits(first, staged)["version"] == 0
        return real(*given)

    monkeypatch.setattr(UnityCatalogClient, "create_table", slow)
    with pytest.raises(CatalogConflictException, match="another table's by now"):
        two.commits(second, others)
    assert two.aborts(second)["outcome"] == "deleted"
    assert rows_of(new) == ROWS


def test_of_two_transactions_of_one_run_at_one_reservation_one_makes_the_table(
    new: CatalogTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Transaction(new)
    first, second = run.begin(), run.begin()
    staged, others = run.staged(first), run.staged(second, [(9, "z")])
    dies(monkeypatch, lambda: run.commits(first, staged), after=False)
    with pytest.raises(CatalogConflictException, match="Another transaction"):
        run.commits(second, others)
    assert no_table(new)
    assert run.commits(first, staged)["version"] == 0
    assert run.commits(second, others)["transactionId"] == first["transactionId"], "the key is committed"
    assert rows_of(new) == ROWS


def test_a_commit_that_comes_back_late_does_not_replace_the_table(new: CatalogTable, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Transaction(new, rerun_policy="append")
    first, second = run.begin(), run.begin()
    staged, others = run.staged(first), run.staged(second, [(9, "z")])
    real = committer.create_in_catalog

    def late(*given: Any) -> Any:
        monkeypatch.setattr(committer, "create_in_catalog", real)
        assert run.commits(second, others)["version"] == 0
        append(new.log, [(10, "y")])
        return real(*given)

    monkeypatch.setattr(committer, "create_in_catalog", late)
    with pytest.raises(Exception, match=r"(?i)concurrent|metadata|protocol"):
        run.commits(first, staged)
    assert rows_of(new) == [(9, "z"), (10, "y")]


# -- what the XCom says -------------------------------------------------------------------------------------------------------


def forged(handle: dict[str, Any], *, table: str | None = None, **properties: str | None) -> dict[str, Any]:
    configuration = {key: value for key, value in {**handle["configuration"], **properties}.items() if value is not None}
    found = {**handle, "configuration": configuration}
    if table is not None:
        found |= {"table": table, "stagingPath": handle["stagingPath"].replace(handle["table"], table)}
    return found


def refuses(run: Transaction, handle: dict[str, Any], *errors: type[Exception]) -> None:
    for work in (run.stage, run.commit, run.abort):
        more = {"staged": []} if work is run.commit else {}
        with pytest.raises(errors):
            run.run(work, transaction=handle, **more)


def test_an_id_and_a_location_that_do_not_belong_together_are_refused(new: CatalogTable, name: str) -> None:
    other = Transaction(CatalogTable(new.server, f"{name}x", new.url), "other").begin()
    made = create(new.url, f"{name}y")
    run = Transaction(new)
    handle = run.begin()
    uuid = "io.unitycatalog.tableId"
    for claim in (
        forged(handle, table=other["table"]),
        forged(handle, table=made.uri),
        forged(handle, **{uuid: other["configuration"][uuid]}),
        forged(handle, **{uuid: made.store.versions.table_uuid}),  # type: ignore[attr-defined]
        forged(handle, table=made.uri, **{uuid: made.store.versions.table_uuid}),  # type: ignore[attr-defined]
        forged(handle, **{uuid: "../x"}),
        forged(handle, **{uuid: None}),
    ):
        refuses(run, claim, CatalogNotFoundException, HandleMismatchException, DeltaTableNotFoundException)
    assert not list(place(made.uri).rglob("staged"))
    assert run.commits(handle, run.staged(handle))["version"] == 0


def test_properties_that_neither_the_dag_nor_the_catalog_asks_for_are_refused(new: CatalogTable) -> None:
    run = Transaction(new, properties={"delta.enableDeletionVectors": "false"})
    handle = run.begin()
    for change in (
        {"delta.appendOnly": "true"},
        {"delta.checkpointPolicy": "classic"},
        {"delta.enableDeletionVectors": "true"},
        {"delta.feature.appendOnly": "supported"},
        {"delta.logRetentionDuration": "interval 0 days"},
    ):
        refuses(run, forged(handle, **change), HandleMismatchException)
    assert run.commits(handle, run.staged(handle))["version"] == 0


def test_what_the_catalog_requires_and_tasks_cannot_check_is_refused(new: CatalogTable, monkeypatch: pytest.MonkeyPatch) -> None:
    real = opening.required_properties
    monkeypatch.setattr(opening, "required_properties", lambda staging: {**real(staging), "delta.appendOnly": "true"})
    with pytest.raises(DeltaUnsupportedOperationException, match=r"delta\.appendOnly.*DeltaCreateTableOperator"):
        Transaction(new).begin()


# -- in Airflow ---------------------------------------------------------------------------------------------------------------


@pytest.mark.airflow
@pytest.mark.parametrize(
    ("dag", "killed"),
    [
        ("catalog_new", ("before result", "load.start")),
        ("catalog_new", ("before result", "load.first")),
        ("catalog_new", ("after log entry", "load.commit")),
        ("catalog_new", ("before result", "load.commit")),
        ("catalog_new_by_spark", None),
    ],
)
def test_a_dag_makes_one_table_whichever_task_is_killed(
    new: CatalogTable, run_dag: Any, monkeypatch: pytest.MonkeyPatch, dag: str, killed: tuple[str, str] | None
) -> None:
    monkeypatch.setenv("CATALOG_TABLE", new.name)
    run = run_dag(DAGS, dag, kill=killed_at(*killed) if killed else None)
    assert run.state == "success", run.log[-4000:]
    assert new.known.latest_table_version == 0
    assert sorted(DeltaHook("unity").get_df(new.name).column("id").to_pylist()) == [1, 2, 3]
