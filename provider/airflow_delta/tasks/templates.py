"""How templates of a task are rendered: what is SQL stays text, and what says which rows are meant must have a value.

A predicate that a run renders to nothing, or to ``day < 'None'``, would otherwise mean every row: a DELETE would empty the table,
an audit would check less than its author wrote. What is left out in the Dag file, or written there as ``None``, means what the
operator says.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jinja2 import Template
from jinja2.compiler import CodeGenerator
from jinja2.nativetypes import NativeEnvironment

from airflow_delta.contract.sql_parameters import SQL_TEXTS
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.tasks.keys.named_fields import (
    KEY_FIELDS,
    PLACE_FIELDS,
    is_given,
    is_nothing,
    printing_values,
    render_named_fields,
)

if TYPE_CHECKING:
    import jinja2
    from airflow.sdk import Context

NARROWING = {
    *("checks", "clauses", "columns", "condition", "consumer", "deleted", "effective_at"),
    *("freshness", "inventory", "keys", "max_null_fraction", "max_rows", "min_rows", "modified_after", "new_files", "partitions"),
    *("pattern", "predicate", "replace_on", "replace_using", "replace_where", "rows_change", "set", "steps", "tables", "tracked"),
    *("unique", "value_range", "where"),
}
"""Parameters that say which tables, rows, files or checks are meant: without a value a task would do more, or check less."""

_VERSIONS = ("version", "timestamp")
"""Of these one is enough; a sensor without them waits for the next commit."""


def render_fields(
    task: Any,
    as_airflow: Callable[..., None],
    parent: Any,
    template_fields: Iterable[str],
    context: Context,
    jinja_env: jinja2.Environment,
    seen_oids: set[int],
    *,
    narrowing: Collection[str] = NARROWING,
    in_sql: Mapping[str, Any] | None = None,
) -> None:
    """Render template fields of a task, or of something nested in one: ``_do_render_template_fields`` of operators and sensors.

    :param as_airflow: renders fields as Airflow does.
    :param narrowing: parameters that need a value in each run if the Dag file gives them.
    :param in_sql: what templates in the task's ``sql_fields`` may name besides.
    :raises DeltaIllegalArgumentException: if a parameter of ``narrowing``, a part of one, a key or a place has no value in this
        run although the Dag file gives it, or an expression in SQL has none.
    """
    if parent is not task:
        as_airflow(parent, template_fields, context, jinja_env, seen_oids)
        return
    in_queries: Any = {**context, **(in_sql or {})}

    def render(fields: Iterable[str], environment: jinja2.Environment) -> None:
        for name in fields:
            values = in_queries if in_sql and name in task.sql_fields else context
            as_airflow(task, (name,), values, environment, seen_oids)

    names = list(template_fields)
    before = {name: getattr(task, name, None) for name in names if name in narrowing or name in _VERSIONS}
    text = _as_text(jinja_env)
    named = [name for name in names if name in KEY_FIELDS or name in PLACE_FIELDS]
    with_values = [name for name in names if name in narrowing or name in SQL_TEXTS or name == "parameters"]
    # In a mapping each value is text to the table: 1.10 is not 1.1. All of it as one template may be a mapping.
    as_text = [name for name in names if name == "properties" and isinstance(getattr(task, name), Mapping)]
    render(as_text, text)
    render([name for name in names if name not in (*named, *with_values, *as_text)], jinja_env)
    render_named_fields(task, named, context, text, lambda some: render(some, text))
    for name in with_values:
        environment = text if name in SQL_TEXTS else jinja_env
        render([name], printing_values(environment, f"{name} of the task {task.task_id!r}"))
    lost = {
        name: next(_lost(name, value, getattr(task, name), of_map=is_given(task, name, context)), None)
        for name, value in before.items()
    }
    found = [name for name, part in lost.items() if part is not None and name not in _VERSIONS]
    versions = [name for name in _VERSIONS if "timestamp" in names and before.get(name) is not None]
    if versions and all(lost[name] is not None for name in versions):
        found += versions
    if found:
        raise DeltaIllegalArgumentException(
            f"{lost[found[0]]} of the task {task.task_id!r} has no value in this run, although the Dag file gives it: the task "
            "would do more, or check less, than its author says. Give it a value in every run"
            + ("; true means all rows." if found[0] in SQL_TEXTS else ", or leave it out of the Dag file.")
        )


def _lost(where: str, given: Any, rendered: Any, *, of_map: bool = False) -> Iterator[str]:
    """Yield the parts of a parameter whose template, or XCom, has no value."""
    if _is_computed(given) or of_map:
        if is_nothing(rendered):
            yield where
    elif isinstance(given, Mapping) and isinstance(rendered, Mapping):
        for key, value in given.items():
            yield from _lost(f"{where}[{key!r}]", value, rendered.get(key))
    elif isinstance(given, list | tuple) and isinstance(rendered, list | tuple) and len(given) == len(rendered):
        for number, (value, found) in enumerate(zip(given, rendered, strict=True)):
            yield from _lost(f"{where}[{number}]", value, found)


def _is_computed(value: Any) -> bool:
    """Return whether a run decides about a value: a template, an XCom, a parameter of the Dag."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    return hasattr(value, "resolve") and not isinstance(value, os.PathLike)


def _as_text(jinja_env: jinja2.Environment) -> jinja2.Environment:
    """Return an environment whose templates are texts, also if those of the given one are Python values."""
    if not isinstance(jinja_env, NativeEnvironment):
        return jinja_env
    text = jinja_env.overlay()
    text.code_generator_class = CodeGenerator  # type: ignore[assignment]
    text.template_class = Template
    text.concat = "".join  # type: ignore[assignment]
    return text


def is_of_text(template: Any) -> bool:
    """Return whether a template is of an environment that :func:`_as_text` has made, in a Dag that renders Python values."""
    environment = template.environment
    return isinstance(environment, NativeEnvironment) and environment.template_class is Template
