"""Faults of the past are found again: by a short sequence that shows each, and by looking for it: all in a long run.

On today's code the sequences pass; with the mend taken away (:mod:`faults.mutations.found_again`) each fails.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from faults.life.clock import DAY, HOUR
from faults.life.machine import Life
from faults.life.model import Wrong
from faults.mutations.found_again import ROWS, find, put_back, told


def _files_deleted(life: Any) -> None:
    life.choose(dags=["slot_skip"], foreign=0, rows=True)
    life.other_writer(part="2", deletes=False)
    life.clean_up_log(days=35)
    life.end_again(run=0)


def _removed_instances(life: Any) -> None:
    life.choose(dags=["load_append"], foreign=0, rows=False)
    life.begin_run(dag=0, values=[1, 2], skips=True, slot=0, version=0)
    life.finish(run=0)
    life.run_again(run=0, values=[1], skips=True)


def _removed_before_the_commit(life: Any) -> None:
    life.choose(dags=["load_skip"], foreign=0, rows=False)
    life.begin_run(dag=0, values=[1, 2], skips=True, slot=0, version=0)
    for _ in range(5):  # choose, start, values, and both instances
        life.run_task(run=0, task=0, fate="ok")
    life.clear(run=0, tasks={2, 5}, downstream=False, values=[1], skips=True)
    life.finish(run=0)


def _rows_elsewhere(life: Any) -> None:
    life.choose(dags=["slot_skip"], foreign=0, rows=True)
    life.begin_run(dag=0, values=[1], skips=False, slot=0, version=0)
    life.run_task(run=1, task=0, fate="ok")
    life.run_task(run=1, task=0, fate="killed")


def _positions(life: Any) -> None:
    life.choose(dags=["each_skip"], foreign=0, rows=False)
    life.begin_run(dag=0, values=[1], skips=False, slot=0, version=0)
    life.finish(run=0)
    life.run_again(run=0, values=[4, 1], skips=False)


def _retry(life: Any) -> None:
    life.choose(dags=["ops_append"], foreign=0, rows=True)
    life.begin_run(dag=0, values=[1], skips=False, slot=0, version=0)
    life.run_task(run=1, task=0, fate="lost")
    life.other_writer(part="2", deletes=False)
    life.run_task(run=1, task=0, fate="ok")


def _expired_key(life: Any) -> None:
    life.choose(dags=["load_skip"], foreign=0, rows=False)
    life.begin_run(dag=0, values=[1], skips=True, slot=0, version=0)
    life.finish(run=0)
    life.jump(seconds=91 * DAY)
    life.run_again(run=0, values=[1], skips=True)


def _published_meanwhile(life: Any) -> None:
    life.choose(dags=["slot_skip"], foreign=0, rows=True)
    life.begin_run(dag=0, values=[1], skips=False, slot=0, version=0)
    for _ in range(2):
        life.run_task(run=1, task=0, fate="ok")
    life.vacuum(hours=None, days=8, meanwhile=0)


def _other_files(life: Any) -> None:
    life.choose(dags=["slot_skip"], foreign=1, rows=False)
    life.begin_run(dag=0, values=[1], skips=False, slot=0, version=0)
    life.run_task(run=0, task=0, fate="ok")


def _same_column(life: Any) -> None:
    life.choose(dags=["wide_skip"], foreign=0, rows=True)
    for _ in range(2):
        life.begin_run(dag=0, values=[1], skips=False, slot=0, version=0)
    for run in (1, 2):
        for _ in range(2):
            life.run_task(run=run, task=0, fate="ok")
    life.finish(run=1)
    life.finish(run=2)


def _clock_of_a_run(life: Any) -> None:
    life.choose(dags=["load_replace"], foreign=0, rows=False)
    life.begin_run(dag=0, values=[1], skips=False, slot=0, version=0, ends=True)
    life.jump(seconds=-2 * HOUR)
    life.other_writer(part="1", deletes=False)
    life.clean_up_log(days=95)
    life.other_writer(part="1", deletes=False)
    life.run_again(run=0, values=[1], skips=False)


def _clock_of_a_retry(life: Any) -> None:
    life.choose(dags=["ops_append"], foreign=0, rows=True)
    life.begin_run(dag=0, values=[1], skips=False, slot=0, version=0)
    life.run_task(run=1, task=0, fate="lost")
    life.jump(seconds=-HOUR)
    life.other_writer(part="2", deletes=False)
    life.run_task(run=1, task=0, fate="ok")


SEQUENCES: dict[str, Callable[[Any], None]] = {
    "1": _files_deleted,
    "2": _removed_instances,
    "2 start kept": _removed_before_the_commit,
    "3": _rows_elsewhere,
    "6": _positions,
    "7": _retry,
    "8": _expired_key,
    "10": _published_meanwhile,
    "17": _other_files,
    "18": _same_column,
    "clock of a run": _clock_of_a_run,
    "clock of a retry": _clock_of_a_retry,
}


def _live(sequence: Callable[[Any], None]) -> None:
    life = Life()
    try:
        sequence(_Watched(life))
    finally:
        life.teardown()


class _Watched:
    """A machine that looks at the table after each rule."""

    def __init__(self, life: Life) -> None:
        self._life = life

    def __getattr__(self, rule: str) -> Callable[..., None]:
        def run(**arguments: Any) -> None:
            getattr(self._life, rule)(**arguments)
            self._life.the_table_holds_what_it_must()

        return run


@pytest.mark.parametrize("row", SEQUENCES)
def test_a_sequence_that_showed_a_fault_shows_none_now(row):
    _live(SEQUENCES[row])


@pytest.mark.parametrize("row", SEQUENCES)
def test_a_sequence_shows_its_fault_where_the_mend_is_taken_away(row):
    with put_back(row if row in ROWS else row.partition(" ")[0]), pytest.raises(Wrong):
        _live(SEQUENCES[row])


SOON = {"4": 200, "9 suffix": 200, "9 spelling": 200, "11": 200, "12": 200, "15": 50}
"""Rows that are found within so many examples."""


@pytest.mark.parametrize("row", ROWS if os.environ.get("FAULTS") == "long" else SOON)
def test_the_machine_finds_it_again(row, is_long, seed, figures):
    wrong = find(row, examples=10_000 if is_long else SOON[row], seed=seed, shrinks=is_long)
    assert isinstance(wrong, Wrong), f"row {row} was not found again: {wrong!r}"
    figures(f"found_again_{row.replace(' ', '_')}", tried=1, failed=0, seed=seed, shown=told(wrong))
