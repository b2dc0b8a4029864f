"""Searches for a sequence of runs, files or a log that shows a fault."""

from __future__ import annotations

from typing import Any

import hypothesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from faults.life.files import PARTITION_COLUMNS, Case, check_unreadable, unreadable_logs, writes
from faults.life.machine import Life

STEPS = 30
"""Of a sequence."""

_SETTINGS: dict[str, Any] = {"deadline": None, "database": None, "report_multiple_bugs": False}
_SETTINGS["suppress_health_check"] = list(HealthCheck)


def try_life(sequences: int, seed: int, *, only: str | None = None, **more: Any) -> None:
    """Try so many sequences; the first that shows a fault is shrunk and raised.

    :param only: kind of their Dags.
    """
    machine = hypothesis.seed(seed)(type("Life", (Life,), {"only": only}))
    options: dict[str, Any] = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
    options |= {"report_multiple_bugs": False, "print_blob": True, "stateful_step_count": STEPS}
    run_state_machine_as_test(machine, settings=settings(max_examples=sequences, **options, **more))


def _check(partition: str, dots: bool, declared: bool, jobs: list[Any]) -> None:
    case = Case(partition, dots=dots, declared=declared)
    try:
        for job in jobs:
            case.write(job)
            case.check()
    finally:
        case.close()


def try_files(examples: int, seed: int, **more: Any) -> None:
    """Try so many tables."""
    tables = {"partition": st.sampled_from(PARTITION_COLUMNS), "dots": st.booleans(), "declared": st.booleans()}
    check = given(**tables, jobs=st.lists(writes, min_size=1, max_size=2))(_check)
    hypothesis.seed(seed)(settings(**_SETTINGS, max_examples=examples, **more)(check))()


def try_logs(examples: int, seed: int, **more: Any) -> None:
    """Try so many logs."""
    hypothesis.seed(seed)(settings(**_SETTINGS, max_examples=examples, **more)(given(unreadable_logs())(check_unreadable)))()
