"""The machine: what may happen to a table and the runs on it, in any order."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from faults.life.airflow_tasks import FATES, Run
from faults.life.clock import DAY, HOUR
from faults.life.dags import PARTS, dags
from faults.life.world import World

MAX_RUNS = 4
JUMPS = (-HOUR, HOUR, DAY, 8 * DAY, 31 * DAY, 91 * DAY)

numbers = st.integers(0, 7)
subsets = st.sets(st.integers(0, 11), min_size=1)
# Those with the most to go wrong are chosen most.
weighed = [name for name in sorted(dags()) for _ in range({"load": 3, "each": 2, "slot": 2}.get(name.partition("_")[0], 1))]
chosen = st.lists(st.sampled_from(weighed), min_size=1, max_size=2)
values = st.lists(st.integers(1, 4), min_size=1, max_size=4)


class Life(RuleBasedStateMachine):
    """Rules; each takes plain numbers, so that a failing sequence shrinks to a short one that reads as what happened."""

    only: str | None = None
    """Kind of the Dags, to look for a known fault of theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.dags: list[str] = []

    def teardown(self) -> None:
        self.world.close()

    def run_of(self, which: int) -> Run:
        return self.world.runs[which % len(self.world.runs)]

    @invariant()
    def the_table_holds_what_it_must(self) -> None:
        self.world.settle()

    # -- runs -------------------------------------------------------------------------------------------------------------------

    @initialize(
        dags=st.lists(st.sampled_from(sorted(dags())), min_size=1, max_size=2), foreign=st.integers(0, 9), rows=st.booleans()
    )
    def choose(self, dags: list[str], foreign: int, rows: bool) -> None:
        """Choose the Dags of this sequence, and what lies where their table is to be."""
        self.dags = dags if self.only is None else [f"{self.only}_{name.partition('_')[2]}" for name in dags]
        if foreign == 1:
            self.world.put_other_files()
        elif rows:
            self.world.begin_run("each_append", [1], skips=False, slot=0, target=0)
            self.finish(0)

    @precondition(lambda self: len(self.world.runs) < MAX_RUNS)
    @rule(dag=st.integers(0, 1), values=values, skips=st.booleans(), slot=st.integers(0, 1), version=numbers, ends=st.booleans())
    def begin_run(self, dag: int, values: list[int], skips: bool, slot: int, version: int, ends: bool = False) -> None:
        self.world.begin_run(self.dags[dag % len(self.dags)], values, skips=skips, slot=slot, target=version)
        if ends:
            self.finish(len(self.world.runs) - 1)

    @precondition(lambda self: self.world.runs)
    @rule(run=numbers, task=numbers, fate=st.sampled_from(FATES))
    def run_task(self, run: int, task: int, fate: str) -> None:
        """Run one of the tasks that are ready."""
        it = self.run_of(run)
        if ready := it.ready():
            self.world.step(it, ready[task % len(ready)], fate)

    @precondition(lambda self: self.world.runs)
    @rule(run=numbers)
    def finish(self, run: int) -> None:
        """Run a run to its end."""
        it = self.run_of(run)
        while ready := it.ready():
            self.world.step(it, ready[0])
            self.world.settle()

    @precondition(lambda self: self.world.runs)
    @rule(run=numbers, tasks=subsets, downstream=st.booleans(), values=values, skips=st.booleans())
    def clear(self, run: int, tasks: set[int], downstream: bool, values: list[int], skips: bool) -> None:
        """Clear any task instances; what the run is mapped to, and its branch, may be others now."""
        it = self.run_of(run)
        keys = sorted(key for key, instance in it.instances.items() if instance.state is not None)
        it.values, it.skips = values, skips
        if chosen := [key for number, key in enumerate(keys) if number in tasks]:
            it.clear(chosen, downstream=downstream)

    @precondition(lambda self: self.world.runs)
    @rule(run=numbers, values=values, skips=st.booleans())
    def run_again(self, run: int, values: list[int], skips: bool) -> None:
        """Clear a whole run, as a backfill that reprocesses does, and run it to its end."""
        it = self.run_of(run)
        it.values, it.skips = values, skips
        it.clear(sorted(it.instances), downstream=False)
        self.finish(run)

    @precondition(lambda self: self.world.runs)
    @rule(run=numbers)
    def end_again(self, run: int) -> None:
        """Clear the commits and aborts of a run, or its operations, and run them again."""
        it = self.run_of(run)
        names = ("commit", "abort", "restore", "delete")
        it.clear([key for key in sorted(it.instances) if key[0].endswith(names)], downstream=False)
        self.finish(run)

    # -- time -------------------------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from(JUMPS))
    def jump(self, seconds: float) -> None:
        self.world.clock.jump(seconds)

    @precondition(lambda self: self.world.model.version >= 0)
    @rule(days=st.sampled_from((0, 35, 95)))
    def clean_up_log(self, days: int) -> None:
        """Delete what has expired of the log, after some time."""
        self.world.clock.jump(days * DAY)
        self.world.clean_up()

    # -- others -----------------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.world.model.version >= 0)
    @rule(part=st.sampled_from(PARTS), deletes=st.booleans())
    def other_writer(self, part: str, deletes: bool) -> None:
        (self.world.other_deletes if deletes else self.world.other_appends)(part)

    @precondition(lambda self: self.world.model.version >= 0)
    @rule(hours=st.sampled_from((None, 0.0)), days=st.sampled_from((0, 8)), meanwhile=st.none() | numbers)
    def vacuum(self, hours: float | None, days: int, meanwhile: int | None) -> None:
        """VACUUM, after some time; a task, a commit before others, may run between its decision and its deletions."""
        self.world.clock.jump(days * DAY)
        ready = [] if meanwhile is None else [(run, key) for run in self.world.runs for key in run.ready()]
        if meanwhile is None or not ready:
            self.world.vacuum(hours, None)
            return
        ends = [(run, key) for run, key in ready if key[0].endswith("commit")] or ready
        run, key = ends[meanwhile % len(ends)]
        self.world.vacuum(hours, lambda: self.world.step(run, key))
