"""Trigger rules of the tasks that publish: whether a commit waits for what is before it, and whether it minds its failure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_delta.dag_rules.arguments import argument, parent_defaults
from airflow_delta.dag_rules.wiring import class_of, role_of

SAFE_RULES = ("all_success", "none_failed", "none_failed_min_one_success", "all_skipped")
"""Trigger rules with which a commit publishes only if no task before it has failed."""

AUTHORS_RISK = ("all_done", "all_done_min_one_success", "all_done_setup_success", "all_failed", "none_skipped")
"""Trigger rules that, named on a commit, say that it publishes although a task before it has failed."""

RACING_RULES = ("always", "one_success", "one_failed", "one_done")
"""Trigger rules that do not wait for every task before: no commit may have them."""


def trigger_rule_problems(task: Any) -> Iterator[str]:
    """Yield a trigger rule with which a task may publish what it should not.

    :param task: as the Dag file defines it, mapped or not.
    """
    operator_class, role, rule = class_of(task), role_of(task), argument(task, "trigger_rule")
    in_transaction = role in ("start", "commit") or argument(task, "transaction") is not None
    if role == "commit" and rule in RACING_RULES:
        yield (
            f"trigger_rule={str(getattr(rule, 'value', rule))!r} does not wait for every task before the commit: it would race "
            "its audits, and chance would decide whether rows that they refuse are published. If stages may be skipped (with "
            "allow_skipped=True), use 'none_failed' or 'none_failed_min_one_success'; to publish whatever other tasks say, "
            "'all_done'."
        )
    # Airflow maps a decorated function without asking its operator, which would not take the rule from default_args.
    if task.is_mapped and getattr(operator_class, "emits_table", False) and not in_transaction:
        default = parent_defaults(task).get("trigger_rule", "all_success")
        if default != "all_success" and rule == default:
            yield (
                f"trigger_rule={str(getattr(rule, 'value', rule))!r} comes from default_args, and the task commits to a table. "
                "Whether it does so although a task before it failed is not left to defaults: take trigger_rule out of them, and "
                "name it on the tasks that need it."
            )
