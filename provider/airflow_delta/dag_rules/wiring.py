"""How the tasks of a Dag that take part in transactions hang together: what no commit would publish, or wait for.

Seen in the Dag file, where it costs nothing: at run time every one of these tasks succeeds, and rows are missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airflow.sdk import XComArg

from airflow_delta.dag_rules.key_precision import is_of_the_run

_IDENTITY = ("table", "delta_conn_id", "transaction_key", "app_id", "txn_version")

_ONCE = ("skip", "replace", "fail")
"""Policies under which a key is in the table once. A template may be another."""


def wiring_problems(task: Any) -> Iterator[str]:
    """Yield what is wrong between a task and the others of its transactions.

    :param task: in a Dag that is complete.
    """
    role = role_of(task)
    if role == "commit":
        yield from _commit_problems(task)
    elif role in ("stage", "audit"):
        for start in _starts_of(task):
            if commits := _commits_of(start):
                yield from (_stage_problems if role == "stage" else _audit_problems)(task, start, commits)
    if role in ("start", "stage", None):
        yield from _shared_key_problems(task)


def wiring_warnings(task: Any) -> Iterator[str]:
    """Yield what is likely to be meant otherwise between a task and the others of its transactions."""
    if role_of(task) != "commit" or (task.allow_skipped if hasattr(task, "allow_skipped") else True) is not False:
        return
    for start in _starts_of(task):
        before_start = start.get_flat_relative_ids(upstream=True)
        for stage in (source for source in _sources(task, "staged") if role_of(source) == "stage"):
            branches = (each for each in stage.get_flat_relatives(upstream=True) if hasattr(class_of(each), "skip_all_except"))
            branch = next((each for each in branches if each.task_id not in before_start), None)
            if branch is not None:
                yield (
                    f"{branch.task_id!r} may skip the stage {stage.task_id!r}, and then the commit is skipped, too: the run "
                    "succeeds and publishes nothing. To publish what the other stages have staged, set allow_skipped=True and "
                    "trigger_rule='none_failed' on the commit (commit_kwargs of delta_transaction); to skip the whole "
                    "transaction, put the branch before its start task."
                )
                return


def role_of(task: Any) -> str | None:
    """Return what a task, mapped or not, does in a transaction; ``None`` if it is in none."""
    return getattr(class_of(task), "transaction_role", None)


def _commit_problems(commit: Any) -> Iterator[str]:
    for start in _starts_of(commit):
        for other in _commits_of(start):
            if other.task_id < commit.task_id and not _are_alternatives(other, commit):
                yield (
                    f"the transaction of {start.task_id!r} has another commit, {other.task_id!r}. A transaction is one version: "
                    "whichever runs second finds it committed, and publishes nothing. Pass the outputs of all stages to one of "
                    "them, or begin a transaction for each."
                )


def _stage_problems(stage: Any, start: Any, commits: list[Any]) -> Iterator[str]:
    sources = [source for commit in commits for source in _sources(commit, "staged")]
    if any(role_of(source) != "stage" for source in sources) or not all(_names_only_outputs(commit) for commit in commits):
        return  # what another task hands on is seen by the commit
    if not any(source is stage for source in sources):
        yield (
            f"it stages rows for the transaction of {start.task_id!r}, but the commit {commits[0].task_id!r} does not get its "
            "output, so nobody would publish them. Put the task into the block of that transaction, or pass its output to the "
            "commit (staged=)."
        )


def _audit_problems(audit: Any, start: Any, commits: list[Any]) -> Iterator[str]:
    after = audit.get_flat_relative_ids(upstream=False)
    if not any(commit.task_id in after for commit in commits):
        yield (
            f"it checks the transaction of {start.task_id!r}, but the commit {commits[0].task_id!r} does not wait for it, and "
            "publishes what it refuses. Put the task into the block of that transaction, or upstream of the commit."
        )


def _shared_key_problems(task: Any) -> Iterator[str]:
    mine = _identity(task)
    if mine is None or not all(value is None or is_of_the_run(value) for value in mine.values()):
        return
    dag = task.get_dag()
    for other in () if dag is None else dag.tasks:
        if other.task_id >= task.task_id or role_of(other) not in ("start", "stage", None) or _identity(other) != mine:
            continue
        if not _are_alternatives(task, other) and getattr(task, "params", None) == getattr(other, "params", None):
            key = mine["transaction_key"] if mine["transaction_key"] is not None else mine["app_id"]
            yield (
                f"it has the transaction key {key!r}, as {other.task_id!r} has for the same table. Once one has committed, the "
                "other finds the key in the log, and does nothing. Give each a key of its own, or key_check='off' if that is "
                "meant."
            )


def _identity(task: Any) -> dict[str, Any] | None:
    """Return table and key of a task with a transaction of its own, as given; ``None`` if the key may be there twice."""
    if task.is_mapped or getattr(task, "transaction", None) is not None or not hasattr(task, "rerun_policy"):
        return None
    found = {name: getattr(task, name, None) for name in _IDENTITY}
    if found["transaction_key"] is None and (found["app_id"] is None or found["txn_version"] is None):
        return None
    if task.rerun_policy not in _ONCE or getattr(task, "key_check", None) not in ("warn", "fail"):
        return None
    return {**found, "txn_version": None if found["txn_version"] is None else str(found["txn_version"])}


def _are_alternatives(one: Any, other: Any) -> bool:
    """Return whether a task before both, such as a branch, may let only one of them run."""
    if other.task_id in one.get_flat_relative_ids(upstream=True) or one.task_id in other.get_flat_relative_ids(upstream=True):
        return False
    before_other = other.get_flat_relative_ids(upstream=True)
    return any(
        task.task_id in before_other and hasattr(class_of(task), "skip_all_except")
        for task in one.get_flat_relatives(upstream=True)
    )


def _starts_of(task: Any) -> list[Any]:
    """Return the start tasks whose outputs a task gets as its transaction."""
    sources = [source for name in ("transaction", "transactions") for source in _sources(task, name)]
    return list({source.task_id: source for source in sources if role_of(source) == "start"}.values())


def _commits_of(start: Any) -> list[Any]:
    commits = [task for task in start.downstream_list if role_of(task) == "commit"]
    return sorted((task for task in commits if start in _starts_of(task)), key=lambda task: str(task.task_id))


def _sources(task: Any, name: str) -> list[Any]:
    """Return the tasks whose outputs a parameter has, of a mapped task also those that it is mapped over."""
    return [source for value in _values(task, name) for source, _ in XComArg.iter_xcom_references(value)]


def _names_only_outputs(commit: Any) -> bool:
    """Return whether ``staged`` of a commit is made of outputs alone."""

    def is_output(value: Any) -> bool:
        return all(map(is_output, value)) if isinstance(value, list | tuple) else isinstance(value, XComArg)

    return all(is_output(value) for value in _values(commit, "staged"))


def _values(task: Any, name: str) -> list[Any]:
    if not task.is_mapped:
        return [getattr(task, name, None)]
    mapped = getattr(getattr(task, "_get_specified_expand_input", lambda: None)(), "value", None)
    mapped = mapped.get(name) if isinstance(mapped, Mapping) else mapped
    return [value for value in (task.partial_kwargs.get(name), mapped) if value is not None]


def class_of(task: Any) -> Any:
    """Return the class of a task, mapped or not."""
    return getattr(task, "operator_class", None) or type(task)
