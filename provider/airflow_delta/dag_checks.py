"""What is wrong with the Delta tasks of a Dag, as far as the Dag file says: ``airflow delta check-dags``, and tests of Dags.

Airflow asks the cheap part of it of every Dag that it parses; what needs a parser of SQL is only asked here.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_delta import engine
from airflow_delta.contract.choices import choice_problem, choices_of, is_literal, literal_problems
from airflow_delta.contract.kinds import kinds_of, value_problem
from airflow_delta.contract.queries import with_escaped_quotes
from airflow_delta.contract.sql_parameters import SQL_TEXTS
from airflow_delta.dag_rules.arguments import argument, argument_values, arguments_of
from airflow_delta.dag_rules.key_precision import shared_key_problem
from airflow_delta.dag_rules.partition_events import event_problems
from airflow_delta.dag_rules.sql_of_a_run import kept_sql_of_a_run, sql_of_a_run
from airflow_delta.dag_rules.task_loops import loop_problem
from airflow_delta.dag_rules.trigger_rules import trigger_rule_problems
from airflow_delta.dag_rules.wiring import class_of, role_of, wiring_problems, wiring_warnings
from airflow_delta.exceptions import DeltaAnalysisException, DeltaDagWarning, DeltaIllegalArgumentException
from airflow_delta.light_dataclasses import dataclass

_CONDITIONS = ("replace_where", "replace_on", "predicate", "where", "read", "condition", "partitions")
"""Parameters that are conditions in Spark SQL."""

_TABLES = ("table", "tables")
"""Parameters that name tables, one or several."""

HANDS_ON = {
    "start": "the handle, which every stage and the commit need",
    "job": "what the operator of a job is given, and where the job works",
    "stage": "its staged write, which the commit publishes",
    "commit": "its result, by which the abort task knows that it is published",
}
"""What a task of a transaction hands on as XCom, by its role."""


@dataclass(frozen=True)
class DagProblem:
    """Something in a Dag file that will fail when the task runs, or may do what its author does not mean.

    :param dag_id: id of the Dag.
    :param task_id: id of the task.
    :param message: what is wrong, with the value, and what to do.
    """

    dag_id: str
    task_id: str
    message: str

    def __str__(self) -> str:
        return f"Dag {self.dag_id!r}, task {self.task_id!r}: {self.message}"


def dag_problems(dag: Any, *, predicates: bool = True) -> list[DagProblem]:
    """Return what is wrong with the Delta tasks of a Dag, mapped ones included; templates are not looked at.

    :param dag: a Dag as its file defines it.
    :param predicates: whether to parse literal predicates and expressions, too, which loads a parser of SQL.
    """
    found = []
    for task in dag.tasks:
        messages = [*task_problems(task), *(_text_problems(task) if predicates and _is_ours(task) else ())]
        found += [DagProblem(str(dag.dag_id), str(task.task_id), message) for message in messages]
    return found


def dag_warnings(dag: Any) -> list[DagProblem]:
    """Return what tasks of a Dag may do, and its author may not mean: the warnings that parsing it prints.

    :param dag: a Dag as its file defines it.
    """
    return [
        DagProblem(str(dag.dag_id), str(task.task_id), message)
        for task in dag.tasks
        for message in dict.fromkeys(task_warnings(task))
    ]


def check_dag(dag: Any) -> None:
    """Refuse a Dag with a problem; for tests of Dags.

    :raises DeltaIllegalArgumentException: if :func:`dag_problems` finds one.
    """
    if problems := dag_problems(dag):
        raise DeltaIllegalArgumentException("\n".join(map(str, problems)))


def check_tasks(tasks: Sequence[Any]) -> None:
    """Refuse tasks with a problem that is seen without parsing SQL, while Airflow parses their Dag; warn of others.

    :raises DeltaIllegalArgumentException: if there is one.
    """
    for task in tasks:
        for message in task_problems(task):
            raise DeltaIllegalArgumentException(f"The task {task.task_id!r}: {message}")
        for message in dict.fromkeys(task_warnings(task)):
            warnings.warn(f"The task {task.task_id!r}: {message}", DeltaDagWarning, stacklevel=2)


def task_warnings(task: Any) -> Iterator[str]:
    """Yield what a task may do, and its author may not mean."""
    if not _is_ours(task):
        return
    for name in class_of(task).template_fields:
        if name in SQL_TEXTS:
            for value in argument_values(task, name):
                yield from sql_of_a_run(name, value)
    for value in argument_values(task, "changes"):
        yield from kept_sql_of_a_run(value)
    yield from wiring_warnings(task)


def check_dag_overwrites(stages: Sequence[Any]) -> None:
    """Refuse stages of one transaction that certainly overwrite the same rows, with nothing to say which of them wins.

    What templates and different predicates replace is seen by the commit.

    :raises DeltaIllegalArgumentException: if there are two.
    """
    known: list[tuple[Any, Any]] = []
    for stage in filter(_overwrites, stages):
        where = argument(stage, "replace_where")
        for other, elsewhere in known:
            if where is None or elsewhere is None or (is_literal(where) and where == elsewhere):
                raise DeltaIllegalArgumentException(
                    f"The tasks {other.task_id!r} and {stage.task_id!r} overwrite the same rows in one transaction, and nothing "
                    "says which of them wins. Give one of them after=<output of the other>, let them replace different "
                    "partitions (replace_where), or map one task over the parts."
                )
        known.append((stage, where))


def _overwrites(stage: Any) -> bool:
    """Return whether a task certainly overwrites, by its replace_where alone, and is planned on top of nothing."""
    if argument(stage, "mode") != "overwrite" or argument(stage, "after"):
        return False
    return not any(argument(stage, name) for name in ("replace_on", "replace_using", "create"))


def task_problems(task: Any) -> Iterator[str]:
    """Yield what is wrong with a task, without parsing SQL."""
    if not _is_ours(task):
        return
    for name, allowed in choices_of(class_of(task)).items():
        for value in argument_values(task, name):
            if (problem := choice_problem(name, value, allowed)) is not None:
                yield problem
    yield from _kind_problems(task)
    for name in _TABLES:
        for value in argument_values(task, name):
            for table in value if isinstance(value, list | tuple) else (value,):
                if is_literal(table) and "://" in table and (problem := _scheme_problem(table)) is not None:
                    yield f"{name}: {problem}"
    yield from _setting_problems(task)
    yield from event_problems(task)
    yield from _loop_problems(task)
    yield from dict.fromkeys(problem for given in arguments_of(task) for problem in literal_problems(class_of(task), given))
    yield from _key_problems(task)
    yield from wiring_problems(task)
    if role_of(task) == "stage" and argument(task, "transaction") is None:
        if not hasattr(class_of(task), "staged_mode"):
            yield (
                "it stages rows, but belongs to no transaction, so nobody would publish them. Create it inside a with "
                "delta_transaction(...) block, or pass transaction=<output of a start task>."
            )
        elif argument(task, "table") is None:
            yield (
                "it has neither a table nor a transaction. Pass table=<URI>, create it inside a with delta_transaction(...) "
                "block, or pass transaction=<output of a start task>."
            )


def _kind_problems(task: Any) -> Iterator[str]:
    """Yield parameters that are not of their kind, and tasks where their output is meant."""
    declared = getattr(class_of(task), "declared", {})
    for name, kind in kinds_of(class_of(task)).items():
        for value in argument_values(task, name):
            if value is None and task.is_mapped:
                continue  # not given
            if (problem := value_problem(name, value, kind, templated=declared[name].templated)) is not None:
                yield problem
    for name in class_of(task).template_fields:
        for value in argument_values(task, name):
            for one in value if isinstance(value, list | tuple) else (value,):
                if hasattr(type(one), "node_id"):
                    what = f"the task {one.node_id!r}" if hasattr(one, "output") else f"the task group {one.node_id!r}"
                    yield f"{name} is {what} itself. Pass an output, such as {name}=task.output."


def _key_problems(task: Any) -> Iterator[str]:
    """Yield keys that two runs of the Dag would share."""
    if (
        argument(task, "transaction") is not None
        or argument(task, "key_check") == "off"
        or argument(task, "rerun_policy") == "append"
    ):
        return
    problems = (shared_key_problem(task, given) for given in arguments_of(task))
    yield from dict.fromkeys(problem for problem in problems if problem is not None)


def _setting_problems(task: Any) -> Iterator[str]:
    """Yield Airflow's settings of a task with which its transaction does not work."""
    role = role_of(task)
    in_transaction = role in ("start", "commit") or argument(task, "transaction") is not None
    if role in HANDS_ON and in_transaction and argument(task, "do_xcom_push") is False:
        yield (
            f"do_xcom_push=False, but {'a' if role == 'stage' else 'the'} {role} task hands on {HANDS_ON[role]}, as XCom. "
            "Leave do_xcom_push out."
        )
    yield from trigger_rule_problems(task)


