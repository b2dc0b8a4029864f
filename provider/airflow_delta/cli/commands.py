"""The implementation of the ``airflow delta`` commands."""

from __future__ import annotations

import functools
import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import conf

from airflow_delta import engine
from airflow_delta.airflow_internals.command_line import (
    AirflowConsole,
    cli_utils,
    dag_bag,
    providers_configuration_loaded,
    set_pool,
)
from airflow_delta.assets.delta import delta_asset_uri, table_of_asset_uri
from airflow_delta.cli.output import print_data, print_line, print_rows, printable, size, span, utc
from airflow_delta.cli.progress import progress_shown
from airflow_delta.cli.starts import with_runs
from airflow_delta.contract.check_records import answer_in_words, result_in_words, stages_in_words, version_in_words
from airflow_delta.contract.tags import DAG_ID_TAG, RUN_ID_TAG
from airflow_delta.dag_checks import dag_problems, dag_warnings
from airflow_delta.exceptions import DeltaError, DeltaTableNotFoundException, VacuumRetentionPeriodTooShortException
from airflow_delta.pools import table_pool
from airflow_delta.shown_text import message_of
from airflow_delta.task_notes import masked_by_airflow

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.observe.commit_summary import CommitSummary
    from airflow_delta.table.state.open_transactions import TransactionState


_Command = Callable[[Namespace], None]

_MAX_PATHS = 20


def command(*, audited: bool = False) -> Callable[[_Command], _Command]:
    """Make a function an Airflow command: without ``-v`` it prints only its output, and one line for an error.

    :param audited: record it in Airflow's audit log if there is a metadata database.
    """

    def decorate(function: _Command) -> _Command:
        action_cli: Any = cli_utils.action_cli
        run: _Command = action_cli(check_db=False)(function) if audited else function
        run = cli_utils.suppress_logs_and_warning(providers_configuration_loaded(run))

        @functools.wraps(function)
        def command(args: Namespace) -> None:
            # As Airflow's own commands for connections do: otherwise the Task SDK does not look into the metadata database.
            os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"
            try:
                with progress_shown():
                    run(args)
            except Exception as error:
                if args.verbose:
                    raise
                raise SystemExit(error_line(error)) from None

        return command

    return decorate


def error_line(error: Exception) -> str:
    """Return what a command says of an error, in one line: without secrets, and without what would control a terminal."""
    return printable(masked_by_airflow(_readable(error)))


def _readable(error: Exception) -> str:
    from airflow_delta.hooks.named_connection import MissingConnection

    if isinstance(error, VacuumRetentionPeriodTooShortException):
        return f"{error} On the command line, pass --no-retention-check."
    if isinstance(error, DeltaError):
        return str(error)
    if isinstance(error, MissingConnection):
        return (
            f"There is no connection {error.conn_id!r}. Add it ('airflow connections add', a variable AIRFLOW_CONN_<ID>, a "
            "secrets backend), or pass another one with --conn-id."
        )
    return f"{type(error).__name__}: {error} (-v shows the traceback)"


# -- reading ------------------------------------------------------------------------------------------------------------------


@command()
def delta_history(args: Namespace) -> None:
    """Show the versions of a table, newest first."""
    commits = engine.recent_commits(existing_table(args), args.limit, before=args.before)
    data = [{**commit.to_dict(), "checks": None if commit.checks is None else commit.checks.to_dict()} for commit in commits]
    if print_data(data, args.output):
        return
    if args.checks:
        rows = (row for commit in commits for row in _check_rows(commit))
        print_rows(rows, args.output, fold=("task", "result", "version", "stages", "answer"), only_wide=("definition",))
    else:
        print_rows(map(_commit_row, commits), args.output, fold=("operation", "by"), only_wide=("rows", "size", "read"))


def _check_rows(commit: CommitSummary) -> Iterator[dict[str, Any]]:
    """Yield a row for each check before a commit; one that says so if there is none."""
    columns = dict.fromkeys(("commit", "task", "kind", "result", "version", "stages", "answer", "definition"))
    records = commit.checks
    if records is None:
        yield {**columns, "commit": commit.version, "task": "none recorded"}
        return
    for check in records.checks:
        yield {
            "commit": commit.version,
            "task": check.name,
            "kind": check.kind,
            "result": result_in_words(check),
            "version": version_in_words(check),
            "stages": stages_in_words(check, records),
            "answer": answer_in_words(check),
            "definition": (check.definition or "")[:12],
        }
    if records.left_out:
        yield {**columns, "commit": commit.version, "task": f"and {records.left_out} more"}


def _commit_row(commit: CommitSummary) -> dict[str, Any]:
    tags = commit.tags
    run = [tags[key] for key in (DAG_ID_TAG, RUN_ID_TAG) if key in tags]
    return {
        "version": commit.version,
        "time (UTC)": utc(commit.timestamp),
        "operation": commit.operation,
        "files": f"+{commit.num_added_files} -{commit.num_removed_files}",
        "rows": commit.num_records if commit.num_added_files else None,
        "size": size(commit.bytes_added) if commit.num_added_files else None,
        "read": commit.read_version,
        "by": " ".join(run) or commit.engine_info,
    }


