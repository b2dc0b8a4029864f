"""The implementation of ``airflow delta check-dags``."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from airflow_delta.cli.commands import command
from airflow_delta.cli.output import print_data, print_line, print_rows, printable
from airflow_delta.tracebacks import message_of


@command()
def delta_check_dags(args: Namespace) -> None:
    """Show what is wrong with the Delta tasks of Dag files; a file that cannot be read counts as wrong."""
    from airflow.sdk import conf

    from airflow_delta.airflow_internals.command_line import dag_bag
    from airflow_delta.dag_checks import dag_problems

    dags_folder = Path(conf.get("core", "dags_folder"))
    wanted = Path(args.dag_folder) if args.dag_folder else dags_folder
    # As in Airflow, where a Dag file can import modules of its bundle.
    sys.path += [str(dags_folder), str((wanted if wanted.is_dir() else wanted.parent).absolute())]
    bag = dag_bag(str(wanted))
    dags = sorted(bag.dags.values(), key=lambda dag: str(dag.dag_id))
    rows = [
        {"file": str(path), "dag": None, "task": None, "problem": printable(message_of(error))}
        for path, error in sorted(bag.import_errors.items())
    ]
    rows += [
        {"file": str(dag.relative_fileloc), "dag": problem.dag_id, "task": problem.task_id, "problem": problem.message}
        for dag in dags
        for problem in dag_problems(dag)
    ]
    if not print_data(rows, args.output):
        if rows:
            print_rows(rows, args.output, fold=("problem",))
        else:
            print_line(f"Checked {len(dags)} {'Dag' if len(dags) == 1 else 'Dags'}: nothing is wrong with their Delta tasks.")
    if rows:
        raise SystemExit(1)
