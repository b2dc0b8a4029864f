"""Runs histories: ``python -m faults.history.runner --seed 7 --count 200 --directory D``. Prints one line of JSON for each.

One warm process imports the engine, and forks the processes of every history from itself. The seed decides what they do, when
they are killed and what fails, but not how the machine interleaves them: a history that is wrong is kept, with log and notes.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_delta.log import DeltaLog
from faults.history.faulty_store import Chances, FaultyStore
from faults.history.judge import judge
from faults.history.log import lines_of
from faults.history.notes import Notes
from faults.history.writer import KINDS, PARTS, Writer, statistics
from faults.mutations.history_mutations import MUTATIONS

OF_METADATA = ("set_property", "enable_vectors", "add_column", "constrain")
"""Kinds of operations that end most others."""

ROWS_EACH = 1_000_000
FIRST_FILES = 8
RUNS_OF_ONE = 3
"""How often a process is started again after it was killed, at most, plus one."""

FEATURES = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["appendOnly", "deletionVectors", "invariants"]}
ROW_TRACKING = ["domainMetadata", "inCommitTimestamp", "rowTracking"]


@dataclass(frozen=True)
class Setting:
    """What one history is like."""

    level: str
    partitioned: bool
    tracked: bool
    listed: bool
    interval: int
    processes: int
    operations: int
    kinds: tuple[str, ...]
    chances: Chances
    mixed_levels: bool
    kill_within: float | None

    @classmethod
    def draw(cls, seed: random.Random, level: str | None, kinds: tuple[str, ...] = KINDS) -> Setting:
        """Draw one. Few kinds of operations at a time, so that they meet."""
        chosen = [kind for kind in kinds if seed.random() < (0.2 if kind in OF_METADATA else 0.5)] or list(kinds)
        faults = seed.random() < 0.75
        return cls(
            level=level or seed.choice(("Serializable", "WriteSerializable")),
            partitioned=seed.random() < 0.85,
            tracked=seed.random() < 0.3,
            listed=seed.random() < 0.4,
            interval=seed.choice((3, 5, 10)),
            processes=seed.randint(3, 4),
            operations=seed.randint(3, 5),
            kinds=tuple(chosen),
            chances=Chances(error=0.01, delay=0.02, put=0.2, death=0.04) if faults else Chances(delay=0.02),
            mixed_levels=seed.random() < 0.2,
            kill_within=0.15 if faults and seed.random() < 0.5 else None,
        )


@dataclass
class History:
    """One history below a directory.

    :param seed: of everything in it that can be decided.
    """

    folder: Path
    seed: str
    level: str | None = None
    kinds: tuple[str, ...] = KINDS
    setting: Setting = field(init=False)

    def __post_init__(self) -> None:
        self.setting = Setting.draw(random.Random(self.seed), self.level, self.kinds)

    @property
    def table(self) -> Path:
        return self.folder / "table"

    def create(self) -> None:
        """Write version 0, by hand."""
        (self.folder / "notes").mkdir(parents=True)
        (self.table / "_delta_log").mkdir(parents=True)
        setting = self.setting
        columns = {"value": "long"} | ({"part": "integer"} if setting.partitioned else {})
        fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns.items()]
        configuration = {"delta.checkpointInterval": str(setting.interval), "delta.isolationLevel": setting.level}
        features = {name: list(value) for name, value in FEATURES.items()}
        if setting.tracked:
            features["writerFeatures"] += ROW_TRACKING
            configuration["delta.enableInCommitTimestamps"] = "true"
        metadata = {
            "id": "11111111-2222-3333-4444-555555555555",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": ["part"] if setting.partitioned else [],
            "configuration": configuration,
            "createdTime": 1,
        }
        info = {"timestamp": 1, "operation": "CREATE TABLE", **({"inCommitTimestamp": 1} if setting.tracked else {})}
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
        actions: list[dict[str, Any]] = [{"commitInfo": info}, {"protocol": protocol}, {"metaData": metadata}]
        actions += [{"add": self._first_file(number)} for number in range(FIRST_FILES)]
        if setting.tracked:
            mark = json.dumps({"rowIdHighWaterMark": 2 * FIRST_FILES - 1})
            actions.append({"domainMetadata": {"domain": "delta.rowTracking", "configuration": mark, "removed": False}})
        text = "".join(json.dumps(action) + "\n" for action in actions)
        (self.table / "_delta_log" / f"{0:020d}.json").write_text(text)

    def _first_file(self, number: int) -> dict[str, Any]:
        rows = [10 * number + 3, 10 * number + 8]
        return {
            "path": f"first-{number}.parquet",
            "partitionValues": {"part": PARTS[number % len(PARTS)]} if self.setting.partitioned else {},
            "size": 1,
            "modificationTime": 1,
            "dataChange": True,
            "stats": statistics(rows),
            "tags": {"rows": json.dumps(rows)},
            **({"baseRowId": 2 * number, "defaultRowCommitVersion": 0} if self.setting.tracked else {}),
        }

    def run(self) -> None:
        """Run its processes, and a last reader."""
        self.create()
        chance = random.Random(f"{self.seed}-kills")
        running = {self._start(number, 0): (number, 0) for number in range(self.setting.processes)}
        within = self.setting.kill_within
        if within is not None:
            time.sleep(chance.uniform(0, within))
            os.kill(chance.choice(list(running)), signal.SIGKILL)
        while running:
            child, status = os.wait()
            number, turn = running.pop(child)
            if os.WIFSIGNALED(status) and turn + 1 < RUNS_OF_ONE:
                running[self._start(number, turn + 1)] = (number, turn + 1)
            elif not os.WIFSIGNALED(status) and os.WEXITSTATUS(status):
                raise RuntimeError(f"process {number}-{turn} of {self.folder} failed")
        last = _forked(self._read_at_last)
        if os.waitstatus_to_exitcode(os.waitpid(last, 0)[1]):
            raise RuntimeError(f"the last reader of {self.folder} failed")

    def _start(self, number: int, turn: int) -> int:
        return _forked(lambda: self._work(number, turn))

    def _notes_of(self, number: int, turn: int) -> Path:
        return self.folder / "notes" / f"{number}-{turn}.jsonl"

    def _work(self, number: int, turn: int) -> None:
        setting, chance = self.setting, random.Random(f"{self.seed}-{number}-{turn}")
        store = FaultyStore(str(self.table), setting.chances, random.Random(chance.random()), listed=setting.listed)
        with Notes(self._notes_of(number, turn)) as notes:
            log = DeltaLog(store)
            writer = Writer(log, notes, chance, setting.partitioned, (number * RUNS_OF_ONE + turn + 1) * ROWS_EACH)
            left = setting.operations - sum(self._finished(number, before) for before in range(turn))
            if turn and chance.random() < 0.7:
                _retried(lambda: self._go_on(writer, self._notes_of(number, turn - 1)))
            for _ in range(left):
                level = chance.choice(("Serializable", "WriteSerializable")) if setting.mixed_levels else None
                kind = chance.choice(setting.kinds)
                _retried(lambda kind=kind, level=level: writer.run(kind, level))
                if chance.random() < 0.5:
                    _retried(lambda: self._go_on(writer, notes.path))
            store.settle()

    def _finished(self, number: int, turn: int) -> int:
        return sum(note["note"] == "begin" for note in lines_of(self._notes_of(number, turn)))

    def _go_on(self, writer: Writer, path: Path) -> None:
        """Run again, as a retried task does, what a process was killed in or does not know to be committed."""
        notes = list(lines_of(path))
        begun = [note for note in notes if note["note"] == "begin"]
        if not begun or notes[-1]["note"] in ("committed", "failed", "nothing"):
            return
        its = [note for note in notes if note.get("txn") == begun[-1]["txn"]]
        plan = next((dict(note) for note in its if note["note"] == "plan"), None)
        for key in ("note", "at", "txn"):
            (plan or {}).pop(key, None)
        writer.run_again(begun[-1], plan, [note["what"] for note in its if note["note"] == "read"])

    def _read_at_last(self) -> None:
        """Read everything in a process that has not seen the table, from checkpoint and commits."""
        with Notes(self.folder / "notes" / "last.jsonl") as notes:
            store = FaultyStore(str(self.table), Chances(), random.Random(0), listed=self.setting.listed)
            Writer(DeltaLog(store), notes, random.Random(f"{self.seed}-last"), self.setting.partitioned, 0, 0).run("look", None)


def _forked(work: Callable[[], None]) -> int:
    """Run work in a new process, and return its id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _retried(work: Callable[[], None]) -> None:
    """Begin again when a faulty store did not even let it begin."""
    for _ in range(20):
        try:
            work()
        except OSError:
            continue
        return


