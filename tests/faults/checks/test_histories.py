"""Checks compared with what is published: random histories, and what is left out on purpose and must be noticed."""

from __future__ import annotations

import pytest

from airflow_delta.table.audit.held import HeldChecks
from airflow_delta.tasks.checks import seen
from faults.checks.histories import History

HISTORIES, LONG = 200, 10_000


def run_history(base, supervisor, monkeypatch, seed):
    base.mkdir()
    history = History(base, supervisor, seed)
    found = history.run(monkeypatch.setattr)
    return history, found


def test_no_check_has_seen_something_else(tmp_path, outside_of_the_task_runner, monkeypatch, seed, is_long, figures):
    outcomes = {"published": 0, "refused": 0}
    count = LONG if is_long else HISTORIES
    for number in range(count):
        history, wrong = run_history(tmp_path / str(number), outside_of_the_task_runner, monkeypatch, seed + number)
        assert not wrong, f"seed {seed + number}: {wrong}\n" + "\n".join(history.told)
        outcomes["published"] += history.published is not None
        outcomes["refused"] += history.refused
    assert min(outcomes.values()) > count // 25, outcomes  # a seventh and a third are usual
    figures("checks", tried=count, failed=0, seed=seed, **outcomes)


def _not_said_of(*names):
    """Checks of these tasks are never outdated."""

    def broken(evidence, writes, _right=seen.outdated):
        return (each for each in _right(evidence, writes) if each.check[0] not in names)

    return seen, "outdated", broken


def _first_look_only(self, winners, actions, _right=HeldChecks.__call__):
    if not hasattr(self, "looked"):
        self.looked = True
        _right(self, winners, actions)


BROKEN = {
    "attempts that an audit has judged are not compared": _not_said_of("audit"),
    "attempts that a preview shows are not compared": _not_said_of("preview"),
    "what tasks without a report have begun after is not compared": _not_said_of("other"),
    "what a check has read is not compared with winners": (HeldChecks, "_reads", ()),
    "rows are not counted again": (HeldChecks, "_judge", lambda *_: None),
    "winners of a second look are not compared": (HeldChecks, "__call__", _first_look_only),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_left_out_is_noticed(tmp_path, outside_of_the_task_runner, monkeypatch, seed, name):
    monkeypatch.setattr(*BROKEN[name])
    for number in range(3_000):
        _, wrong = run_history(tmp_path / str(number), outside_of_the_task_runner, monkeypatch, seed + number)
        if wrong:
            return
    pytest.fail(f"nobody has noticed it, from seed {seed} on")


@pytest.mark.parametrize("is_broken", [False, True])
def test_what_has_seen_an_older_preview(tmp_path, outside_of_the_task_runner, monkeypatch, is_broken):
    """The preview was written again alone, and who looked at it before is asked again; random clears seldom come to that."""
    if is_broken:
        monkeypatch.setattr(*_not_said_of("look"))
    history = History(tmp_path, outside_of_the_task_runner, 1)
    history.go("start", "one", "two", "audit", "preview", "look", "other")
    for name in ("one", "preview"):
        history.clear(name, downstream=False)
        history.go(name)
    history.commit(monkeypatch.setattr)
    assert {"audit", "look", "other", "commit"} - set(history.ready()) == ({"look", "commit"} if is_broken else {"commit"})
    history.go(*(name for name in history.ready()))
    history.commit(monkeypatch.setattr)
    assert history.published is not None
    assert [wrong.partition(" 1-")[0] for wrong in history.wrong] == ["look has read attempt"] * is_broken
