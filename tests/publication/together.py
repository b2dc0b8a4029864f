"""Several publications of the same tables at the same time, and nobody else: their workers take turns at every look and put."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.exceptions import DeltaError, PublicationSplitException, PublicationUndoneException
from airflow_delta.log import DeltaLog
from airflow_delta.log.storage.local import LocalStore
from airflow_delta.publication import Member, get_versions, open_publications
from publication.beside import side_by_side
from publication.judge import judge_rows, judge_states, judge_versions, shown
from publication.lake import LakeTable, publish_all

PART = "part = 'a'"


class Turns:
    """Threads of which one runs at a time; who goes on at each point is drawn by lot.

    :param seed: of the lots.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._waiting: list[threading.Thread] = []
        self._turn: threading.Thread | None = None
        self._changed = threading.Condition()

    def reach(self) -> None:
        """Let another one go on, perhaps."""
        me = threading.current_thread()
        with self._changed:
            if me not in self._waiting:
                return
            self._draw()
            self._changed.wait_for(lambda: self._turn is me)

    def _draw(self) -> None:
        self._turn = self._random.choice(self._waiting) if self._waiting else None
        self._changed.notify_all()

    def _body(self, work: Callable[[], object]) -> None:
        me = threading.current_thread()
        with self._changed:
            self._changed.wait_for(lambda: self._turn is me)
        try:
            work()
        finally:
            with self._changed:
                self._waiting.remove(me)
                self._draw()

    def begin(self, work: Callable[[], object]) -> threading.Thread:
        """Run something in a thread of its own, which takes turns with all others."""
        thread = threading.Thread(target=self._body, args=(work,), daemon=True)
        self._waiting.append(thread)
        thread.start()
        return thread

    def run(self, works: Sequence[Callable[[], object]], *, within: float = 120.0) -> None:
        """Run each in a thread of its own, to its end."""
        threads = [self.begin(work) for work in works]
        with self._changed:
            self._draw()
        for thread in threads:
            thread.join(within)
            assert not thread.is_alive(), "a worker does not end"


@contextmanager
def taking_turns(turns: Turns) -> Iterator[None]:
    """Make every look at a log and every put a point, and nobody wait for another one of this process."""
    points = [(DeltaLog, "update"), (DeltaLog, "read_commits"), (DeltaLog, "read_new_commits"), (LocalStore, "put_if_absent")]
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in points:
            patch.setattr(owner, name, _pointed(turns, getattr(owner, name)))
        patch.setattr("airflow_delta.transaction.commit.committer.lock_commit_if_enabled", lambda *_: nullcontext())
        yield


@contextmanager
def tables_taking_turns(turns: Turns) -> Iterator[None]:
    """Let workers work on their tables side by side, in threads that take turns with those of all workers."""

    class Threads:
        def __init__(self, _number: int) -> None:
            self._threads: list[threading.Thread] = []

        def __enter__(self) -> Threads:
            return self

        def __exit__(self, *_: object) -> None:
            for thread in self._threads:
                thread.join(120)

        def submit(self, work: Callable[..., object], *args: object) -> Future[object]:
            future: Future[object] = Future()

            def run() -> None:
                try:
                    future.set_result(work(*args))
                except BaseException as error:
                    future.set_exception(error)

            self._threads.append(turns.begin(run))
            return future

    def wait_for_all(futures: Sequence[Future[object]]) -> None:
        while not all(future.done() for future in futures):
            turns.reach()

    def wait_in_line(line: Any, place: int) -> None:
        while not line.is_open(place):
            turns.reach()

    with side_by_side(), pytest.MonkeyPatch.context() as patch:
        module = "airflow_delta.publication.side_by_side"
        patch.setattr(f"{module}._threads", Threads)
        patch.setattr(f"{module}.wait", wait_for_all)
        patch.setattr(f"{module}._Line.await_open", wait_in_line)
        yield


def _pointed(turns: Turns, real: Callable[..., Any]) -> Callable[..., Any]:
    def pointed(self: Any, *args: Any, **options: Any) -> Any:
        turns.reach()
        return real(self, *args, **options)

    return pointed


