"""The commands of ``airflow delta``: only names and arguments. Their implementation is loaded when one of them runs.

Airflow imports this module at the start of every ``airflow`` command (provider info, ``cli``), so it imports nothing else.
"""

from __future__ import annotations

from argparse import BooleanOptionalAction
from collections.abc import Callable
from typing import Any

from airflow_delta.airflow_internals.command_line import (
    ARG_OUTPUT,
    ARG_VERBOSE,
    ARG_YES,
    ActionCommand,
    Arg,
    CLICommand,
    GroupCommand,
    lazy_load_command,
    positive_int,
)

_COMMANDS = "airflow_delta.cli.commands"


_Arg: Any = Arg  # which has no types


class _CompletedArg(_Arg):  # type: ignore[misc]
    """An argument whose values a shell can complete (argcomplete).

    :param completer: gets the line so far, as argcomplete gives it, and returns the values.
    """

    def __init__(self, *given: Any, completer: Callable[..., list[str]], **options: Any) -> None:
        super().__init__(*given, **options)
        self._completer = completer

    def add_to_parser(self, parser: Any) -> None:
        """Add the argument, as Airflow does, and what completes it."""
        parser.add_argument(*self.flags, **self.kwargs).completer = self._completer


def _argument(flag: str, *, completer: Callable[..., list[str]] | None = None, **options: Any) -> Arg:
    made: Arg = _Arg((flag,), **options) if completer is None else _CompletedArg((flag,), completer=completer, **options)
    return made


def _complete_table(**line: Any) -> list[str]:
    from airflow_delta.cli import completion

    return completion.table_names(**line)


def _complete_connection(**line: Any) -> list[str]:
    from airflow_delta.cli import completion

    return completion.connections(**line)


_whole_number: Any = positive_int

ARG_TABLE = _argument(
    "table",
    completer=_complete_table,
    metavar="TABLE",
    help="URI or absolute path of the table, its name below the base path of the connection, or its asset URI (delta://...)",
)
ARG_CONN_ID = _argument(
    "--conn-id",
    completer=_complete_connection,
    help="Connection of type Delta Lake (default: that of the asset URI, or delta_default)",
)
ARG_LIMIT = _argument("--limit", type=_whole_number(allow_zero=False), default=20, help="Versions to show (default: 20)")
ARG_VERSION = _argument("--version", type=_whole_number(allow_zero=True), help="Version of the table (default: the latest)")
ARG_KEYS = _argument(
    "--keys",
    nargs="+",
    action="extend",
    default=[],
    metavar="COLUMN",
    help="Columns that identify a row: shows which rows have changed. --keys a b, --keys a,b, or --keys twice",
)
ARG_SAMPLE = _argument(
    "--rows", type=_whole_number(allow_zero=True), default=10, help="Number of rows of each kind to show (default: 10)"
)
ARG_ROWS_COMPARED = _argument(
    "--max-compared",
    type=_whole_number(allow_zero=True),
    default=1_000_000,
    help="Rows to compare; beyond it, counts are upper bounds (default: 1000000)",
)
ARG_BEFORE = _argument("--before", type=_whole_number(allow_zero=True), help="Show only versions below this one")
ARG_CHECKS = _argument(
    "--checks", action="store_true", help="Show what was checked before each commit, instead of what it changed"
)
ARG_STATE = _argument(
    "--state",
    choices=("open", "committed", "aborted", "abandoned"),
    action="append",
    help="Show only transactions in this state; may be repeated",
)
ARG_TRANSACTION_ID = _argument(
    "transaction_id", metavar="TRANSACTION_ID", help="Id of the transaction, from 'airflow delta transactions'"
)
ARG_FORCE = _argument(
    "--force", action="store_true", help="Also abort a transaction that may still be running; its commit will be refused"
)
ARG_DRY_RUN = _argument(
    "--dry-run", action=BooleanOptionalAction, default=True, help="Only list what would be deleted (the default)"
)
ARG_RETENTION_HOURS = _argument(
    "--retention-hours",
    type=float,
    help="Minimum age in hours of the files to delete (default: the table's delta.deletedFileRetentionDuration)",
)
ARG_RETENTION_CHECK = _argument(
    "--retention-check", action=BooleanOptionalAction, default=True, help="Refuse a retention below that property"
)
ARG_LITE = _argument(
    "--lite", action="store_true", help="Delete only what commits since the last VACUUM removed, without listing the table"
)

ARG_TABLES = _argument(
    "tables",
    completer=_complete_table,
    metavar="TABLE",
    nargs="+",
    help="Tables, each as a URI, an absolute path, a name below the base path of the connection, or an asset URI",
)
ARG_PUBLICATION = _argument("--publication", help="Id of the publication (default: all that are open on the tables)")
ARG_PATIENCE = _argument(
    "--patience",
    type=float,
    default=60.0,
    help="Seconds that an undecided publication may take before it is refused (default: 60)",
)

ARG_DAG_FOLDER = _argument(
    "dag_folder", metavar="PATH", nargs="?", help="Dag file, or folder of Dag files (default: Airflow's dags_folder)"
)

ARG_SLOTS = _argument(
    "--slots", type=_whole_number(allow_zero=False), default=1, help="Tasks of the pool that may run at once (default: 1)"
)

ARG_DAG = _argument("--dag", metavar="DAG_ID", required=True, help="Dag to run: its timetable is a partitioned one")
ARG_SINCE = _argument(
    "--since", type=int, required=True, metavar="VERSION", help="Partitions that commits after this version have changed; -1: all"
)
ARG_KEY = _argument(
    "--key",
    metavar="TEMPLATE",
    help="Column or template that makes the keys, as partition_events does (default: the partition columns)",
)
ARG_EXACT = _argument(
    "--exact", action="store_true", help="Read the column of the keys, if it is not a partition column, instead of its range"
)
ARG_MAX_KEYS = _argument(
    "--max-keys", type=_whole_number(allow_zero=False), default=500, help="Most partitions that may have changed (default: 500)"
)
ARG_GO = _argument("--go", action="store_true", help="Make the runs; without it, they are only shown")

