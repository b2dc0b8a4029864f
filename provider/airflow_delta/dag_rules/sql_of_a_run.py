"""What in a Dag file works, and deserves a second look: warnings while Airflow parses it, in the Dag processor's log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jinja2 import Environment, TemplateSyntaxError, nodes

_NUMBERS = ("int", "float")
"""Filters after which a text is a number, and nothing else."""


def sql_of_a_run(name: str, value: Any) -> Iterator[str]:
    """Yield warnings of templates that put into SQL what whoever triggers a run gives to it.

    :param name: of the parameter.
    :param value: SQL, also within lists and mappings.
    """
    if isinstance(value, dict):
        # ``set`` has columns; clauses and checks have words beside their SQL.
        words = () if name.endswith(("set", "set']")) else ("kind", "action", "on_failure")
        for key, each in ((key, each) for key, each in value.items() if key not in words):
            yield from sql_of_a_run(f"{name}[{key!r}]", each)
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from sql_of_a_run(f"{name}[{number}]", each)
    elif isinstance(value, str):
        for given in _given_by_a_run(value):
            yield (
                f"{name} puts {given} into SQL: whoever may trigger a run decides what it does. Name a parameter there, such as "
                f':value, and pass parameters={{"value": ...}}, in which it stays a value.'
            )


def kept_sql_of_a_run(changes: Any) -> Iterator[str]:
    """Yield warnings of changes to a table that put what a run is given into expressions that the table keeps.

    These have no parameters: other engines read them, which need not know the literals that a value becomes.

    :param changes: of ALTER TABLE, in their JSON form.
    """
    for number, change in enumerate(changes if isinstance(changes, list | tuple) else ()):
        for name in ("expression", "default"):
            text = change.get(name) if isinstance(change, dict) else None
            for given in _given_by_a_run(text) if isinstance(text, str) else ():
                yield (
                    f"changes[{number}][{name!r}] puts {given} into SQL that the table keeps: whoever may trigger a run decides "
                    "what it does. Write it into the Dag file, or make a number of the value (| int, | float)."
                )


def _given_by_a_run(template: str) -> Iterator[str]:
    """Yield what a template prints of the parameters or the configuration of a run, each once."""
    if "{" in template and ("params" in template or "conf" in template):
        yield from dict.fromkeys(_printed_of_a_run(template))


def _printed_of_a_run(template: str) -> Iterator[str]:
    try:
        tree = Environment().parse(template)  # noqa: S701 - nothing is rendered
    except TemplateSyntaxError:  # the task reports it
        return
    parts = [part for output in tree.find_all(nodes.Output) for part in output.nodes]
    for part in [*parts, *(assign.node for assign in tree.find_all(nodes.Assign))]:
        if isinstance(part, nodes.Filter) and part.name in _NUMBERS:
            continue
        within = [part, *part.find_all((nodes.Name, nodes.Getattr))]
        if any(isinstance(each, nodes.Name) and each.name == "params" for each in within):
            yield "params"
        if any(isinstance(each, nodes.Getattr) and each.attr == "conf" for each in within):
            yield "dag_run.conf"
