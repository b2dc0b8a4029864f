"""``airflow delta backfill``: run a Dag again for the partitions that have changed since a version."""

from __future__ import annotations

from argparse import Namespace
from typing import Any, NoReturn

from airflow_delta import engine
from airflow_delta.assets.delta import delta_asset_uri
from airflow_delta.cli.commands import command, existing_table
from airflow_delta.cli.output import print_data, print_line, print_rows
from airflow_delta.contract.partition_events import PartitionEvents
from airflow_delta.exceptions import DeltaIllegalArgumentException


class _ChangedPartitions(PartitionEvents):
    """Partitions to make runs for: each must have a key of its own."""

    def refuse_many(self, why: str) -> NoReturn:
        raise DeltaIllegalArgumentException(
            f"One of the commits {why.removesuffix(' (max_keys)')}. Raise --max-keys, give a coarser --key, or begin at a later "
            "version (--since)."
        )


@command(audited=True)
def delta_backfill(args: Namespace) -> None:
    """Show the runs of a Dag for the partitions that have changed since a version; with ``--go``, make them."""
    from airflow_delta.airflow_internals.partitioned_runs import make_run, mapped_keys

    log = existing_table(args)
    events = _ChangedPartitions(args.key, exact=args.exact, max_keys=args.max_keys)
    changed: dict[str, list[int]] = {}
    for match, _ in engine.matches_after(log, engine.Watermark(args.since), engine.CommitConditions()):
        if match is not None:
            for key in engine.changed_partitions(log, match.summary.version, events, read=engine.column_values):
                changed.setdefault(key, []).append(match.summary.version)
    if len(changed) > args.max_keys:
        raise log.error(
            DeltaIllegalArgumentException,
            f"More than {args.max_keys} partitions of table {log.uri} have changed since version {args.since}. Raise --max-keys, "
            "or begin at a later version.",
        )
    uris = (delta_asset_uri(args.table, args.conn_id), delta_asset_uri(log.uri))  # as its Dag may name it, or where it is
    runs: list[dict[str, Any]] = [
        {
            "dag": args.dag,
            "partition_key": target,
            "versions": sorted({version for source in sources for version in changed[source]}),
            "run_id": make_run(args.dag, target) if args.go else None,
        }
        for target, sources in sorted(mapped_keys(args.dag, uris, changed).items())
    ]
    if print_data(runs, args.output):
        return
    if not runs:
        print_line(f"No partition of {log.uri} has changed since version {args.since}.")
        return
    print_rows([{**run, "versions": ", ".join(map(str, run["versions"]))} for run in runs], args.output, fold=("versions",))
    if not args.go and args.output != "plain":
        print_line(f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}; --go makes them.")