@command()
def delta_describe(args: Namespace) -> None:
    """Show schema, partitioning, features, properties and size of a table."""
    detail = engine.describe(_log(args))
    if print_data(detail, args.output):
        return
    schema = detail.pop("schema")
    num_bytes = detail["size_in_bytes"]
    shown = {
        **detail,
        "created_at": f"{utc(detail['created_at'])} UTC" if detail["created_at"] is not None else None,
        "last_modified": f"{utc(detail['last_modified'])} UTC",
        "size_in_bytes": f"{size(num_bytes)} ({num_bytes:,} bytes)" if num_bytes is not None else None,
    }
    empty: tuple[Any, ...] = (None, "", [], {})
    rows = ({"property": name, "value": value} for name, value in shown.items() if value not in empty)
    print_rows(rows, args.output, fold=("value",))
    print_line()
    commented = any(column["comment"] for column in schema)
    columns = [{"column": column.pop("name"), **column} for column in schema]
    rows = ({key: value for key, value in column.items() if commented or key != "comment"} for column in columns)
    print_rows(rows, args.output, fold=("column", "type", "comment"))


@command()
def delta_transactions(args: Namespace) -> None:
    """Show the transactions that have staged files."""
    log = _log(args)
    found = with_runs(engine.list_transactions(log, states=args.state or engine.STATES))
    if not found:
        _refuse_missing(log)
    if not print_data([transaction.to_dict() for transaction in found], args.output):
        now = int(time.time() * 1000)
        rows = (_transaction_row(transaction, now) for transaction in found)
        wide = ("version", "read", "attempts", "files", "key", "why")
        print_rows(rows, args.output, fold=("run", "stages", "key", "why"), only_wide=wide)


def _transaction_row(transaction: TransactionState, now: int) -> dict[str, Any]:
    last = transaction.last_modified
    return {
        "transaction": transaction.transaction_id,
        "state": transaction.state,
        "run": " ".join(name for name in (transaction.dag_id, transaction.run_id) if name),
        "version": transaction.version,
        "read": transaction.read_version,
        "attempts": transaction.attempts,
        "files": transaction.num_files,
        "size": size(transaction.num_bytes),
        "idle": None if last is None else span(now - last),
        "stages": transaction.stages,
        "key": transaction.app_id,
        "why": transaction.reason,
    }


# -- changing -----------------------------------------------------------------------------------------------------------------


@command(audited=True)
def delta_abort(args: Namespace) -> None:
    """Abort a transaction and delete its staged files."""
    log = _log(args)
    found = engine.transaction_state(log, args.transaction_id)
    goes = found is not None and found.state != "committed" and (args.force or found.state != "open")
    if found is not None and goes and not args.yes:
        _confirm(
            f"Transaction {found.transaction_id} of {log.uri} is {found.state}: {found.reason} Delete its staged files "
            f"({found.num_files} files, {size(found.num_bytes)})?"
        )
    result = engine.abort_transaction(log, args.transaction_id, force=args.force)
    data = asdict(result)
    del data["contract"]
    if print_data(data, args.output):
        return
    row = {"transaction": result.transaction_id, "outcome": result.outcome, "version": result.version}
    print_rows([{**row, "deleted files": result.num_deleted_files}], args.output)
    print_line(result.reason)


@command(audited=True)
def delta_vacuum(args: Namespace) -> None:
    """Delete files that no version within the retention needs, or list them."""
    result = engine.vacuum(
        _log(args),
        retention_hours=args.retention_hours,
        retention_check=args.retention_check,
        lite=args.lite,
        dry_run=args.dry_run,
    )
    # A name that is not UTF-8 cannot be printed everywhere.
    data = {**asdict(result), "paths": [path.encode(errors="backslashreplace").decode() for path in result.paths]}
    if print_data(data, args.output):
        return
    row = {
        "mode": result.mode,
        "would delete" if result.dry_run else "deleted": f"{result.num_files} files",
        "directories": result.num_directories,
        "size": size(result.num_bytes),
        "open transactions": result.num_live_transactions,
        "version": result.version,
    }
    print_rows([row], args.output)
    for path in data["paths"][:_MAX_PATHS]:
        print_line(path)
    if len(data["paths"]) > _MAX_PATHS:
        print_line(f"... and {len(data['paths']) - _MAX_PATHS} more; -o json lists all of them.")
    if result.dry_run and data["paths"]:
        print_line("Nothing was deleted. --no-dry-run deletes them.")


@command(audited=True)
def delta_checkpoint(args: Namespace) -> None:
    """Write a checkpoint of the latest version."""
    from airflow_delta.log.features import protocol

    log = existing_table(args)
    snapshot = log.update()
    protocol.check_can_write(snapshot.protocol, snapshot.metadata, log.uri, snapshot.version, provided=log.provided)
    log.checkpoint(snapshot)
    data = {"table": log.uri, "version": snapshot.version, "num_files": snapshot.num_files}
    if not print_data(data, args.output):
        row = {"table": log.uri, "checkpoint of version": snapshot.version, "files": snapshot.num_files}
        print_rows([row], args.output, fold=("table",))