def run_all(options: argparse.Namespace, mutation: str = "") -> None:
    """Run and judge histories, and print what was found."""
    kinds, level = KINDS, options.level
    if mutation:
        broken = MUTATIONS[mutation]
        broken.patch()
        kinds, level = broken.kinds or KINDS, broken.level
    for number in range(options.first, options.first + options.count):
        name = f"{options.seed}-{number}"
        folder = options.directory / "-".join([name, *mutation.split()])
        history = History(folder, name, level, kinds)
        history.run()
        verdict = judge(folder)
        verdict.counts[f"table:{history.setting.level}"] += 1
        line = {"history": name, "mutation": mutation, "wrong": verdict.wrong, "counts": verdict.counts}
        print(json.dumps(line), flush=True)
        if not verdict.wrong:
            shutil.rmtree(folder)
        elif mutation:
            break


def warm_up(directory: Path) -> None:
    """Import and run everything once, so that the forked processes need not."""
    first = History(directory / f"warm-{os.getpid()}", "warm")
    first.run()
    with Notes(Path(os.devnull)) as notes:
        log = DeltaLog.for_table(str(first.table), {"durable": "false"})
        writer = Writer(log, notes, random.Random(1), first.setting.partitioned, 0, 0)
        for kind in KINDS:
            writer.run(kind, None)
    shutil.rmtree(first.folder)
    gc.collect()
    gc.freeze()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--level", help="the isolation level of every table; by default they take turns")
    parser.add_argument("--mutations", action="store_true", help="with the engine broken, by one mutation after the other")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)  # the faults are meant
    warm_up(options.directory)
    if not options.mutations:
        run_all(options)
        return
    for mutation in MUTATIONS:
        child = _forked(lambda mutation=mutation: run_all(options, mutation))
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            raise RuntimeError(f"the histories of {mutation!r} failed")


if __name__ == "__main__":
    main()
