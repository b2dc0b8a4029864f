"""Exhaustive check of the protocol by which several tables are published as one. Standard library only.

    python tests/publication/model.py [--variant NAME] [--scenario NAME] [--limit STATES] [--seconds S] [--list]

A table is its log: a tuple of entries that only grows, by puts that fail if the version is taken. An entry of publication p is
one of its states there: 0 intent, 1 published, 2 refused, 3 undone, 4 stands. A foreign commit appends ("a"), deletes or
rewrites rows that are there ("d"), or changes metadata or protocol ("m"); it looks at nothing. The first table of a publication
is its anchor: state 1 there is the decision. Each table is "rw" (the publication read it) or "add" (blind append).

A worker reads one log in a step, keeps only (publication, phase, table, put), and puts in a later step. A crash forgets that;
the put is lost or stays under way (an orphan: the ambiguous answer, the zombie, the put that lands late). The next try commits
or aborts (the teardown, cleanup, a person). Whoever meets the open intent of another publication runs that one first: decided,
it is rolled forward; undecided, it is refused at its anchor. Of two that are decided, the smaller one goes on, whoever works.
Waiting is another order of the same steps. A stranger (who does not know the other's tables) does not wait. Before the first
inverse is put, every table is judged: if one cannot be taken back, all that is published stands. Scenarios that are their own
mirror image are explored up to that symmetry, and so are workers of one publication (variant good only); puts that can only
fail count as failed.

Exit code 0: every state was seen and every rule holds. 1: a rule is broken, or the bounds were not exhausted.
"""

import argparse
import gc
import sys
import time
from collections import Counter, deque
from dataclasses import dataclass, replace

INTENT, PUB, REFUSED, UNDONE, STANDS = range(5)
APPEND, DELETE, METADATA = 32, 33, 34  # an entry of publication p with state s is 8 * p + s
RW, ADD = "rw", "add"
NO_PUT = ()
ENDED = -1
OUTCOMES = ("open", "all", "none", "split")
LOOK, REFUSE, CLOSE, CHECK, DECIDE, FORWARD, JUDGE, UNDO = range(8)
PHASES = ("look", "refuse", "close", "check", "decide", "forward", "judge", "undo")
VARIANTS = {
    "good": "the protocol",
    "naive": "no decision and no undo: table after table, a conflict ends it",
    "notxn": "own entries are not recognised in the log: an answer to a put is believed",
    "lastwins": "a put replaces what is there",
    "nofence": "a refusal takes no place in the log",
    "unchecked": "a put goes to the next free version, not to the one up to which the log was checked",
    "nohelp": "cooperating writers ignore intents",
    "gap": "the intents of others are looked for in an older version than the one up to which the log was checked, and only once",
    "unordered": "of two that are decided and meet, each lets the other end first",
}


@dataclass(frozen=True)
class Scenario:
    tables: int
    publications: tuple  # each ((table, mode), ...), the anchor first
    intents: bool
    foreign: int = 1
    kinds: tuple = (APPEND, DELETE)  # to tables that are read, METADATA is as DELETE
    homes: tuple = (0, 1)  # publications of the workers
    crashes: int = 1  # of each worker
    orphans: int = 1
    keep: bool = False  # on_late_conflict
    mirror: tuple = ()  # tables, when the two publications change places
    strangers: tuple = ()  # workers that do not know the tables of the other publication: they pass over its intent


def both(*orders):
    return tuple(tuple(order) for order in orders)


