"""The implementation of ``airflow delta check-dags``."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from airflow_delta.cli.commands import command
from airflow_delta.cli.output import print_data, print_line, print_rows, printable


@command()
def delta_check_dags(args: Namespace) -> None:
    """Show what is wrong with the Delta tasks of Dag files; a file that cannot be read counts as wrong."""
    from airflow.configuration import conf
    from airflow.dag_processing.dagbag import DagBag

    from airflow_delta.dag_checks import dag_problems

    bag: Any = DagBag(dag_folder=args.dag_folder or conf.get("core", "dags_folder"))
    dags = sorted(bag.dags.values(), key=lambda dag: str(dag.dag_id))
    rows = [
        {"file": str(path), "dag": None, "task": None, "problem": message_of(error)}
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
            print_line(f"Checked {len(dags)} Dags: nothing is wrong with their Delta tasks.")
    if rows:
        raise SystemExit(1)


def message_of(error: str) -> str:
    """Return the message of the last error of a traceback, in one line: what follows the frames, which are indented."""
    lines = [line.rstrip() for line in str(error).splitlines() if line.strip()]
    after = max((number for number, line in enumerate(lines) if line.startswith(" ")), default=-1) + 1
    return printable(" ".join(line.strip() for line in lines[after:] or lines[-1:])) if lines else "cannot be read"
