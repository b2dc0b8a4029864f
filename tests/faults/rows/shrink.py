"""Makes a history that is wrong as short as it can be while it stays wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from faults.rows.model import Append, Merge, Step
from faults.rows.setting import History

T = TypeVar("T")


def shrunk(history: History, wrong: Callable[[History], Sequence[str]]) -> History:
    """Return a history of which nothing more can be left out.

    :param wrong: returns what is wrong with a history; the same kind of thing must stay wrong.
    """
    kind = _kind(wrong(history))
    while True:
        smaller = next((other for other in _smaller(history) if _kind(wrong(other)) == kind), None)
        if smaller is None:
            return history
        history = smaller


def _kind(wrong: Sequence[str]) -> str | None:
    """Return what kind of fault it is: rows, the state of the log, or an error."""
    if not wrong:
        return None
    return "rows" if "missing [" in wrong[0] else "error" if wrong[0].startswith("after") else "state"


def _smaller(history: History) -> Iterator[History]:
    for steps in _without_one(history.steps):
        yield replace(history, steps=steps)
    for number, step in enumerate(history.steps):
        for other in _smaller_steps(step):
            yield replace(history, steps=(*history.steps[:number], other, *history.steps[number + 1 :]))
    for first in _without_one(history.first):
        yield replace(history, first=first)
    for number, rows in enumerate(history.first):
        for fewer in _without_one(rows):
            if fewer:
                yield replace(history, first=(*history.first[:number], fewer, *history.first[number + 1 :]))
    setting = history.setting
    for plain in ("partitioned", "mapped", "prunes", "shared", "interval", "tracked"):
        if getattr(setting, plain):
            yield replace(history, setting=replace(setting, **{plain: None if plain == "interval" else False}))
    if setting.stats != "footer":
        yield replace(history, setting=replace(setting, stats="footer"))
    if setting.fine != 1000:
        yield replace(history, setting=replace(setting, fine=1000))


def _smaller_steps(step: Step) -> Iterator[Step]:
    for inside in _without_one(step.inside):
        yield replace(step, inside=inside)
    if step.rust:
        yield replace(step, rust=False)
    if step.lag:
        yield replace(step, lag=step.lag - 1)
    operation = step.operation
    if isinstance(operation, Append) and len(operation.rows) > 1:
        for rows in _without_one(operation.rows):
            yield replace(step, operation=replace(operation, rows=rows))
    if isinstance(operation, Merge):
        for source in _without_one(operation.source):
            yield replace(step, operation=replace(operation, source=source))
    for plain in ("keeps_ids", "rewrites", "inline"):
        if getattr(step, plain):
            yield replace(step, **{plain: False})


def _without_one(items: tuple[T, ...]) -> Iterator[tuple[T, ...]]:
    for number in range(len(items)):
        yield (*items[:number], *items[number + 1 :])