RW2 = both([(0, RW), (1, RW)], [(1, RW), (0, RW)])
ADD2 = both([(0, RW), (1, ADD)], [(1, RW), (0, ADD)])
LAST = both([(0, RW), (2, RW)], [(1, RW), (2, RW)])
SAME = both([(0, ADD), (1, RW)], [(0, ADD), (1, RW)])
SAME_ADD = both([(0, ADD), (1, ADD)], [(0, ADD), (1, ADD)])
BESIDE = both([(0, RW), (2, RW), (3, ADD)], [(1, RW), (2, ADD), (3, RW)])
RW3 = both([(0, RW), (1, RW), (2, RW)], [(2, RW), (1, RW), (0, RW)])
SCENARIOS = {
    "2 tables, rw, opposite orders": Scenario(2, RW2, True, mirror=(1, 0)),
    "2 tables, rw, opposite orders, no intents": Scenario(2, RW2, False, mirror=(1, 0)),
    "2 tables, rw + add, opposite orders": Scenario(2, ADD2, True, kinds=(APPEND, METADATA), mirror=(1, 0)),
    "2 tables, rw + add, opposite orders, no intents": Scenario(2, ADD2, False, kinds=(APPEND, DELETE, METADATA), mirror=(1, 0)),
    "2 tables, two workers of one publication": Scenario(2, RW2[:1], True, foreign=2, homes=(0, 0)),
    "3 tables, two workers of one publication": Scenario(3, RW3[:1], False, foreign=2, homes=(0, 0)),
    "3 tables, two workers of one publication, keep": Scenario(3, RW3[:1], True, kinds=(DELETE,), homes=(0, 0), keep=True),
    "3 tables, overlap in the last": Scenario(3, LAST, True, kinds=(DELETE,), mirror=(1, 0, 2)),
    "3 tables, overlap in the last, no intents": Scenario(3, LAST, False, kinds=(DELETE,), mirror=(1, 0, 2)),
    "3 tables, opposite orders": Scenario(3, RW3, True, kinds=(DELETE,), crashes=0, mirror=(2, 1, 0)),
    "3 tables, one publication, two foreign": Scenario(3, RW3[:1], True, foreign=2, homes=(0,)),
    "2 tables, add + rw, one anchor": Scenario(2, SAME, True, foreign=0, mirror=(0, 1)),
    "2 tables, add, one anchor, one foreign": Scenario(2, SAME_ADD, True, kinds=(METADATA,), mirror=(0, 1)),
    "2 tables, three publications": Scenario(2, (*SAME_ADD, RW2[1]), True, foreign=0, homes=(0, 1, 2), crashes=0, orphans=0),
    "3 tables, two that pass over each other": Scenario(
        3, LAST, True, foreign=0, homes=(0, 1, 0, 1), strangers=(0, 1), crashes=0, orphans=0
    ),
    "4 tables, two that pass over each other": Scenario(
        4, BESIDE, True, foreign=0, homes=(0, 1, 0), strangers=(0, 1), crashes=0, orphans=0
    ),
}


def name_of(entry):
    return {APPEND: "Fa", DELETE: "Fd", METADATA: "Fm"}.get(entry) or f"{'PQR'[entry >> 3]}{entry & 7}"