_COMMON = (ARG_CONN_ID, ARG_OUTPUT, ARG_VERBOSE)

DELTA_COMMANDS = (
    ActionCommand(
        name="history",
        help="Show the versions of a table: who wrote what",
        func=lazy_load_command(f"{_COMMANDS}.delta_history"),
        args=(ARG_TABLE, ARG_LIMIT, ARG_BEFORE, ARG_CHECKS, *_COMMON),
    ),
    ActionCommand(
        name="diff",
        help="Show the rows that a version added, removed and changed",
        description=(
            "Show the rows that a version added, removed and changed. Rows that were only copied to another file are left out. "
            "-o json or yaml shows all columns."
        ),
        func=lazy_load_command("airflow_delta.cli.commands.delta_diff"),
        args=(ARG_TABLE, ARG_VERSION, ARG_KEYS, ARG_SAMPLE, ARG_ROWS_COMPARED, *_COMMON),
    ),
    ActionCommand(
        name="describe",
        help="Show schema, partitioning, features, properties and size of a table",
        func=lazy_load_command(f"{_COMMANDS}.delta_describe"),
        args=(ARG_TABLE, *_COMMON),
    ),
    ActionCommand(
        name="transactions",
        help="Show the transactions that have staged files: open, committed, aborted, abandoned",
        func=lazy_load_command(f"{_COMMANDS}.delta_transactions"),
        args=(ARG_TABLE, ARG_STATE, *_COMMON),
    ),
    ActionCommand(
        name="abort",
        help="Abort a transaction and delete its staged files",
        description=(
            "Abort a transaction and delete its staged files. Files that the log references are never deleted, and a "
            "transaction that may still be running is aborted only with --force."
        ),
        func=lazy_load_command(f"{_COMMANDS}.delta_abort"),
        args=(ARG_TABLE, ARG_TRANSACTION_ID, ARG_FORCE, ARG_YES, *_COMMON),
    ),
    ActionCommand(
        name="versions",
        help="Show versions of several tables that belong together",
        description=(
            "Show versions of several tables that belong together: of a publication of several tables, all of them show it, or "
            "none. Neither waits nor writes."
        ),
        func=lazy_load_command("airflow_delta.cli.publications.delta_versions"),
        args=(ARG_TABLES, *_COMMON),
    ),
    ActionCommand(
        name="settle",
        help="Bring the publications that are open on some tables to their end",
        description=(
            "Bring publications to their end, as their own commit task would: a decided one is published on the tables that lack "
            "it, an undecided one is refused. Name all tables of the publication; no others are opened."
        ),
        func=lazy_load_command("airflow_delta.cli.publications.delta_settle"),
        args=(ARG_TABLES, ARG_PUBLICATION, ARG_PATIENCE, *_COMMON),
    ),
    ActionCommand(
        name="vacuum",
        help="Delete files that no version within the retention needs; only lists them without --no-dry-run",
        func=lazy_load_command(f"{_COMMANDS}.delta_vacuum"),
        args=(ARG_TABLE, ARG_DRY_RUN, ARG_RETENTION_HOURS, ARG_RETENTION_CHECK, ARG_LITE, *_COMMON),
    ),
    ActionCommand(
        name="checkpoint",
        help="Write a checkpoint of the latest version",
        func=lazy_load_command(f"{_COMMANDS}.delta_checkpoint"),
        args=(ARG_TABLE, *_COMMON),
    ),
    ActionCommand(
        name="backfill",
        help="Run a Dag again for the partitions that have changed since a version; only shows the runs without --go",
        description=(
            "Show which partitions commits of any writer have changed since a version, and the runs of a partitioned Dag for "
            "them, by its own mapping. --go makes these runs, one for each key."
        ),
        func=lazy_load_command("airflow_delta.cli.backfill.delta_backfill"),
        args=(ARG_TABLE, ARG_DAG, ARG_SINCE, ARG_KEY, ARG_EXACT, ARG_MAX_KEYS, ARG_GO, *_COMMON),
    ),
    ActionCommand(
        name="pool",
        help="Make the Airflow pool of a table, for tasks that are a transaction of their own",
        description=(
            "Make the Airflow pool that airflow_delta.pools.table_pool(TABLE) names, or change its slots. With one slot, the "
            "tasks with this pool write to the table one after the other."
        ),
        func=lazy_load_command("airflow_delta.cli.commands.delta_pool"),
        args=(ARG_TABLE, ARG_SLOTS, *_COMMON),
    ),
    ActionCommand(
        name="check-dags",
        help="Check the Delta tasks of Dag files: parameters, predicates, transactions",
        description=(
            "Read Dag files, and show what is wrong with their Delta tasks as far as the files say: parameters, the syntax of "
            "predicates and expressions without templates, stages without a transaction. Ends with 1 if anything is. Shows the "
            "warnings of parsing them, too."
        ),
        func=lazy_load_command("airflow_delta.cli.commands.delta_check_dags"),
        args=(ARG_DAG_FOLDER, ARG_OUTPUT, ARG_VERBOSE),
    ),
)


def get_delta_cli_commands() -> list[CLICommand]:
    """Return the group ``airflow delta``."""
    return [
        GroupCommand(
            name="delta",
            help="Inspect and maintain Delta tables and their transactions",
            subcommands=DELTA_COMMANDS,
        )
    ]
