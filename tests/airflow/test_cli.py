"""``airflow delta``: the real command line in processes of its own, on tables that transactions wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from airflow_delta.contract.check_records import CheckRecord, check_records, checks_text
from airflow_delta.contract.tags import CHECKS_TAG
from support import readers
from support.table import Table, put_rows

ROOT = Path(__file__).parents[2]
DAY = 24 * 3600


# -- without a process of its own ---------------------------------------------------------------------------------------------


def heavy_modules_after(code: str) -> list[str]:
    code = f"{code}\nimport sys\nprint(*(m for m in ('pyspark', 'py4j', 'pyarrow', 'sqlglot', 'obstore') if m in sys.modules))"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "provider"), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.split()


def test_what_every_airflow_command_imports_is_only_the_definition():
    code = "import sys, airflow_delta.cli.definition\nassert 'airflow_delta.cli.commands' not in sys.modules"
    assert heavy_modules_after(f"{code}\nassert 'airflow_delta.hooks.delta' not in sys.modules") == []
    assert heavy_modules_after("import airflow_delta.cli.commands") == []


def test_the_documentation_names_every_command_and_option():
    from airflow_delta.cli.definition import get_delta_cli_commands

    text = (ROOT / "docs/cli.md").read_text()
    (group,) = get_delta_cli_commands()
    for command in group.subcommands:
        assert f"airflow delta {command.name}" in text
        for argument in command.args:
            assert f"`{argument.flags[-1]}" in text or argument.kwargs.get("metavar", "-") in text, argument.flags


def test_the_documentation_names_every_field(tmp_path):
    from dataclasses import fields

    from deltalake import write_deltalake

    from airflow_delta.hooks.delta import DeltaHook
    from airflow_delta.table.abort import AbortResult
    from airflow_delta.table.effects.diff import published_diff
    from airflow_delta.table.effects.report import diff_to_dict
    from airflow_delta.table.observe.commit_summary import recent_commits
    from airflow_delta.table.observe.describe import describe
    from airflow_delta.table.operations.vacuum.run import vacuum
    from airflow_delta.table.state.open_transactions import TransactionState

    text = (ROOT / "docs/cli.md").read_text()
    documented = {line.split("`")[1]: line for line in text.partition("\n## JSON\n")[2].splitlines() if line.startswith("| `")}
    write_deltalake(tmp_path, pa.table({"id": [1]}))
    log = DeltaHook().get_log(str(tmp_path))
    found = {
        "history": recent_commits(log, 1)[0].to_dict(),
        "diff": diff_to_dict(published_diff(log, None, keys=[], sample=1, limit=1)),
        "describe": describe(log),
        "transactions": [field.name for field in fields(TransactionState)],
        "abort": [field.name for field in fields(AbortResult) if field.name != "contract"],
        "vacuum": [field.name for field in fields(vacuum(log))],
    }
    assert {(name, field) for name, given in found.items() for field in given if f"`{field}`" not in documented[name]} == set()


def test_the_provider_names_the_commands():
    from airflow_delta.get_provider_info import get_provider_info

    assert get_provider_info()["cli"] == ["airflow_delta.cli.definition.get_delta_cli_commands"]


@pytest.mark.parametrize(
    ("num_bytes", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB"), (1 << 62, "4096.0 PiB"), (None, "")],
)
def test_sizes_are_readable(num_bytes, shown):
    from airflow_delta.cli.output import size

    assert size(num_bytes) == shown


@pytest.mark.parametrize(("milliseconds", "shown"), [(-5, "0 s"), (59_999, "59 s"), (60_000, "1 min"), (90 * 60_000, "1 h")])
def test_durations_are_readable(milliseconds, shown):
    from airflow_delta.cli.output import span

    assert span(milliseconds) == shown


ROWS = [
    {"id": "d22946be-ab51-4f3a-9440-90d65a7d79e5", "state": "open", "files": 7, "path": "part[0]/:100:/" + "x" * 60, "n": None},
    {"id": "52fab94f-ccd1-4375-975c-8b678ac4857b", "state": "[bold]", "files": 0, "path": "", "n": True},
]


@pytest.mark.parametrize(("columns", "wide"), [("80", False), ("200", True)])
def test_a_table_fits_the_terminal_and_breaks_no_id(monkeypatch, capsys, columns, wide):
    from airflow.cli import simple_table

    from airflow_delta.cli.output import print_rows

    monkeypatch.setattr(simple_table, "is_tty", lambda: True)
    for name, value in {"COLUMNS": columns, "NO_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
    print_rows(ROWS, "table", fold=("path",), only_wide=("files",))
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= int(columns)
    assert all(row["id"] in out for row in ROWS)
    assert "[bold]" in out
    assert ("files" in out.splitlines()[0]) is wide


def test_plain_output_has_all_columns_and_nothing_else(capsys):
    from airflow_delta.cli.output import print_rows

    print_rows(ROWS, "plain", fold=("path",), only_wide=("files",))
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split() == ["id", "state", "files", "path", "n"]
    assert first.split()[:3] == [ROWS[0]["id"], "open", "7"]
    assert second.split() == [ROWS[1]["id"], "[bold]", "0", "yes"]


@pytest.mark.parametrize("output", ["table", "plain"])
def test_what_a_writer_put_into_the_log_does_not_drive_the_terminal(capsys, output):
    from airflow_delta.cli.output import print_line, print_rows

    print_rows([{"operation": "WRITE\x1b]0;owned\x07", "by": "Zo\u00eb\u202eevil"}], output)
    print_line("part-\x1b[2J.parquet")
    out = capsys.readouterr().out
    assert not set("\x1b\x07\u202e") & set(out)
    assert "\\x1b]0;owned" in out
    assert "Zo\u00eb" in out
    assert "part-\\x1b[2J.parquet" in out


def test_an_error_keeps_the_secrets_of_the_connection(monkeypatch):
    from argparse import Namespace

    from airflow.sdk.log import mask_secret

    from airflow_delta.cli import commands

    mask_secret("a-key-that-is-secret")

    def refused(args: Namespace) -> None:
        raise OSError("refused: key=a-key-that-is-secret")

    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "")  # set by the command
    with pytest.raises(SystemExit) as raised:
        commands.command()(refused)(Namespace(verbose=False))
    assert "a-key-that" not in str(raised.value)
    assert "refused" in str(raised.value)


# -- the real command line: seconds for each call -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


@dataclass(frozen=True)
class Lake:
    """A directory of tables, and an Airflow that reaches it by the connection ``lake`` and has no migrated database."""

    path: Path
    env: dict[str, str]

    def airflow(self, *args: str, answer: str = "", group: str = "delta", **env: str) -> Done:
        """Run a command of ``airflow delta``, or of another group."""
        done = subprocess.run(
            [sys.executable, "-m", "airflow", group, *args],
            env={**self.env, **env},
            input=answer,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def table(self, name: str) -> Table:
        return Table(self.path / name)


def stage(table: Table, handle, *, old: float = 0):
    """Any job that writes Parquet under the staging path.

    :param old: age of the file in seconds.
    """
    file = put_rows(handle, [1, 2])
    os.utime(file, (time.time() - old, time.time() - old))
    return table.stage_files(handle, task_id="rows", path="rows")


@pytest.fixture(scope="module")
def lake(tmp_path_factory) -> Lake:
    home, path = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("lake")
    env = {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW_CONN_LAKE": json.dumps({"conn_type": "delta", "host": str(path)}),
        "PYTHONPATH": str(ROOT / "provider"),
        "PYTHONWARNINGS": "ignore",
    }
    lake = Lake(path, env)
    table = lake.table("orders")
    for number in range(3):
        handle = table.begin(transaction_key=f"orders/{number}")
        table.publish(handle, stage(table, handle), tags={"airflow.dagId": "orders", "airflow.runId": f"run-{number}"})
    return lake


@pytest.mark.slow
@pytest.mark.airflow
def test_history_in_every_output(lake):
    commits = lake.airflow("history", "orders", "--conn-id", "lake", "-o", "json").json
    assert [(one["version"], one["num_records"], one["tags"]["airflow.runId"]) for one in commits] == [
        (2, 2, "run-2"),
        (1, 2, "run-1"),
        (0, 2, "run-0"),
    ]
    assert isinstance(commits[0]["bytes_added"], int)
    shown = lake.airflow("history", str(lake.path / "orders"), "--limit", "1", "--before", "2").out
    assert [line.split(" | ")[0].strip() for line in shown.splitlines() if " | " in line] == ["version", "1"]
    assert "orders run-1" in shown


@pytest.mark.airflow
def test_history_shows_what_was_checked(lake):
    audit = CheckRecord(task_id="audit", kind="audit", result="warned", failed=("min_rows",), definition="ab" * 32, version=3)
    approval = CheckRecord(task_id="approve", kind="approval", approved_by="ada", chosen=("Approve",), stages=("load",))
    records = check_records({"load": "1-0a1b2c3d", "more": "1-4e5f6a7b"}, [approval, audit])
    table = lake.table("checked")
    for tags in ({}, {CHECKS_TAG: checks_text(records)}):
        handle = table.begin()
        table.publish(handle, stage(table, handle), tags=tags)
    shown = lake.airflow("history", "checked", "--conn-id", "lake", "--checks", "-o", "plain").out
    assert [line.split()[:4] for line in shown.splitlines()] == [
        ["commit", "task", "kind", "result"],
        ["1", "audit", "audit", "warned:"],
        ["1", "approve", "approval", "passed"],
        ["0", "none", "recorded"],
    ]
    assert "load 1-0a1b2c3d, more 1-4e5f6a7b" in shown
    assert "Approve by ada" in shown
    newest, first = lake.airflow("history", "checked", "--conn-id", "lake", "-o", "json").json
    assert (newest["checks"]["checks"][0]["failed"], first["checks"]) == (["min_rows"], None)


@pytest.mark.slow
@pytest.mark.airflow
def test_one_table_by_every_name(lake):
    found = [
        lake.airflow("describe", *name, "-o", "json").json
        for name in (("orders", "--conn-id", "lake"), ("delta://connection/lake/orders",), (f"delta://file{lake.path}/orders",))
    ]
    assert found[0] == found[1] == found[2]
    assert (found[0]["num_files"], found[0]["num_records"], found[0]["location"]) == (3, 6, str(lake.path / "orders"))


@pytest.mark.airflow
def test_describe_for_people(lake):
    shown = lake.airflow("describe", "orders", "--conn-id", "lake").out
    assert "num_files          | 3" in shown
    assert "id     | bigint | yes" in shown


@pytest.mark.slow
@pytest.mark.airflow
def test_transactions_and_aborting_one(lake):
    table = lake.table("staged")
    handle = table.begin()
    table.publish(handle, stage(table, handle))
    live, dead = table.begin(), table.begin()
    stage(table, live)
    stage(table, dead, old=8 * DAY)
    name = ("staged", "--conn-id", "lake")

    table.publish(handle := table.begin(), stage(table, handle), tags={"airflow.dagId": "d", "airflow.runId": "r"})
    everything = lake.airflow("transactions", *name, "-o", "json").json
    committed = next(one for one in everything if one["transaction_id"] == handle.transaction_id)
    assert (committed["dag_id"], committed["run_id"]) == ("d", "r")
    header, *lines = lake.airflow("transactions", *name, "-o", "plain").out.splitlines()
    assert header.split()[:4] == ["transaction", "state", "run", "version"]
    assert any("d r " in line and handle.transaction_id in line for line in lines)
    shown = lake.airflow("transactions", *name, "-o", "json", "--state", "open", "--state", "abandoned").json
    states = {one["transaction_id"]: one["state"] for one in shown}
    assert states == {live.transaction_id: "open", dead.transaction_id: "abandoned"}

    refused = lake.airflow("abort", *name, live.transaction_id, "--yes")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.strip().startswith(f"[DELTA_ILLEGAL_STATE] Transaction {live.transaction_id} on table {table.uri}")
    assert "Traceback" not in refused.err

    kept = lake.airflow("abort", *name, dead.transaction_id, answer="n\n")
    assert kept.code == 1
    assert "is abandoned: It has not changed for 8 days. Delete its staged files (1 files, " in kept.err
    assert "Cancelled" in kept.err
    gone = lake.airflow("abort", *name, dead.transaction_id, "-o", "json", answer="y\n")
    assert (gone.json["outcome"], gone.json["num_deleted_files"]) == ("deleted", 1)

    forced = lake.airflow("abort", *name, live.transaction_id, "--force", "--yes").out
    assert f"{live.transaction_id} | deleted" in forced
    assert len(readers.rows(table.path)) == 4


@pytest.mark.slow
@pytest.mark.airflow
def test_vacuum_says_what_it_would_delete_and_deletes_only_when_told_to(lake):
    table = lake.table("vacuumed")
    handle = table.begin()
    table.publish(handle, stage(table, handle))
    orphan = table.path / "orphan.parquet"
    orphan.write_bytes(b"12345")
    os.utime(orphan, (1, 1))
    name = ("vacuumed", "--conn-id", "lake")
    shown = lake.airflow("vacuum", *name).out
    assert "1 files" in shown
    assert "orphan.parquet" in shown
    assert "--no-dry-run deletes them" in shown
    assert orphan.exists()
    short = lake.airflow("vacuum", *name, "--retention-hours", "1")
    assert short.code == 1
    assert "--no-retention-check" in short.err
    done = lake.airflow("vacuum", *name, "--no-dry-run", "-o", "json").json
    assert (done["dry_run"], done["num_files"], done["num_bytes"], done["paths"]) == (False, 1, 5, ["orphan.parquet"])
    assert not orphan.exists()
    assert [one.operation for one in table.log().history(2)] == ["VACUUM END", "VACUUM START"]


@pytest.mark.airflow
def test_checkpoint(lake):
    table = lake.table("orders")
    assert lake.airflow("checkpoint", "orders", "--conn-id", "lake", "-o", "json").json == {
        "table": table.uri,
        "version": 2,
        "num_files": 3,
    }
    assert (table.path / "_delta_log" / f"{2:020}.checkpoint.parquet").exists()
    assert DeltaTable(table.path).version() == 2


@pytest.mark.airflow
def test_errors_are_one_message_and_a_traceback_only_when_asked_for(lake):
    missing = lake.airflow("history", "nothing", "--conn-id", "lake")
    assert (missing.code, missing.out) == (1, "")
    assert missing.err.strip() == (
        f"[DELTA_MISSING_DELTA_TABLE] There is no Delta table at {lake.path}/nothing. Check the location and the connection's "
        "base path."
    )
    verbose = lake.airflow("transactions", "nothing", "--conn-id", "lake", "-v")
    assert verbose.code == 1
    assert "Traceback" in verbose.err
    nowhere = lake.airflow("history", "orders", "--conn-id", "nowhere")
    assert nowhere.code == 1
    assert nowhere.err.startswith("There is no connection 'nowhere'. Add it")


def test_a_command_without_its_table_is_refused_by_the_parser(capsys):
    from airflow.cli import cli_parser

    with pytest.raises(SystemExit) as refused:
        cli_parser.get_parser().parse_args(["delta", "history"])
    assert refused.value.code == 2
    assert "required: table" in capsys.readouterr().err.lower()


@pytest.mark.slow
@pytest.mark.airflow
def test_a_connection_of_the_metadata_database_and_its_audit_log(lake, airflow_database):
    from airflow.models.log import Log
    from airflow.utils.session import create_session
    from sqlalchemy import select

    database = {name: os.environ[name] for name in ("AIRFLOW_HOME", "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN")}
    stored = ("add", "stored_lake", "--conn-type", "delta", "--conn-host", str(lake.path))
    assert lake.airflow(*stored, group="connections", **database).code == 0
    name = ("orders", "--conn-id", "stored_lake", "-o", "json")
    assert len(lake.airflow("history", *name, **database).json) == 3
    assert lake.airflow("checkpoint", *name, **database).json["num_files"] == 3
    with create_session() as session:
        events = [log.event for log in session.scalars(select(Log).where(Log.event.like("cli_delta_%")))]
    assert events == ["cli_delta_checkpoint"]  # looking at a table is no event


@pytest.mark.airflow
@pytest.mark.parametrize(
    ("given", "keys"),
    [
        (["--keys", "id", "day"], ["id", "day"]),
        (["--keys", "id,day"], ["id", "day"]),
        (["--keys", "id", "--keys", "day"], ["id", "day"]),
        (["--keys", "id, day", "a,b"], ["id", "day", "a,b"]),  # a column of that name
    ],
)
def test_keys_of_a_diff_in_every_form(tmp_path, capsys, given, keys):
    from airflow.cli import cli_parser
    from deltalake import write_deltalake

    row = pa.table({"id": pa.array([1]), "day": ["x"], "a,b": ["y"], "value": ["z"]})
    write_deltalake(tmp_path, row)
    write_deltalake(tmp_path, row.set_column(3, "value", [["w"]]), mode="overwrite")
    args = cli_parser.get_parser().parse_args(["delta", "diff", str(tmp_path), *given, "-o", "json"])
    args.func(args)
    found = json.loads(capsys.readouterr().out)
    assert (found["keys"], found["changed"]) == (keys, 1)


DATABASE = ("AIRFLOW_HOME", "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN")


@pytest.mark.slow
@pytest.mark.airflow
def test_an_open_transaction_is_told_with_its_run(lake, tables, run_dag):
    """Its files say nothing of it, nor does the log: Airflow's database has the start task that made its id."""
    run = run_dag("cut_short", table=f"{tables}/cut_short")
    database = {name: os.environ[name] for name in DATABASE}
    found = lake.airflow("transactions", f"{tables}/cut_short", "-o", "json", **database).json
    assert [(one["state"], one["dag_id"], one["run_id"]) for one in found] == [("open", "cut_short", run.run_id)]
    (unknown,) = lake.airflow("transactions", f"{tables}/cut_short", "-o", "json").json
    assert (unknown["dag_id"], unknown["run_id"]) == (None, None)


