"""The implementation of ``airflow delta diff``."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from airflow_delta.cli.commands import command, existing_table
from airflow_delta.cli.output import print_data, print_line, print_rows


@command()
def delta_diff(args: Namespace) -> None:
    """Show the rows that a version added, removed and changed."""
    from airflow_delta.commands.diff.report import diff_to_dict, summary
    from airflow_delta.commands.diff.schema_changes import schema_lines
    from airflow_delta.commands.diff.table_diff import given_keys, published_diff

    log = existing_table(args)
    keys = given_keys(log, args.version, args.keys)
    found = published_diff(log, args.version, keys=keys, sample=args.rows, limit=args.max_compared)
    data = diff_to_dict(found)
    if print_data(data, args.output):
        return
    print_line(f"Version {found.version}. {summary(found)}")
    for line in schema_lines(found.schema_changes):
        print_line(line)
    shown = [("+", row) for row in data["sample"]["added"]] + [("-", row) for row in data["sample"]["removed"]]
    for change in data["sample"]["changed"]:
        shown += [("before", change["before"]), ("after", change["after"])]
    if shown:
        names = list(dict.fromkeys(name for _, row in shown for name in row))
        print_rows([_row(kind, row, names) for kind, row in shown], args.output, fold=names)


def _row(kind: str, row: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    return {"": kind, **{name: row.get(name) for name in names}}
