"""Whatever happens to the runs on a table, in any order: it holds what a naive model says, and no try ends as it must not."""

from __future__ import annotations

import os
from typing import Any

import hypothesis
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from faults.life_machine import Life

SEQUENCES, STEPS = 300, 30
LONG = 10_000


def try_life(sequences: int, seed: int, *, only: str | None = None, **more: Any) -> None:
    """Try so many sequences; the first that shows a fault is shrunk and raised.

    :param only: kind of their Dags.
    """
    machine = hypothesis.seed(seed)(type("Life", (Life,), {"only": only}))
    options: dict[str, Any] = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
    options |= {"report_multiple_bugs": False, "print_blob": True, "stateful_step_count": STEPS}
    run_state_machine_as_test(machine, settings=settings(max_examples=sequences, **options, **more))


def test_runs_leave_what_they_must(is_long, seed, figures):
    sequences = LONG if is_long else int(os.environ.get("LIFE_SEQUENCES", SEQUENCES))
    try_life(sequences, seed)
    figures("life_of_a_run", tried=sequences, failed=0, seed=seed)
