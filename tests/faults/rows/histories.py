"""Runs histories of concurrent transactions on real rows, and judges every version: ``python -m faults.rows.histories --seed 7``.

A version must hold the rows that its transaction, run on the rows of the version before, would have left. In one process, so a
seed tells everything: a history that is wrong is made as short as it can be and printed.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from faults.mutations.row_mutations import AIMS, MUTATIONS
from faults.rows.commits import Result, run
from faults.rows.draws import Draw
from faults.rows.files import HistoryTable
from faults.rows.model import Append, Optimize, Restore, Step, Vacuum
from faults.rows.setting import History
from faults.rows.shrink import shrunk
from faults.rows.values import Row, canonical, counted

SHOWN = 4
WITHOUT_LIMIT = 1 << 26
WHOLE_FILES = ("overwrite", "dynamic")
"""Modes of stages that may remove files without listing them."""
AFTER_COMPACTION = "after a compaction"
"""Counts refusals by a compaction for which nothing was lacking."""


@dataclass
class Verdict:
    """What is wrong with a history, and what it consisted of."""

    wrong: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    needless: list[str] = field(default_factory=list)


@dataclass
class Judged:
    """Runs a history and judges each version as it lands."""

    history: History
    directory: Path
    verdict: Verdict = field(default_factory=Verdict)
    _landed: dict[int, tuple[Step, Result]] = field(default_factory=dict)
    _ran: list[Step] = field(default_factory=list)
    _names: Counter[str] = field(default_factory=Counter)

    def run(self) -> Verdict:
        self.table = HistoryTable(self.directory, self.history.setting)
        self.table.create_with(self.history.first)
        self.table.reader.advance()
        self._log = self.table.log()
        try:
            for number, step in enumerate(self.history.steps):
                self._run(step, f"{self.history.name}-{number}")
        except Exception as error:  # of the engine: no history may make it fail
            shown = "".join(traceback.format_exception(error)[-3:])
            self.verdict.wrong.append(f"after version {self._latest}: {type(error).__name__}: {shown[-1500:]}")
        self.verdict.wrong += self.table.reader.wrong
        return self.verdict

    @property
    def _latest(self) -> int:
        return len(self.table.reader.versions) - 1

    def _run(self, step: Step, name: str) -> None:
        log = self._log if self.history.setting.shared else self.table.log()
        inside = [self._inner(other, f"{name}-{number}") for number, other in enumerate(step.inside)]
        result = run(self.table, log, step, name, self._latest, inside)
        counts, kind = self.verdict.counts, step.operation.kind
        counts[f"tried:{kind}"] += 1
        self._ran.append(step)
        self.table.reader.advance()
        if result.version is None:
            counts[result.error or "nothing"] += 1
            if result.error:
                self._note_refusal(step, result)
            return
        counts["commits"] += 1
        counts[f"committed:{kind}"] += 1
        self._landed[result.version] = step, result
        for how in result.resolved:
            counts[f"resolved:{how}"] += 1
            counts[f"resolved:{how}:{kind}"] += 1
        counts["resolved"] += bool(result.resolved)
        if result.version != self._latest:
            self.verdict.wrong.append(f"the commit says version {result.version}, the latest is {self._latest}")
        else:
            self._judge(step, result, result.version)

    def _inner(self, step: Step, name: str) -> Callable[[], None]:
        return lambda: self._run(step, name)

    # -- the rule -------------------------------------------------------------------------------------------------------------

    def _judge(self, step: Step, result: Result, version: int) -> None:
        before, after = (self.table.reader.versions[number].rows for number in (version - 1, version))
        expected = self.expected(step, result, version - 1)
        found = counted(after)
        if found == expected:
            return
        missing, extra = list((expected - found).elements()), list((found - expected).elements())
        self.verdict.wrong.append(
            f"version {version} ({step}, read version {result.read}, resolved {result.resolved}): of {len(before)} rows before, "
            f"missing {missing[:SHOWN]}, unexpected {extra[:SHOWN]}"
        )

    def expected(self, step: Step, result: Result, last: int) -> Counter[Row]:
        """Return the rows that a transaction leaves after version ``last``.

        At WriteSerializable, blind appends that it did not see may count as later than it.
        """
        operation = step.operation
        versions = self.table.reader.versions
        if isinstance(operation, Restore):
            return counted(versions[max(result.read - operation.back, 0)].rows)
        unseen = Counter[Row]()
        if (step.level or self.history.setting.level) == "WriteSerializable":
            unseen = self._blindly_appended(range(result.read + 1, last + 1))
        seen, later = [], []
        for row in versions[last].rows:
            key = canonical(row)
            if unseen[key] > 0:
                unseen[key] -= 1
                later.append(row)
            else:
                seen.append(row)
        return counted([*step.apply(seen), *later])

    def _blindly_appended(self, versions: Sequence[int]) -> Counter[Row]:
        rows = Counter[Row]()
        for version in versions:
            step, result = self._landed.get(version, (None, None))
            if step is not None and result is not None and (step.is_blind or _rearranges_nothing(step, result)):
                rows += counted(step.apply([]))
        return rows

    def _note_refusal(self, step: Step, result: Result) -> None:
        """Count refusals, and those where the transaction's own changes on top of the latest version would have been right.

        A change of the table's properties is not one of rows. Files that a winner changed or removed, and another one brought
        back, were not left alone; but a compaction leaves rows alone, whatever it does to files.
        """
        self.verdict.counts["refused"] += 1
        operation, versions = step.operation, self.table.reader.versions
        if isinstance(operation, Restore) or result.error == "MetadataChangedException":
            return
        by = self._compaction(result.winner)
        if by is None and not all(self._is_in_place(result, number) for number in range(result.read, len(versions))):
            return
        before = versions[result.read].rows
        old, new = counted(before), counted(step.apply(before))
        gone, added, now = old - new, new - old, counted(versions[-1].rows)
        if not gone - now and now - gone + added == self.expected(step, result, self._latest):
            how = operation.kind if by is None else self._after_compaction(step, result, by)
            self.verdict.counts["needless"] += 1
            self.verdict.counts[f"needless:{how}:{step.detection}"] += 1
            self.verdict.needless.append(f"{how}: {step}, read version {result.read}: {result.error}: {result.message}")

    def _compaction(self, version: int | None) -> Step | None:
        """Return the transaction of a version if it was a compaction and nothing else."""
        step, _result = self._landed.get(-1 if version is None else version, (None, None))
        return step if step is not None and isinstance(step.operation, Optimize) and step.also is None else None

    def _after_compaction(self, step: Step, result: Result, winner: Step) -> str:
        """Return what a transaction lacked that it lost to a compaction: rows cannot be followed then, in Delta neither."""
        setting = self.history.setting
        assert isinstance(winner.operation, Optimize)
        if step.limit < WITHOUT_LIMIT:
            return "after a compaction, beyond the read limit"
        if any(isinstance(other.operation, Vacuum) for other in self._ran):
            return "after a compaction, without files that VACUUM deleted"
        if setting.tracked and setting.has_ids and not winner.operation.keeps_ids:
            return "after a compaction that lost row ids"
        changing = [stage for stage in result.stages if stage.write.operation != "OPTIMIZE"]
        if not setting.vectors and any(stage.removes or stage.write.mode in WHOLE_FILES for stage in changing):
            return "after a compaction, without deletion vectors"
        return AFTER_COMPACTION

    def _is_in_place(self, result: Result, version: int) -> bool:
        """Tell whether the files that a transaction removes or marks rows of are there in a version, marked by others at most."""
        live = self.table.reader.versions[version].files
        for stage in result.stages:
            marked = {add.path for add in stage.adds}
            for remove in stage.removes:
                vector = live[remove.path].add.get("deletionVector") if remove.path in live else None
                own = None if remove.deletion_vector is None else remove.deletion_vector.path_or_inline_dv
                same = own == (None if vector is None else vector["pathOrInlineDv"])
                if remove.path not in live or not (same or remove.path in marked):
                    return False
        return True


def _rearranges_nothing(step: Step, result: Result) -> bool:
    """Tell whether a transaction was to compact files, and found none: then it has read nothing."""
    stages = (step.operation, *([] if step.also is None else [step.also]))
    only_adds = all(isinstance(one, Append | Optimize) for one in stages)
    return step.optimizes and only_adds and not any(stage.removes for stage in result.stages)


def judge(history: History, directory: Path) -> Verdict:
    """Run a history in a directory, which is then deleted."""
    try:
        return Judged(history, directory).run()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _wrong(directory: Path, history: History) -> list[str]:
    return judge(history, directory).wrong


def run_all(options: argparse.Namespace, mutation: str = "") -> None:
    """Run histories, and print what was found, one line of JSON for each; with a mutation until one is wrong."""
    with MUTATIONS[mutation]() if mutation else nullcontext():
        for number in range(options.first, options.first + options.count):
            name = f"{options.seed}-{number}"
            history = Draw(name, options.level, AIMS.get(mutation)).history()
            directory = options.directory / f"rows-{name}"
            verdict = judge(history, directory)
            line: dict[str, Any] = {"history": name, "mutation": mutation, "wrong": verdict.wrong, "counts": verdict.counts}
            if options.needless:
                line["needless"] = verdict.needless
            if verdict.wrong and not mutation:
                short = shrunk(history, partial(_wrong, directory))
                line |= {"wrong": _wrong(directory, short), "shrunk": described(short)}
            print(json.dumps(line, default=str), flush=True)
            if verdict.wrong and mutation:
                return


def described(history: History) -> list[str]:
    """Return a history as text, one line for the table, each of its first files and each transaction."""
    return [str(history.setting), *(str(rows) for rows in history.first), *map(str, history.steps)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()) / "row-histories")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--level", choices=("delta", "statistics", "rows"), help="conflict detection of every transaction")
    parser.add_argument("--needless", action="store_true", help="print refusals that rows did not require")
    parser.add_argument("--mutations", action="store_true", help="with the engine broken, by one mutation after the other")
    parser.add_argument("--only", default="", help="only mutations whose names contain this")
    parser.add_argument("--part", default="0/1", help="only some of the mutations: 0/2 for every other one")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)  # refusals are meant
    gc.freeze()  # what was imported is not looked at with each collection
    first, step = map(int, options.part.split("/"))
    broken = [name for name in MUTATIONS if options.only in name][first::step]
    for mutation in broken if options.mutations else [""]:
        run_all(options, mutation)


if __name__ == "__main__":
    main()
