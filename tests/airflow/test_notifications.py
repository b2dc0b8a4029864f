"""``DeltaNotifier`` in the callbacks of a real Airflow, with Airflow's own notifier for mails behind it."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from airflow.sdk.execution_time import task_runner

from airflow_delta import delta_transaction
from airflow_delta.exceptions import ConcurrentAppendException, DeltaIllegalArgumentException
from airflow_delta.notifications.delta import DeltaNotifier
from airflow_delta.notifications.events import delta_events
from airflow_delta.operators.stage import DeltaStageFilesOperator
from support.dag_runs import answer_when_asked
from support.mail import mail_server
from support.running_tasks import context
from support.table import Table
from support.watching import start

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("outside_of_the_task_runner")]

FIRST, SECOND, THIRD = (datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3))


@pytest.fixture
def mails(monkeypatch):
    with mail_server() as server:
        extra = {"disable_ssl": True, "disable_tls": True}
        connection = {"conn_type": "smtp", "host": "127.0.0.1", "port": server.port, "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", json.dumps(connection))
        yield server.messages


@pytest.fixture
def events(tables):
    """The events that a Dag has told about, newest last."""

    def read(dag_id: str) -> list[dict]:
        path = Path(tables) / f"{dag_id}.events"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    return read


def subject(mail) -> str:
    return " ".join(str(mail["Subject"]).split())


def body(mail) -> str:
    return mail.get_payload()[0].get_payload(decode=True).decode()


def test_a_conflict_names_table_version_other_run_rows_and_the_way_out(run_dag, tables, mails, events):
    uri = f"{tables}/notified_conflict"
    deltalake.write_deltalake(uri, pa.table({"id": pa.array([7], pa.int64())}))
    run = run_dag("notified_conflict")
    assert (run.state, run.state_of("txn.commit")) == ("failed", "failed")
    (event,) = events("notified_conflict")
    assert (event["kind"], event["table"], event["version"], event["num_records"]) == ("conflict", uri, 1, 3)
    assert (event["dag_id"], event["task_id"], event["read_version"]) == ("notified_conflict", "txn.commit", 0)
    assert event["commit_info"]["tags"]["airflow.dagId"] == "billing"
    assert event["transaction_id"] == run.xcom("txn.start")["transactionId"]
    (mail,) = mails
    assert subject(mail) == event["title"] == f"{event['exception']} on {uri}: the commit of txn.commit is refused"
    for part in (
        f"Dag notified_conflict, run {run.run_id}, task txn.commit",
        "Staged rows: 3; version 0 was read",
        "version 1 (WRITE), committed by Dag billing, run run_of_billing, task load",
        "What to do: start a new transaction",
        event["log_url"],
    ):
        assert part in body(mail)


@pytest.mark.slow
def test_rejected_audits_and_checks(run_dag, tables, mails, events):
    assert run_dag("notified_checks", FIRST, refuses="audit").state == "failed"
    assert run_dag("notified_checks", SECOND, refuses="check").state == "failed"
    audit, check = events("notified_checks")
    assert (audit["kind"], audit["task_id"], audit["checks"], audit["num_records"]) == ("rejected", "txn.audit", ["min_rows"], 3)
    assert "3 rows staged, at least 99 wanted" in audit["reason"]
    assert "Clear the start task" in audit["reason"]
    assert (check["kind"], check["task_id"], check["exception"], check["num_records"]) == (
        "rejected",
        "txn.check",
        "ValueError",
        3,
    )
    assert check["table"] == f"{tables}/notified_checks"
    assert "ValueError: no orders & no <rows>\nWhat to do: clear the start task" in check["reason"]
    # The notifier of the Dag file was called twice: each mail has its own text.
    assert [subject(mail) for mail in mails] == [audit["title"], check["title"]]
    assert "no orders &amp; no &lt;rows&gt;" in body(mails[1])


def test_what_succeeds_and_what_is_not_part_of_it_is_not_told(run_dag, mails, events):
    before = len(events("notified_checks"))
    run = run_dag("notified_checks", THIRD, refuses="nobody")
    assert (run.state_of("txn.commit"), run.state_of("after")) == ("success", "failed")
    assert len(events("notified_checks")) == before
    assert mails == []


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["Reject", "Approve", None])
def test_a_rejected_approval_names_who_rejected(run_dag, mails, events, choice):
    """``None``: nobody answers in time."""
    day = {"Reject": FIRST, "Approve": SECOND, None: THIRD}[choice]
    before = len(events("notified_approval"))
    with answer_when_asked("notified_approval", choice, by="ada"):
        run = run_dag("notified_approval", day)
    told = events("notified_approval")[before:]
    assert run.state_of("txn.commit") == {"Reject": "skipped", "Approve": "success", None: "upstream_failed"}[choice]
    if choice == "Approve":
        assert (told, mails) == ([], [])
        return
    (event,) = told
    assert (event["kind"], event["task_id"], event["num_records"]) == ("rejected", "txn.approve", 3)
    said = {"Reject": "'Publish?' was rejected by ada.\nWhat to do", None: "Nobody answered 'Publish?' in time.\nWhat to do"}
    assert said[choice] in event["reason"]
    assert event["rejected_by"] == ("ada" if choice else None)
    assert subject(mails[0]) == event["title"]


def test_abandoned_transactions(run_dag, tables, mails, events):
    found = {}
    for name in "ab":
        path = Path(tables) / f"given_up_{name}"
        deltalake.write_deltalake(path, pa.table({"id": pa.array([7], pa.int64())}))
        table = Table(path)
        found[name] = table.begin().transaction_id
        handle_path = path / "staged" / found[name] / "rows"
        handle_path.mkdir(parents=True)
        (handle_path / "part-0.parquet").write_bytes(b"1234")
    time.sleep(0.05)
    assert run_dag("notified_vacuum", FIRST).state == "success"
    told = sorted(events("notified_vacuum"), key=lambda event: event["task_id"])
    assert [(event["kind"], event["task_id"], event["table"]) for event in told] == [
        ("abandoned", name, f"{tables}/given_up_{name}") for name in "ab"
    ]
    for event, name in zip(told, "ab", strict=True):
        (transaction,) = event["transactions"]
        assert (transaction["transactionId"], transaction["numFiles"], transaction["stages"]) == (found[name], 1, ["rows"])
        assert f"- {found[name]}: 1 files, 4 bytes of rows, last written at 20" in event["message"]
    assert sorted(subject(mail) for mail in mails) == [event["title"] for event in told]
    assert run_dag("notified_vacuum", SECOND).state == "success"
    assert len(events("notified_vacuum")) == 2


# -- without a run --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("notifiers", "more", "why"),
    [
        ([], {}, "sends nothing itself"),
        ("#channel", {}, "sends nothing itself"),
        (print, {"events": ["conflicts"]}, "must be some of conflict, rejected, failed, abandoned, got 'conflicts'"),
    ],
)
def test_a_wrong_notifier_is_refused_in_the_dag_file(notifiers, more, why):
    with pytest.raises(DeltaIllegalArgumentException, match=why):
        DeltaNotifier(notifiers, **more)


def with_error(operator, error: BaseException | None = None) -> dict:
    return context(operator, exception=error)


def test_only_the_wanted_kinds(tmp_path):
    from airflow_delta.operators.transaction import DeltaCommitOperator

    handle = start(str(tmp_path / "table"))
    given = with_error(DeltaCommitOperator(task_id="c", transaction=handle, staged=[]), ConcurrentAppendException("m"))
    told: list[str] = []
    DeltaNotifier(lambda told_of: told.append(told_of["delta_event"]["kind"]), events="rejected").notify(given)
    assert told == []
    DeltaNotifier(lambda told_of: told.append(told_of["delta_event"]["kind"])).notify(given)
    assert told == ["conflict"]


def test_a_conflict_among_several_errors_and_unreadable_reports(tmp_path):
    """What a task cannot say is left out: the message comes anyway."""
    from airflow_delta.operators.transaction import DeltaCommitOperator

    handle = start(str(tmp_path / "table"))
    caused = RuntimeError("wrapped")
    caused.__cause__ = ConcurrentAppendException("lost", table="file:///t", winning_version=4)
    group = ExceptionGroup("two", [ValueError("x"), caused])
    operator = DeltaCommitOperator(task_id="c", transaction=handle, staged="not rendered")
    (event,) = delta_events(with_error(operator, group))
    assert (event["kind"], event["table"], event["version"], event["num_records"]) == ("conflict", "file:///t", 4, None)
    assert event["transaction_id"] == handle["transactionId"]


@pytest.mark.parametrize(("version", "said"), [(3, "version 3 was read"), (-1, "the table did not exist")])
def test_the_table_that_a_transaction_began_on(version, said):
    from airflow_delta.operators.transaction import DeltaCommitOperator

    handle = {"transactionId": "t", "table": "/lake/t", "readVersion": version}
    report = {"transactionId": "t", "numRecords": 5}
    operator = DeltaCommitOperator(task_id="c", transaction=handle, staged=[report])
    (event,) = delta_events(with_error(operator, ConcurrentAppendException("lost", table="/lake/t", winning_version=4)))
    assert f"Staged rows: 5; {said}\n" in event["message"]
    assert event["read_version"] == version


def test_credentials_do_not_leave(tmp_path):
    from airflow_delta.operators.transaction import DeltaCommitOperator

    operator = DeltaCommitOperator(task_id="c", transaction={}, staged=[])
    error = ConcurrentAppendException("files of s3://key:secret@lake/t were added", table="s3://key:secret@lake/t")
    (event,) = delta_events(with_error(operator, error))
    assert "secret" not in json.dumps(event)


HANDLE = {"table": "s3://lake/t", "transactionId": "x", "readVersion": 4}
REPORT = {"transactionId": "x", "numRecords": 3}


def of_task(task_id: str, error: BaseException | str | None) -> list[dict]:
    """What is told about a task of a Dag with one transaction."""
    with DAG("d", schedule=None) as dag:
        with delta_transaction("t", table="/lake/t") as txn:
            stage = DeltaStageFilesOperator(task_id="stage", path="rows")
            EmptyOperator(task_id="before") >> stage >> EmptyOperator(task_id="check")
        EmptyOperator(task_id="earlier") >> txn.start
        txn.commit >> EmptyOperator(task_id="after")
    txn.commit.staged = [REPORT]  # as rendered
    for name, value in {"t.start": HANDLE, "t.stage": REPORT}.items():
        task_runner.SUPERVISOR_COMMS.xcoms["a_run", name, -1, "return_value"] = value
    return list(delta_events(context(dag.get_task(task_id), exception=error)))


@pytest.mark.parametrize(
    ("task_id", "kinds"),
    [
        ("t.start", ["failed"]),
        ("t.before", ["failed"]),
        ("t.stage", ["failed"]),
        ("t.check", ["rejected"]),
        ("t.commit", ["failed"]),
        ("t.abort", []),
        ("earlier", []),
        ("after", []),
    ],
)
def test_which_tasks_keep_a_transaction_from_being_published(task_id, kinds):
    assert [event["kind"] for event in of_task(task_id, ValueError("no"))] == kinds
    assert of_task(task_id, None) == [], "a success"


def test_a_failed_stage_says_why_in_a_line():
    (event,) = of_task("t.stage", RuntimeError("\n[PATH_NOT_FOUND] no such path\n  at org.apache.spark"))
    assert event["title"] == "t.stage failed before the commit to s3://lake/t: nothing is published"
    assert event["reason"].splitlines() == [
        "RuntimeError: [PATH_NOT_FOUND] no such path",
        "What to do: clear the start task with everything after it, which stages the rows again in a new transaction.",
    ]
    assert (event["exception"], event["transaction_id"], event["read_version"]) == ("RuntimeError", "x", 4)
    (event,) = of_task("t.before", "killed")  # Airflow's Dag processor tells of a task that was killed
    assert event["reason"].startswith("killed\n")


def test_a_failed_commit_may_have_published():
    (event,) = of_task("t.commit", RuntimeError("a hook failed"))
    assert (event["title"], event["num_records"]) == ("The commit of t.commit to s3://lake/t failed", 3)
    assert event["reason"] == "RuntimeError: a hook failed"


@pytest.mark.parametrize("given", [{}, {"dag": object(), "run_id": "r", "reason": "task_failure"}])
def test_callbacks_of_a_dag_have_nothing_to_tell(given):
    DeltaNotifier(lambda _context: pytest.fail("told")).notify(given)