@pytest.mark.slow
@pytest.mark.airflow
def test_the_pool_of_a_table_as_data(lake, airflow_database):
    database = {name: os.environ[name] for name in DATABASE}
    found = lake.airflow("pool", "orders", "--conn-id", "lake", "--slots", "2", "-o", "json", **database).json
    pool = found.pop("pool")
    assert found == {"table": "delta://connection/lake/orders", "slots": 2, "include_deferred": True}
    assert pool in lake.airflow("list", group="pools", **database).out
    assert lake.airflow("pool", "orders", "--conn-id", "lake", "-o", "plain", **database).out.split()[:2] == ["pool", "slots"]


# -- completion: the protocol of argcomplete, as a shell speaks it ------------------------------------------------------------


def completed(lake: Lake, line: str, **env: str) -> list[str]:
    """Return what the shell is told about the end of a command line."""
    told = lake.path.parent / "told"
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SHELL": "bash",
        "_ARGCOMPLETE_COMP_WORDBREAKS": " \t\n\"'><;|&(",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
    }
    command = ["bash", "-c", 'exec "$0" -m airflow 8>"$1" 9>/dev/null >/dev/null 2>&1', sys.executable, str(told)]
    subprocess.run(command, env={**lake.env, **asked, **env}, check=True, timeout=120)
    return [one.rstrip() for one in told.read_text().split("\n") if one.strip()]