def _loop_problems(task: Any) -> Iterator[str]:
    operator_class = class_of(task)
    # What takes part in a transaction, or begins one of its own, is known by its run and task.
    if role_of(task) == "audit" or not (
        hasattr(operator_class, "transaction_role") or "rerun_policy" in choices_of(operator_class)
    ):
        return
    if (problem := loop_problem(task)) is not None:
        yield problem


def _scheme_problem(table: str) -> str | None:
    return engine.scheme_problem(table)


def _text_problems(task: Any) -> Iterator[str]:
    for name in _CONDITIONS:
        for value in argument_values(task, name):
            if is_literal(value) and (problem := predicate_problem(value)) is not None:
                yield f"{name}={value!r} {problem}."
    for value in argument_values(task, "expected_schema"):
        if (problem := _schema_problem(value)) is not None:
            yield f"expected_schema: {problem}"
    for value in argument_values(task, "set"):
        yield from _expression_problems("set", value)
    for value in argument_values(task, "clauses"):
        for clause in value if isinstance(value, Sequence) and not isinstance(value, str) else ():
            if isinstance(clause, Mapping):
                condition = clause.get("condition")
                if is_literal(condition) and (problem := predicate_problem(str(condition))) is not None:
                    yield f"the condition {condition!r} of a clause {problem}."
                yield from _expression_problems("set of a clause", clause.get("set"))


