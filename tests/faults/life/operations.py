"""What the model says about operations that are transactions of their own, and about other writers."""

from __future__ import annotations

from typing import Any

from faults.life.model import FILES_KEPT, KEYS_KEPT, Event, LogKey, Model, Rows, expect

FORGOTTEN = ("TransactionExpiredException", "HandleMismatchException")
"""Errors of a key that has expired: of one that may have been committed, and of one that an earlier try says was."""


def operated(
    model: Model,
    outcome: Any,
    *,
    key: str,
    policy: str,
    chain: tuple[Any, ...],
    since: float,
    now: float,
    rows: Rows,
    target: int,
) -> None:
    """Judge a try of an operation.

    :param chain: the task instance and what its tries since the last clear have in common.
    :param rows: what the table must hold if it runs.
    :param target: version that it restores, -1 if it restores none.
    """
    known = model.keys.get(key)
    name = type(outcome.error).__name__
    may_forget = now - since > KEYS_KEPT or (known is not None and model.oldest_commit > 0)
    if model.version < 0:
        expect(outcome.refused(), "the table does not exist", outcome)
        return
    if known is not None and (chain in known.tries or policy in ("skip", "fail")):
        if outcome.refused():
            fits = name == "TransactionAlreadyCommittedException" and policy == "fail" and chain not in known.tries
            forgotten = may_forget and (name in FORGOTTEN or (target >= 0 and _may_be_gone(model, target, now)))
            expect(fits or forgotten, f"{key} is committed", outcome)
        else:
            expect(policy != "fail" or chain in known.tries, f"{key} is committed, and {policy} runs it again", outcome)
            expect(outcome.value["committedBefore"], f"{key} is committed, and {policy} runs it again", outcome)
        return
    if outcome.refused():
        forgets = name in FORGOTTEN and may_forget
        expect(forgets or (target >= 0 and _may_be_gone(model, target, now)), f"{key} was refused", outcome)
        return
    expect(not outcome.value["committedBefore"], f"{key} is not committed", outcome)
    version = outcome.value["version"]
    touched = frozenset(model.rows.values()) | frozenset(rows.values())
    kind = "restore" if target >= 0 else None
    if rows == model.rows and kind is None:
        touched = frozenset()
    if version > model.version:
        model.change(Event(version, touched if kind else frozenset(), touched, kind, key), rows)
        known = model.keys.setdefault(key, LogKey())
        known.last = now
        known.tries.add(chain)


def _may_be_gone(model: Model, version: int, now: float) -> bool:
    next_time = model.times.get(version, now)
    return now - next_time > FILES_KEPT - 1 or model.last_vacuum is not None or model.oldest_commit > 0


def restored(model: Model, version: int) -> Rows:
    return dict(model.history.get(version, {}))  # there may be no table


def without(model: Model, part: str) -> Rows:
    return {row: of for row, of in model.rows.items() if of != part}
