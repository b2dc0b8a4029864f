"""What Airflow's own commands are made of, for the names, arguments and output of ``airflow delta``.

Airflow documents that providers bring commands, and imports this module for it at the start of every command, so it is as light
as it can be; but it declares none of this public. Waits for: a public base for the commands of providers. Without it there is no
``airflow delta``.
"""

from __future__ import annotations

from typing import Any

from airflow.cli.cli_config import (
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
from airflow.cli.simple_table import AirflowConsole, SimpleTable
from airflow.utils import cli as cli_utils
from airflow.utils.providers_configuration_loader import providers_configuration_loaded

__all__ = ["AirflowConsole", "SimpleTable", "cli_utils", "dag_bag", "providers_configuration_loaded", "set_pool"]


def dag_bag(path: str) -> Any:
    """Return what Airflow makes of Dag files: ``dags``, and ``import_errors`` by file."""
    from airflow.dag_processing.dagbag import DagBag

    return DagBag(dag_folder=path)


def set_pool(name: str, *, slots: int, description: str, include_deferred: bool) -> None:
    """Make a pool, or change it. ``airflow pools set`` does the same in a process of its own."""
    from airflow_delta.airflow_internals.database import Pool

    Pool.create_or_update_pool(name, slots=slots, description=description, include_deferred=include_deferred)


__all__ = [
    "ARG_OUTPUT",
    "ARG_VERBOSE",
    "ARG_YES",
    "ActionCommand",
    "Arg",
    "CLICommand",
    "GroupCommand",
    "lazy_load_command",
    "positive_int",
]