def _expression_problems(name: str, values: Any) -> Iterator[str]:
    for column, text in values.items() if isinstance(values, Mapping) else ():
        if is_literal(text) and (problem := syntax_of(text)) is not None:
            yield f"{name}, column {column!r}: {text!r} {problem}."


def _schema_problem(columns: Any) -> str | None:
    """Return what is wrong with a literal schema: columns as in SQL, or Spark's JSON form, as text or not."""
    try:
        text = json.dumps(columns) if isinstance(columns, Mapping) else columns
        if is_literal(text):
            engine.schema_of_columns(text)
    except (DeltaAnalysisException, TypeError, ValueError) as error:
        return getattr(error, "message", str(error))
    return None


def predicate_problem(text: str) -> str | None:
    """Return what is wrong with a condition in Spark SQL, for which no table is needed; ``None`` if nothing is."""
    if not text.strip():
        return "is empty; leave the parameter out"
    return syntax_of(text, condition=True)


def syntax_of(text: str, *, condition: bool = False) -> str | None:
    """Return what is wrong with the syntax of an expression in Spark SQL; ``None`` if nothing is.

    :param condition: whether it has to be a condition.
    """
    if (problem := engine.oversized(text)) is not None:
        return problem
    try:
        tree = engine.tree_of(with_escaped_quotes(text))
    except engine.SqlSyntaxError as error:
        return f"is not valid Spark SQL: {error}"
    except RecursionError:
        return "is nested too deeply"
    if engine.is_statement(tree):
        return "is a statement, not a condition" if condition else "is a statement, not an expression"
    if condition and not engine.may_be_condition(tree):
        return "is not a condition"
    return None


# -- tasks, mapped or not -------------------------------------------------------------------------------------------------------


def _is_ours(task: Any) -> bool:
    cls = class_of(task)
    return isinstance(cls, type) and any(base.__module__.startswith("airflow_delta.") for base in cls.__mro__)
