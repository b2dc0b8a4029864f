"""Names and arguments of commands, which Airflow asks of every provider at the start of every command: as light as it can be.

Airflow documents that providers bring commands, and imports this module for it, but does not declare it public. Waits for: a
public base for the commands of providers. Without it there is no ``airflow delta``.
"""

from __future__ import annotations

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