class Model:
    """A state is (logs, workers, orphan, orphans left, foreign commits left, reports).

    A worker is (home, publication, aborting, phase, index in its order, put, judgement, crashes left), or (home, ENDED).
    Judgement: 1 if it is to stand, 2 if a table was seen on which it does.
    """

    def __init__(self, scenario, variant):
        if variant == "naive":  # its half publication needs neither
            scenario = replace(scenario, crashes=0, orphans=0)
        self.scenario, self.variant = scenario, variant
        self.modes = [dict(order) for order in scenario.publications]
        self.orders = [[t for t, _ in order] for order in scenario.publications]
        self.mirrors = bool(scenario.mirror) and variant == "good"
        self.sorts = len(set(scenario.homes)) == 1 and variant == "good"
        self.keeps_stale = variant in ("lastwins", "unchecked")
        self.judged = {}

    # -- what a log says -------------------------------------------------------------------------------------------------------

    def conflict(self, log, p, t):
        rw, own = self.modes[p][t] == RW, 8 * p + PUB
        for entry in log:
            if entry == own:
                return False
            if entry == METADATA or (rw and (entry >= APPEND or entry & 7 == PUB)):
                return True
        return False

    def invertible(self, log, p, t):
        after = log[log.index(8 * p + PUB) + 1 :]
        return not any(e >= DELETE or (e < APPEND and e & 7 == PUB and self.modes[e >> 3][t] == RW) for e in after)

    def pending(self, log, p, logs=None):
        """The other publication whose intent is open in this log, and which has to end before p goes on.

        :param logs: if p is decided: of two that are, the smaller one goes on.
        """
        if self.variant != "nohelp":
            for q in range(len(self.orders)):
                if q == p or 8 * q not in log or 8 * q + PUB in log or 8 * q + REFUSED in log:
                    continue
                if logs is None or q < p or 8 * q + PUB not in logs[self.orders[q][0]] or self.variant == "unordered":
                    return q
        return None

    # -- a worker --------------------------------------------------------------------------------------------------------------

    @staticmethod
    def begin(home, crashes, aborting=False):
        return (home, home, aborting, LOOK, 0, NO_PUT, 0, crashes)

    def read(self, w, logs, is_stranger=False):
        """Read one log; return the worker after it and the outcome that it reports (0: none yet)."""
        home, p, aborting, phase, i, _, judged, crashes = w
        order = self.orders[p]
        t = order[i] if i < len(order) else None
        log = logs[t] if t is not None else ()
        intent, pub, refused, undone, stands = (8 * p + s in log for s in range(5))
        gone = refused or undone
        if self.variant == "notxn":
            pub = False

        def go(phase, i=0, put=NO_PUT, judged=judged):
            return (home, p, aborting, phase, i, put, judged, crashes), 0

        def put(state, then=phase, at=i):
            return go(then, at, (t, len(log), state))

        def over(outcome):
            return ((home, ENDED), outcome) if p == home else (self.begin(home, crashes, aborting), 0)

        def unless_pending(go_on, read=log):
            q = None if is_stranger else self.pending(read, p, logs if phase == FORWARD else None)
            # Whoever is met gives up, if it can, even by a worker that began with it.
            return go_on() if q is None else ((home, q, aborting or q == home, LOOK, 0, NO_PUT, 0, crashes), 0)

        if self.variant == "naive":
            if t is None:
                return over(1)
            if pub:
                return go(phase, i + 1)
            return over(2) if aborting or self.conflict(log, p, t) else put(PUB)
        if phase == LOOK:  # at the anchor: is it decided?
            if pub:
                return go(JUDGE) if gone or stands else go(FORWARD, 1)
            if gone:
                return go(CLOSE, 1)
            return go(REFUSE) if aborting or p != home else go(CHECK, 1)
        if phase == REFUSE:  # at the anchor
            if pub or gone:
                return go(LOOK)
            return over(2) if self.variant == "nofence" else put(REFUSED, LOOK)
        if phase == CLOSE:  # it was never decided: only intents may be there
            if t is None:
                return over(2)
            return put(REFUSED) if intent and not gone else go(CLOSE, i + 1)
        if phase == CHECK:  # the other tables, before the decision
            if t is None:
                return go(DECIDE)
            if self.variant == "gap" and not judged and not (gone or pub):
                return go(CHECK, i, judged=len(log) + 1)
            seen, judged = log[: judged - 1] if judged else log, 0
            if gone or pub:
                return go(LOOK, judged=0)
            if self.conflict(log, p, t):
                return go(REFUSE, judged=0)
            if not self.scenario.intents or (intent and self.variant == "gap"):
                return go(CHECK, i + 1, judged=0)
            return unless_pending(lambda: go(CHECK, i + 1, judged=0) if intent else go(CHECK, i, (t, len(log), INTENT), 0), seen)
        if phase == DECIDE:  # at the anchor
            if pub or gone:
                return go(LOOK)
            if self.conflict(log, p, t):
                return go(REFUSE)
            return unless_pending(lambda: put(PUB, LOOK))
        if phase == FORWARD:  # the other tables in their order: nobody goes on before the one before has it
            if t is None:
                return over(1)
            if gone:
                return go(JUDGE)
            if pub:
                return go(FORWARD, i + 1)
            if self.conflict(log, p, t):
                return go(JUDGE) if self.variant == "nofence" else put(REFUSED)
            return unless_pending(lambda: put(PUB))
        if phase == JUDGE:  # can every table be taken back on which it is?
            if t is None:
                return go(UNDO)
            stays = stands or self.scenario.keep or (pub and not undone and not self.invertible(log, p, t))
            return go(JUDGE, i + 1, judged=judged | stays)
        if t is None:  # UNDO has been to every table
            return over(3 if judged & 2 else 2)
        if stands or gone:
            return go(UNDO, i + 1, judged=judged | (3 if stands else 0))
        if pub and (judged & 1 or not self.invertible(log, p, t)):
            return go(UNDO, i, (t, len(log), STANDS), judged=judged | 1)
        if pub:
            return put(UNDONE)
        return put(REFUSED) if intent else go(UNDO, i + 1)

    def after_put(self, w, landed):
        """The worker reads again, whatever the answer; without txn it has to believe it."""
        home, p, aborting, phase, i, (_, _, state), judged, crashes = w
        if self.variant == "notxn" and landed and state == PUB:
            phase, i = FORWARD, i + 1
        return (home, p, aborting, phase, i, NO_PUT, judged, crashes)

    # -- steps -----------------------------------------------------------------------------------------------------------------

    def initial(self):
        s = self.scenario
        workers = tuple(self.begin(home, s.crashes) for home in s.homes)
        return (((),) * s.tables, workers, NO_PUT, s.orphans, s.foreign, (0,) * len(self.orders))

    def land(self, logs, put, p):
        """The logs after a put; None if the version is taken."""
        t, version, state = put
        log = logs[t]
        if version < len(log) and self.keeps_stale:
            version = version if self.variant == "lastwins" else len(log)
        elif version < len(log):
            return None
        return (*logs[:t], (*log[:version], 8 * p + state, *log[version + 1 :]), *logs[t + 1 :])

    def settle(self, logs, workers, orphan):
        """Let puts fail that can only fail."""
        if self.keeps_stale:
            return workers, orphan
        workers = tuple(
            self.after_put(w, False) if w[1] != ENDED and w[5] and w[5][1] < len(logs[w[5][0]]) else w for w in workers
        )
        return workers, NO_PUT if orphan and orphan[1][1] < len(logs[orphan[1][0]]) else orphan

    def steps(self, state):
        """Yield (text, next state, whether it is a step of a worker)."""
        logs, workers, orphan, orphans, foreign, reports = state
        for k, w in enumerate(workers):
            if w[1] == ENDED:
                continue
            home, p, _, phase, i, put, _, crashes = w
            before, after = workers[:k], workers[k + 1 :]
            who = f"worker {k} of {'PQR'[home]}"
            if not put:
                new, outcome = self.read(w, logs, k in self.scenario.strangers)
                said = (*reports[:home], outcome, *reports[home + 1 :]) if outcome else reports
                text = f"{who} reads for {'PQR'[p]}: {PHASES[phase]} {i}"
                yield text, (logs, (*before, new, *after), orphan, orphans, foreign, said), True
            else:
                new = self.land(logs, put, p)
                now = (*before, self.after_put(w, new is not None), *after)
                rest, left = self.settle(new, now, orphan) if new is not None else (now, orphan)
                text = f"{who} puts {name_of(8 * p + put[2])} on table {put[0]}" + ("" if new is not None else ": lost")
                yield text, (logs if new is None else new, rest, left, orphans, foreign, reports), True
            if crashes and (put or phase != LOOK):
                for aborting in (False,) if self.variant == "notxn" else (False, True):
                    now = (*before, self.begin(home, crashes - 1, aborting), *after)
                    then = "is killed, then aborts" if aborting else "is killed, then retries"
                    yield f"{who} {then}", (logs, now, orphan, orphans, foreign, reports), False
                    if put and orphans and not orphan:
                        yield f"{who} {then}; its put is under way", (logs, now, (p, put), orphans - 1, foreign, reports), False
        if orphan:
            p, put = orphan
            new = self.land(logs, put, p)
            if new is not None:
                rest, _ = self.settle(new, workers, NO_PUT)
                text = f"the late {name_of(8 * p + put[2])} lands on table {put[0]}"
                yield text, (new, rest, NO_PUT, orphans, foreign, reports), False
            yield "the late put is lost", (logs, workers, NO_PUT, orphans, foreign, reports), False
        if foreign:
            for t in range(self.scenario.tables):
                for kind in self.scenario.kinds:
                    new = (*logs[:t], logs[t] + (kind,), *logs[t + 1 :])
                    rest, left = self.settle(new, workers, orphan)
                    yield f"foreign {name_of(kind)} on table {t}", (new, rest, left, orphans, foreign - 1, reports), False

    def canonical(self, state):
        """The smaller of a state and its mirror image; workers of one publication in one order."""
        if self.sorts:
            return (state[0], tuple(sorted(state[1])), *state[2:])
        if not self.mirrors:
            return state
        logs, workers, orphan, orphans, foreign, reports = state
        to = self.scenario.mirror

        def put_of(put):
            return (to[put[0]], *put[1:]) if put else put

        def log_of(log):
            return tuple(e if e >= APPEND else e ^ 8 for e in log)

        def worker_of(w):
            return (1 - w[0], ENDED) if w[1] == ENDED else (1 - w[0], 1 - w[1], *w[2:5], put_of(w[5]), *w[6:])

        image = (
            tuple(log_of(logs[t]) for t in to),
            tuple(worker_of(w) for w in reversed(workers)),
            (1 - orphan[0], put_of(orphan[1])) if orphan else orphan,
            orphans,
            foreign,
            reports[::-1],
        )
        return min(state, image)

    # -- what must hold --------------------------------------------------------------------------------------------------------

    @staticmethod
    def shows(log, p):
        return 8 * p + PUB in log and 8 * p + UNDONE not in log

    def half(self, captured, p):
        """Whether these logs show a publication on some of its tables only, and do not say that it is split."""
        tables = [captured[t] for t in self.orders[p] if captured[t] is not None]
        shown = sum(self.shows(log, p) for log in tables)
        return 0 < shown < len(tables) and not any(8 * p + STANDS in log for log in tables)

    def cut(self, captured):
        """What a reader of a consistent set makes of the logs that it captured, from these alone (None: it does not read it)."""
        captured, again = list(captured), True
        while again:
            again = False
            for p, order in enumerate(self.orders):
                if self.half(captured, p):
                    for t in order:
                        if captured[t] is not None and self.shows(captured[t], p):
                            captured[t] = captured[t][: captured[t].index(8 * p + PUB)]
                    again = True
        return captured

    def wrong_in(self, logs):
        for p, order in enumerate(self.orders):
            for t in order:
                if logs[t].count(8 * p + PUB) > 1:
                    return f"{'PQR'[p]} is doubled on table {t}"
                if 8 * p + PUB in logs[t] and self.conflict(logs[t][: logs[t].index(8 * p + PUB)], p, t):
                    return f"{'PQR'[p]} overlooked a conflict on table {t}"
        if self.variant != "naive":  # all prefixes of all logs: more than captures one after the other can give
            vectors = [()]
            for log in logs:
                vectors = [(*v, c) for v in vectors for c in [log[:k] for k in range(len(log) + 1)] + [None]]
            for vector in vectors:
                read = self.cut(vector)
                if any(self.half(read, p) for p in range(len(self.orders))):
                    return f"a reader sees half of a publication: {read}"
        if self.scenario.intents and not self.scenario.strangers and self.skewed(logs):
            return "P and Q have opposite orders on two tables"
        return ""

    def skewed(self, logs):
        """Whether two publications that both stand, and of which one reads, are in opposite orders on two tables."""
        if len(self.orders) < 2:
            return False
        seen = set()
        for t, log in enumerate(logs):
            both_show = all(t in modes and self.shows(log, p) for p, modes in enumerate(self.modes))
            if both_show and RW in (self.modes[0][t], self.modes[1][t]):
                seen.add(log.index(PUB) < log.index(8 + PUB))
        return len(seen) > 1

    def quiet(self, state):
        return not state[2] and all(w[1] == ENDED for w in state[1])

    def wrong(self, state):
        logs, _, _, _, foreign, reports = state
        if sum(e >= APPEND for log in logs for e in log) + foreign != self.scenario.foreign:
            return "a foreign commit is lost"
        if logs not in self.judged:
            self.judged[logs] = self.wrong_in(logs)
        if self.judged[logs]:
            return self.judged[logs]
        quiet = self.quiet(state)
        for p, order in enumerate(self.orders):
            shown, said = sum(self.shows(logs[t], p) for t in order), OUTCOMES[reports[p]]
            if (said == "all" and shown < len(order)) or (said == "none" and shown):
                return f"{'PQR'[p]} was reported as {said} and is on {shown} of {len(order)} tables"
            if said == "split" and (not 0 < shown < len(order) or not any(8 * p + STANDS in logs[t] for t in order)):
                return f"{'PQR'[p]} was reported as split and is not"
            taken_back = said == "split" or any(8 * p + UNDONE in logs[t] for t in order)
            is_alone = foreign == self.scenario.foreign and not self.scenario.strangers
            if self.scenario.intents and is_alone and taken_back:
                return f"{'PQR'[p]} is taken back though no foreign writer was there"
            if quiet and said == "open":
                return f"{'PQR'[p]} has no outcome at the end"
            if quiet and 0 < shown < len(order) and said != "split":
                return f"{'PQR'[p]} is on {shown} of {len(order)} tables at the end, reported as {said}"
        if quiet and self.variant != "naive" and self.cut(logs) != list(logs):
            return "a reader is held back although everything is settled"
        return ""

    def outcome(self, state, p):
        said = OUTCOMES[state[5][p]]
        if said == "none":
            return "undone" if any(8 * p + PUB in state[0][t] for t in self.orders[p]) else "refused"
        return {"all": "published"}.get(said, said)