# -- arguments ----------------------------------------------------------------------------------------------------------------


def _log(args: Namespace) -> DeltaLog:
    """Return the log of the table in the arguments."""
    return table_log(args.table, args.conn_id)


def table_log(table: str, conn_id: str | None) -> DeltaLog:
    """Return the log of a table as a person names it."""
    from airflow_delta.hooks.delta import DeltaHook

    if table.lower().startswith("delta://"):
        table, its_conn_id = table_of_asset_uri(table)
        conn_id = conn_id or its_conn_id
    return DeltaHook(conn_id or DeltaHook.default_conn_name).get_log(table)


def existing_table(args: Namespace) -> DeltaLog:
    """Return the log of an existing table."""
    log = _log(args)
    _refuse_missing(log)
    return log


def _refuse_missing(log: DeltaLog) -> None:
    if not log.table_exists():
        raise log.error(
            DeltaTableNotFoundException,
            f"There is no Delta table at {log.uri}. Check the location and the connection's base path.",
        )


def _confirm(question: str) -> None:
    """Ask on stderr, so that the output can be piped, and exit unless the answer is yes."""
    try:
        answer = AirflowConsole(stderr=True).input(f"{printable(question)} (y/N) ", markup=False, emoji=False)
    except EOFError:
        raise SystemExit("Cancelled: no answer. Pass --yes to run without a prompt.") from None
    if answer.strip().lower() not in ("y", "yes"):
        raise SystemExit("Cancelled")


@command()
def delta_diff(args: Namespace) -> None:
    """Show the rows that a version added, removed and changed."""
    from airflow_delta.table.effects.report import diff_to_dict, summary

    log = existing_table(args)
    keys = engine.given_keys(log, args.version, args.keys)
    found = engine.published_diff(log, args.version, keys=keys, sample=args.rows, limit=args.max_compared)
    data = diff_to_dict(found)
    if print_data(data, args.output):
        return
    print_line(f"Version {found.version}. {summary(found)}")
    for line in engine.schema_lines(found.schema_changes):
        print_line(line)
    shown = [("+", row) for row in data["sample"]["added"]] + [("-", row) for row in data["sample"]["removed"]]
    for change in data["sample"]["changed"]:
        shown += [("before", change["before"]), ("after", change["after"])]
    if shown:
        names = list(dict.fromkeys(name for _, row in shown for name in row))
        print_rows([_row(kind, row, names) for kind, row in shown], args.output, fold=names)


def _row(kind: str, row: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    return {"": kind, **{name: row.get(name) for name in names}}


@command(audited=True)
def delta_pool(args: Namespace) -> None:
    """Make the pool of a table, or give it another number of slots."""
    name = table_pool(args.table, args.conn_id)
    uri = delta_asset_uri(args.table, args.conn_id)
    # A task that is deferred is in the middle of its transaction.
    set_pool(name, slots=args.slots, description=f"Writers of {uri}", include_deferred=True)
    if print_data({"pool": name, "table": uri, "slots": args.slots, "include_deferred": True}, args.output):
        return
    if args.output == "plain":
        print_rows([{"pool": name, "slots": args.slots}], args.output)
        return
    print_line(f"Pool {name} has {args.slots} {'slot' if args.slots == 1 else 'slots'}.")


@command()
def delta_check_dags(args: Namespace) -> None:
    """Show what is wrong with the Delta tasks of Dag files, and warnings; a file that cannot be read counts as wrong."""
    dags_folder = Path(conf.get("core", "dags_folder"))
    wanted = Path(args.dag_folder) if args.dag_folder else dags_folder
    # As in Airflow, where a Dag file can import modules of its bundle.
    sys.path += [str(dags_folder), str((wanted if wanted.is_dir() else wanted.parent).absolute())]
    bag = dag_bag(str(wanted))
    dags = sorted(bag.dags.values(), key=lambda dag: str(dag.dag_id))
    rows = [
        {"file": str(path), "dag": None, "task": None, "severity": "error", "problem": printable(message_of(error))}
        for path, error in sorted(bag.import_errors.items())
    ]
    for dag in dags:
        found = [("error", problem) for problem in dag_problems(dag)] + [("warning", each) for each in dag_warnings(dag)]
        rows += [
            {
                "file": str(dag.relative_fileloc),
                "dag": one.dag_id,
                "task": one.task_id,
                "severity": severity,
                "problem": one.message,
            }
            for severity, one in found
        ]
    wrong = any(row["severity"] == "error" for row in rows)
    if not print_data(rows, args.output):
        if rows:
            print_rows(rows, args.output, fold=("problem",))
        if not wrong:
            print_line(f"Checked {len(dags)} {'Dag' if len(dags) == 1 else 'Dags'}: nothing is wrong with their Delta tasks.")
    if wrong:
        raise SystemExit(1)
