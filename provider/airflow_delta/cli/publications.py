"""``airflow delta versions`` and ``airflow delta settle``: tables that are published together."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta import publication as publications
from airflow_delta.cli.commands import command, error_line, table_log
from airflow_delta.cli.output import print_data, print_line, print_rows
from airflow_delta.exceptions import DeltaError

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog


@command()
def delta_versions(args: Namespace) -> None:
    """Show versions of several tables that belong together."""
    logs = _logs(args)
    vector = publications.get_versions(logs)
    data: dict[str, Any] = {
        "versions": dict(vector.versions),
        "held_back": {publication: list(names) for publication, names in vector.held_back.items()},
        "split": {publication: list(names) for publication, names in vector.split.items()},
    }
    if print_data(data, args.output):
        return
    rows = [
        {
            "table": name,
            "version": vector.versions[name] if vector.versions[name] >= 0 else None,
            "latest": log.snapshot.version if log.snapshot.version >= 0 else None,
        }
        for name, log in logs.items()
    ]
    print_rows(rows, args.output, fold=("table",))
    for publication, names in vector.held_back.items():
        print_line(f"Before publication {publication}, which is not on all of them: {', '.join(names)}.")
    for publication, names in vector.split.items():
        print_line(f"Publication {publication} is split: {', '.join(names)} show it, and others never will.")


@command(audited=True)
def delta_settle(args: Namespace) -> None:
    """Bring the publications that are open on some tables to their end."""
    logs = _logs(args)
    wanted = [args.publication] if args.publication else _open(list(logs.values()))
    results, failed = [], list[DeltaError]()
    for publication in wanted:
        try:
            results.append(_settle(publication, list(logs.values()), args.patience))
        except DeltaError as error:
            failed.append(error)
    _show_settled(args, results, is_quiet=bool(failed))
    if failed:
        raise SystemExit("\n".join(map(error_line, failed)))


def _show_settled(args: Namespace, results: Sequence[Any], *, is_quiet: bool) -> None:
    if print_data([result.to_dict() for result in results], args.output):
        return
    if not results:
        if not is_quiet:
            print_line("No publication is open on these tables.")
        return
    rows = [
        {
            "publication": result.publication,
            "outcome": result.outcome,
            "tables": [
                f"{uri}: {'nothing' if commit is None else f'version {commit.version}'}" for uri, commit in result.tables.items()
            ],
            "why": result.reason,
        }
        for result in results
    ]
    print_rows(rows, args.output, fold=("publication", "tables", "why"))


def _logs(args: Namespace) -> dict[str, DeltaLog]:
    return {name: table_log(name, args.conn_id) for name in dict.fromkeys(args.tables)}


def _open(logs: Sequence[DeltaLog]) -> list[str]:
    """Return the publications that are announced on one of the tables, or that some of them show and others lack."""
    found: dict[str, None] = {}
    for log in logs:
        log.update()
        found |= dict.fromkeys(each.publication for each in publications.open_publications(log))
    found |= dict.fromkeys(publications.get_versions({log.uri: log for log in logs}).held_back)
    return list(found)


def _settle(publication: str, logs: Sequence[DeltaLog], patience: float) -> Any:
    """Settle a publication from a table that knows it."""
    on = next((log for log in logs if publications.publication_tables(log, publication)), logs[0])
    return publications.settle(on, publication, publications.own_tables(logs), patience=patience)