def explore(model, limit, deadline):
    """Breadth first. Returns (number of states, "exhausted", "limit", "circles" or "violated", reason and trace, ends)."""
    first = model.canonical(model.initial())
    parent, number, successors = {first: None}, {first: 0}, []
    queue, ends = deque([first]), Counter()
    while queue:
        state = queue.popleft()
        reason = model.wrong(state)
        if reason:
            trace, at = [f"{reason}:", "logs " + " | ".join(" ".join(map(name_of, log)) for log in state[0])], state
            while parent[at] is not None:
                at, text = parent[at]
                trace.insert(1, "  " + text)
            return len(parent), "violated", trace, ends
        if model.quiet(state):
            ends.update(model.outcome(state, p) for p in range(len(model.orders)))
            ends.update(["in opposite orders"] if model.skewed(state[0]) else [])
        own = []
        for text, new, is_own in model.steps(state):
            new = model.canonical(new)
            if new not in parent:
                parent[new] = (state, text)
                number[new] = len(number)
                queue.append(new)
            if is_own:
                own.append(number[new])
        successors.append(own)
        if len(parent) > limit or time.monotonic() > deadline:
            return len(parent), "limit", [], ends
    # Progress: steps of workers never go round in circles, and a state without one has only workers that ended.
    into = Counter(k for own in successors for k in own)
    ready = [k for k in range(len(successors)) if not into[k]]
    gone_through = 0
    while ready:
        gone_through += 1
        for k in successors[ready.pop()]:
            into[k] -= 1
            if not into[k]:
                ready.append(k)
    return len(parent), "exhausted" if gone_through == len(successors) else "circles", [], ends


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=list(VARIANTS), default="good")
    parser.add_argument("--scenario", choices=list(SCENARIOS))
    parser.add_argument("--limit", type=int, default=2_000_000)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    if args.list:
        print(*(f"{name}: {what}" for name, what in VARIANTS.items()), *SCENARIOS, sep="\n")
        return 0
    gc.disable()
    began, states, reached, results = time.monotonic(), 0, Counter(), set()
    for name in [args.scenario] if args.scenario else SCENARIOS:
        model = Model(SCENARIOS[name], args.variant)
        count, result, trace, ends = explore(model, args.limit, began + args.seconds)
        states += count
        reached += ends
        results.add(result)
        print(
            f"{name}: {count} states, {result}, {time.monotonic() - began:.0f} s; ends {dict(sorted(ends.items()))}", flush=True
        )
        print(*(f"    {line}" for line in trace), sep="\n", end="\n" if trace else "")
        if result in ("violated", "circles"):
            break
    if not args.scenario and args.variant == "good" and (never := {"published", "refused", "undone", "split"} - set(reached)):
        results.add(f"never reached: {', '.join(sorted(never))}")
    held = results == {"exhausted"}
    how = "every state seen" if held else ", ".join(sorted(results - {"exhausted"}))
    seconds = time.monotonic() - began
    print(f"{'HELD' if held else 'BROKEN'} {args.variant}: {how}; {states} states, {seconds:.0f} s; {dict(reached)}")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
