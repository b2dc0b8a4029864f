"""The implementation of ``airflow delta pool``."""

from __future__ import annotations

from argparse import Namespace

from airflow_delta.assets.delta import delta_asset_uri
from airflow_delta.cli.commands import command
from airflow_delta.cli.output import print_data, print_line, print_rows
from airflow_delta.pools import table_pool


@command(audited=True)
def delta_pool(args: Namespace) -> None:
    """Make the pool of a table, or give it another number of slots."""
    from airflow_delta.airflow_internals.command_line import set_pool

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
