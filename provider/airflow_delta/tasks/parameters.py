"""The parameters of a task by their kinds: literals as the Dag is parsed, everything else once it is rendered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.kinds import LOCATION, LOCATIONS, is_settled, kinds_of, tables_text, taken, value_problem
from airflow_delta.contract.sql_parameters import SQL_TEXTS, with_parameters
from airflow_delta.dag_checks import check_tasks
from airflow_delta.exceptions import DeltaIllegalArgumentException

if TYPE_CHECKING:
    import jinja2


def with_literals(operator_class: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a constructor, the literals among them as the task uses them.

    :raises DeltaIllegalArgumentException: if one does not fit, or a parameter that is not templated gets a template.
    """
    found = dict(given)
    for name, kind in kinds_of(operator_class).items():
        if name not in given:
            continue
        if kind in (LOCATION, LOCATIONS):
            found[name] = tables_text(given[name])
        templated = operator_class.declared[name].templated
        if (problem := value_problem(name, found[name], kind, templated=templated)) is not None:
            raise DeltaIllegalArgumentException(f"The task {given.get('task_id')!r}: {problem}")
        if is_settled(found[name]):
            found[name] = taken(name, found[name], kind)
    return found


def rendered_text(source: str, context: Mapping[str, Any], jinja_env: jinja2.Environment) -> str:
    """Return a rendered template as text, also in a Dag that renders templates as objects: 2026.10 is not the number 2026.1."""
    return text_of(jinja_env.from_string(source), context) if "{" in source else source


def text_of(template: jinja2.Template, context: Mapping[str, Any]) -> str:
    """Return what a template prints."""
    return "".join(map(str, template.root_render_func(template.new_context(dict(context)))))


def take_rendered(task: Any) -> None:
    """Turn the rendered parameters of a running task into what it uses."""
    for name, each in type(task).declared.items():
        if each.kind is not None:
            value = getattr(task, each.attribute)
            if (used := taken(f"{name} of the task {task.task_id!r}", value, each.kind)) is not value:
                setattr(task, each.attribute, used)


def put_values_into_sql(task: Any, fields: Iterable[str]) -> None:
    """Write the values of ``parameters`` of a running task into its SQL, as literals.

    :param fields: parameters with SQL: a text, or texts within lists and mappings.
    """
    values = getattr(task, "parameters", None)
    if values is None:
        return
    for name in fields:
        if (given := getattr(task, name, None)) is not None:
            setattr(task, name, _with_parameters(given, values, f"{name} of the task {task.task_id!r}"))


def _with_parameters(given: Any, values: Mapping[str, Any], whose: str) -> Any:
    if isinstance(given, str):
        return with_parameters(given, values, whose=whose)
    if isinstance(given, Mapping):
        return {key: _with_parameters(value, values, whose) for key, value in given.items()}
    if isinstance(given, list | tuple):
        return [_with_parameters(value, values, whose) for value in given]
    return given


def check_parsed(task: Any) -> None:
    """Check a task, and those of its Dag that cannot do so, once Airflow has read the whole Dag file."""
    dag = task.get_dag()
    tasks = [task] if dag is None else dag.tasks
    first = next(each for each in tasks if _asks_for_itself(each))
    others = (each for each in tasks if first is task and not _asks_for_itself(each))
    check_tasks([task, *others])


def _asks_for_itself(task: Any) -> bool:
    return hasattr(task, "bound_fields")  # an operator or sensor of ours; not if it is mapped


def use_rendered(task: Any) -> None:
    """Turn the rendered parameters of a running task into what it uses, and write the values of ``parameters`` into its SQL."""
    take_rendered(task)
    put_values_into_sql(task, [name for name in task.template_fields if name in SQL_TEXTS and name not in task.bound_fields])
