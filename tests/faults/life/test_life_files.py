"""Whatever files a job leaves and whatever log another writer has: exactly their rows, or a refusal."""

from __future__ import annotations

from typing import Any

import hypothesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from faults.life.files import PARTITION_COLUMNS, Case, check_unreadable, unreadable_logs, writes


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


_SETTINGS: dict[str, Any] = {"deadline": None, "database": None, "report_multiple_bugs": False}
_SETTINGS["suppress_health_check"] = list(HealthCheck)


def test_a_table_has_exactly_the_rows_of_the_files(is_long, seed, figures):
    examples = 2000 if is_long else 60
    try_files(examples, seed)
    figures("files_of_jobs", tried=examples, failed=0, seed=seed)


def test_no_way_of_asking_lists_the_files_of_a_version_that_cannot_be_read(is_long, seed, figures):
    examples = 500 if is_long else 30
    try_logs(examples, seed)
    figures("unreadable_logs", tried=examples, failed=0, seed=seed)