def completed_in_time(lake: Lake, line: str) -> list[str]:
    """Return what the shell is told, asked again while a busy machine takes longer than a shell is kept waiting."""
    return next((told for _ in range(5) if (told := completed(lake, line))), [])


@pytest.fixture(scope="module")
def shelf(lake, tmp_path_factory) -> Lake:
    """The lake with a folder of tables, and a connection to another directory."""
    for name in ("orders-old", "raw/events"):
        table = lake.table(name)
        handle = table.begin()
        table.publish(handle, stage(table, handle))
    other = json.dumps({"conn_type": "delta", "host": str(lake.path / "raw")})
    more = {"AIRFLOW_CONN_RAW": other, "AIRFLOW_CONN_WEB": "http://localhost", "AIRFLOW_CONN_BROKEN": "{"}
    return Lake(lake.path, {**lake.env, **more})


@pytest.mark.slow
@pytest.mark.airflow
@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("airflow delta describe --conn-id lake or", ["orders", "orders-old"]),
        ("airflow delta describe --conn-id lake ra", ["raw/"]),
        ("airflow delta describe --conn-id lake raw/", ["raw/events"]),
        ("airflow delta history --conn-id=raw ", ["events"]),
        ("airflow delta vacuum --conn-id nowhere o", []),
        ("airflow delta history --conn-id ", ["lake", "raw"]),
        ("airflow delta tra", ["transactions"]),
    ],
)
def test_a_shell_completes_tables_and_connections(shelf, line, told):
    found = completed_in_time(shelf, line) if told else completed(shelf, line)
    assert [one for one in found if not one.startswith("-")] == told


@pytest.mark.slow
@pytest.mark.airflow
def test_an_absolute_path_is_completed(shelf):
    assert completed_in_time(shelf, f"airflow delta describe {shelf.path}/raw/e") == [f"{shelf.path}/raw/events"]


@pytest.mark.slow
@pytest.mark.airflow
def test_a_shell_does_not_wait_for_a_store_that_does_not_answer(shelf):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        options = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{silent.getsockname()[1]}", "AWS_REGION": "us-east-1"}
        options |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
        silent_one = json.dumps({"conn_type": "delta", "host": "s3://lake", "extra": {"storage_options": options}})
        quick, slow = "airflow delta history --conn-id raw x", "airflow delta history --conn-id silent x"
        before = time.monotonic()
        assert completed(shelf, quick) == []
        usual = time.monotonic() - before
        assert completed(shelf, slow, AIRFLOW_CONN_SILENT=silent_one) == []
    assert time.monotonic() - before - 2 * usual < 15