@dataclass
class Worker:
    """One publication and what its commit task reported."""

    members: list[Member]
    reads: list[bool]
    anchor: str
    patience: float
    outcome: str = ""
    error: BaseException | None = None

    def publish(self) -> None:
        """Publish, as a commit task does."""
        try:
            self.outcome = publish_all(self.members, anchor=self.anchor, patience=self.patience).outcome
        except PublicationUndoneException as error:
            self.outcome, self.error = "undone", error
        except PublicationSplitException as error:
            self.outcome, self.error = "split", error
        except DeltaError as error:
            self.outcome, self.error = "refused", error
        except BaseException as error:
            self.outcome, self.error = "lost", error


@dataclass
class Together:
    """Publications of some tables.

    :param tables: of which each publication has at least two.
    """

    tables: list[LakeTable]
    workers: list[Worker] = field(default_factory=list)

    @classmethod
    def drawn(cls, folder: Path, seed: int) -> Together:
        """Return two or three publications of two to four tables, in orders and modes that are drawn by lot."""
        draw = random.Random(seed)
        made = cls.of(folder, draw.randint(2, 4))
        patience = draw.choice([0.0, 0.0, 0.05])
        for number in range(draw.choice([2, 2, 3])):
            tables = draw.sample(made.tables, draw.randint(2, len(made.tables)))
            reads = [draw.random() < 0.5 for _ in tables]
            made.add(f"p{number}", tables, reads, anchor=draw.choice([made.tables[0], tables[0]]), patience=patience)
        return made

    @classmethod
    def of(cls, folder: Path, count: int) -> Together:
        tables = [LakeTable(folder / f"t{n}") for n in range(count)]
        for number, table in enumerate(tables):
            table.fill([10 * number + 1, 10 * number + 2])
        return cls(tables)

    def add(self, key: str, tables: list[LakeTable], reads: list[bool], *, anchor: LakeTable, patience: float) -> None:
        """Add a publication; each has one row of its own for every table, and replaces those that it reads."""
        new = 1000 + 10 * len(self.workers)
        members = [
            replace(table.member(key, [new + n], replaces=PART if of_one else None), conflict_detection="delta")
            for n, (table, of_one) in enumerate(zip(tables, reads, strict=True))
        ]
        at = anchor.uri if anchor in tables else tables[0].uri
        self.workers.append(Worker(members, reads, at, patience))

    def run(self, seed: int, *, beside: bool = False) -> list[str]:
        """Let all publish at the same time; return what is wrong with that.

        :param beside: each works on its tables side by side.
        """
        turns = Turns(seed)
        with taking_turns(turns), tables_taking_turns(turns) if beside else nullcontext():
            turns.run([worker.publish for worker in self.workers])
        return self.judge()

    def judge(self) -> list[str]:
        """Return what is wrong: without a foreign writer none is taken back or split, and each has its end."""
        wrong = [
            f"publication {number} is {worker.outcome}: {worker.error!r}"
            for number, worker in enumerate(self.workers)
            if worker.outcome not in ("published", "refused")
        ]
        logs = {table.uri: table.entries() for table in self.tables}
        for table in self.tables:
            wrong += [*judge_versions(table.uri, logs[table.uri]), *judge_rows(table, logs[table.uri])]
            wrong += [f"{found.publication} is open on {table.uri}" for found in open_publications(table.log())]
        wrong += judge_states(logs)
        wrong += [
            f"{entry['publication']} {entry['state']} on {uri}"
            for uri, entries in logs.items()
            for entry in entries
            if entry["state"] in ("undone", "stands")
        ]
        heads = {uri: len(entries) - 1 for uri, entries in logs.items()}
        if get_versions({table.uri: table.log() for table in self.tables}).versions != heads:
            wrong.append("a reader is held back at the end")
        for name, on in shown(logs, heads).items():
            owner = next(
                worker for worker in self.workers if any(name.startswith(m.handle.transaction_id) for m in worker.members)
            )
            count = len(on) if owner.outcome == "published" else 0
            if sum(on.values()) != count:
                wrong.append(f"{name} was reported as {owner.outcome}, and is on {on}")
        return wrong
