"""The steps of a publication, by whoever comes: its commit task, a retry, an abort, cleanup, or a publication that meets it.

Each step looks at one log and puts at most one entry. Nothing is remembered but what the logs say, so a worker may be killed
anywhere, and several may work at once.

Tables are looked at and checked side by side; their entries are put in the order of the plan, each at exactly the version up to
which its table was checked. Where something is in the way, the worker goes on with one table after the other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_delta import exceptions
from airflow_delta.contract.staging_directory import new_attempt
from airflow_delta.exceptions import (
    ChecksOutdatedException,
    ConcurrentTransactionException,
    DeltaAuditFailedException,
    DeltaConcurrentModificationException,
    DeltaError,
    DeltaIllegalArgumentException,
    ManifestException,
    PublicationPendingException,
    StagingException,
    TransactionAbortedException,
)
from airflow_delta.log.actions.intents import open_intents
from airflow_delta.log.storage.puts import creates
from airflow_delta.publication.ids import PublicationId, place_key, same_place_key
from airflow_delta.publication.participant import IntentMetError, Participant, reason_of
from airflow_delta.publication.plan import load_plan
from airflow_delta.publication.records import INTENT, PUBLISHED, REFUSED, STANDS, UNDONE, OpenTable, PublicationPlan
from airflow_delta.publication.results import PublicationResult
from airflow_delta.publication.rounds import Rounds
from airflow_delta.publication.side_by_side import Turn, asks_a_network, side_by_side
from airflow_delta.publication.states import publication_tables
from airflow_delta.table.state.markers import fence

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog

logger = logging.getLogger(__name__)

T = TypeVar("T")

Work = Callable[[Participant, Turn], None]

_GIVEN_UP = {"error": "", "message": "The publication was given up before it was decided."}
_SHORTEST_PATIENCE = 1.0
"""Seconds that the publication with the smaller id waits: of two that meet crosswise, it is the one that goes on."""


class _AtTableError(Exception):
    """Something is in the way at a table."""

    def __init__(self, table: Participant, error: Exception) -> None:
        super().__init__(table.uri)
        self.table = table
        self.error = error


class _EndedError(Exception):
    """A table says that the publication is over there."""


class Settlement:
    """One worker's work on one publication.

    :param tables: in the order of the plan.
    :param open_table: for other publications that it meets.
    :param patience: seconds to wait for them.
    :param held: ids of the publications that this worker works on already, the first one first: waiting for them would wait
        for itself.
    :ivar error: what this worker refused the publication for.
    """

    def __init__(
        self,
        plan: PublicationPlan,
        tables: Sequence[Participant],
        open_table: OpenTable,
        *,
        patience: float,
        attempt: str | None = None,
        held: tuple[str, ...] = (),
    ) -> None:
        self.plan = plan
        self.tables = tables
        self.error: DeltaError | None = None
        self._open_table = open_table
        self._patience = patience
        self._attempt = attempt if attempt is not None else new_attempt()
        self._held = (*held, plan.publication)
        self._markers = ExitStack()
        self._met: dict[str, float] = {}
        self._beside = asks_a_network(table.log for table in tables)
        self._is_careful = False

    @property
    def anchor(self) -> Participant:
        """The table whose log decides."""
        return self.tables[0]

    def run(self, *, give_up: bool, why: dict[str, Any] = _GIVEN_UP) -> PublicationResult:
        """Bring the publication to an end, and return it.

        :param give_up: refuse it if it is not decided; the commit task alone goes on.
        :param why: the reason then.
        :raises DeltaError: what it was refused for, unless this worker gives it up.
        :raises PublicationPendingException: if that is not possible now.
        """
        rounds = Rounds(self.plan, self.anchor.uri)
        with self._markers:
            outcome = self._run(give_up, why)
            while INTENT in (result := self.result(outcome)).states.values():  # a look has missed it
                rounds.again("an intent is open after its end")
                outcome = self._run(give_up, why)
            side_by_side(self._finish, self.tables, beside=self._beside)
            if outcome == "refused" and not give_up:
                raise self.error if self.error is not None else refused_error(result)
        return result

    def _run(self, give_up: bool, why: dict[str, Any]) -> str:
        rounds = Rounds(self.plan, self.anchor.uri)
        while True:
            state = self.anchor.look()
            if state == PUBLISHED:
                return self._undo() if self._forward() else "published"
            if state in (UNDONE, STANDS):
                return self._undo()
            if state == REFUSED and self.anchor.is_there(self.anchor.log.snapshot):
                self._close()
                return "refused"
            if state == REFUSED:  # the anchor is gone, and with it what it said
                return "published" if all(map(self._had_it, self.tables)) else self._undo()
            if give_up and self.anchor.log.snapshot.version < 0:  # created before anything else is put, unless it is gone again
                self._close()
                return "refused"
            again = self._refuse(why) if give_up else self._decide()
            if again is None:
                return "published"
            rounds.again(again)

    def _finish(self, table: Participant, _: Turn) -> None:
        self._note_end(table)
        self._release(table)

    def _note_end(self, table: Participant) -> None:
        """Note below a table that nobody needs the plan any more: for VACUUM, and for when another table is gone some day."""
        if table.log.snapshot.version < 0:
            return
        try:
            creates(table.log.store, table.end_path, b"{}")
        except Exception as error:  # noqa: BLE001 - the end stands in the logs
            logger.warning("Table %s: could not note the end of publication %s: %s", table.uri, self.plan.publication, error)

    def _had_it(self, table: Participant) -> bool:
        """Tell whether a table has the publication, or had it before it was dropped or replaced.

        Of a table that is gone, others know: the publication has ended, or was published on a table whose turn comes later.
        """
        state = table.look()
        if state != REFUSED or table.is_there(table.log.snapshot):
            return state == PUBLISHED
        if (before := table.state_in(table.log.snapshot)) is not None:
            return before in (PUBLISHED, STANDS)
        later = self.tables[self.tables.index(table) + 1 :]
        return any(other.state_in(other.log.update()) in (PUBLISHED, UNDONE, STANDS) for other in later) or any(
            other.log.store.head(other.end_path) is not None for other in self.tables
        )

    # -- before the decision ---------------------------------------------------------------------------------------------------

    def _decide(self) -> str | None:
        """Check every table, put the decision, and publish the others; refuse the publication if a table conflicts before it.

        :return: why the anchor has to be looked at again; ``None``: it is published on every table.
        """
        failed = self._in_turn(self._prepare, self.tables) or self._in_turn(self._publish, self.tables)
        if failed is None:
            return None
        table, error = failed.table, failed.error
        if self.anchor.state_in(self.anchor.log.snapshot) == PUBLISHED:
            self._is_careful = True
            return self._late(error, table)
        if isinstance(error, IntentMetError):
            return self._meet(table, error.publication)
        return self._refuse_for(error, table) if isinstance(error, DeltaError) else self._refuse_ended(table)

    def _prepare(self, table: Participant, turn: Turn) -> None:
        """Claim a table, create and check it.

        Others see no more of it than if one table came after the other: what is created or put waits for its turn.
        """

        def prepare(table: Participant) -> None:
            self._claim(table)
            if table.is_new:
                turn.wait()
            table.create_if_missing()
            if table is self.anchor:
                _ = table.view  # its staged files are looked at while the others are checked
            else:
                self._check(table, turn)

        _confirmed(prepare, table)

    def _check(self, table: Participant, turn: Turn) -> None:
        """Check a table and put the intent.

        The intents of others are looked for in the version up to which the table was checked, and ours comes right after it. So
        two publications that both go on are never announced on one table at once, and neither is in the other's way once it is
        decided.

        :raises IntentMetError: if another publication is under way here.
        """
        rounds = Rounds(self.plan, table.uri)
        while True:
            if table.look() is not None:
                raise _EndedError
            version = table.check()
            if not self.plan.intents:
                return
            if table.log.snapshot.version != version and table.log.update().version != version:
                rounds.again(f"the log went on while version {version} was checked")
                continue
            if (other := table.other_intent) is not None:
                raise IntentMetError(other)
            if table.has_intent:
                return
            turn.wait()
            if table.put_state(INTENT, at=version, written=turn.pass_on):
                return
            rounds.again(f"another commit is version {version + 1}")

    def _refuse_ended(self, table: Participant) -> str:
        """Refuse the publication if a table says that it is over, and the anchor does not."""
        if not table.is_there(table.log.snapshot):
            return self._refuse({"error": "", "message": f"Table {table.uri} is gone, or is another one by now."})
        if self.anchor.look() is None:  # what the anchor said is gone
            return self._refuse({"error": "", "message": f"It has an end on table {table.uri} already."})
        return f"it has an end on table {table.uri}"

    def _refuse_for(self, error: DeltaError, table: Participant) -> str:
        """Refuse the publication at the anchor for an error that a table will have again, unless its state explains the error."""
        if not error.refuses_publication:
            raise error
        if self.anchor.look() is None and (table is self.anchor or table.look() in (None, REFUSED)):
            if self.anchor.log.snapshot.version < 0:  # it could not be created, so there is nothing to refuse
                raise error
            self.error = error
            self._refuse(reason_of(error, table.uri))
        return f"table {table.uri} cannot have it ({type(error).__name__})"

    def _refuse(self, reason: dict[str, Any]) -> str:
        """Put a refusal at the anchor: it takes a place in the log, so a put of the decision that is under way loses to it."""
        rounds = Rounds(self.plan, self.anchor.uri)
        while self.anchor.look() is None:
            self.anchor.put_state(REFUSED, reason=reason)
            rounds.again("the refusal was put")
        return "it was refused"

    def _in_turn(self, work: Work, tables: Sequence[Participant]) -> _AtTableError | None:
        """Do something with each table; return what is in the way at the first one that cannot have it, if there is one."""

        def at_table(table: Participant, turn: Turn) -> None:
            try:
                work(table, turn)
            except (IntentMetError, DeltaError, _EndedError) as error:
                raise _AtTableError(table, error) from error

        try:
            side_by_side(at_table, tables, beside=self._beside)
        except _AtTableError as failed:
            return failed
        return None

    # -- after it --------------------------------------------------------------------------------------------------------------

    def _publish(self, table: Participant, turn: Turn) -> None:
        """Put the commit of a table, unless it is there, as soon as every table before it has its own.

        The anchor is checked by the put itself: its entry is the decision.
        """
        state = None if table is self.anchor else table.look()
        if state == PUBLISHED:
            return
        if state is not None:
            raise _EndedError

        def publish(table: Participant) -> None:
            self._claim(table)
            _ = table.view  # loaded before it is its turn
            turn.wait()
            table.put_published(turn.pass_on)

        _confirmed(publish, table)

    def _late(self, error: Exception, table: Participant) -> str:
        """Return what is in the way of a decided publication at a table.

        :raises DeltaError: if running the task again may help.
        """
        if isinstance(error, DeltaError) and not error.refuses_publication:
            raise error
        return f"table {table.uri} is in the way ({type(error).__name__})"

    def _forward(self) -> bool:
        """Publish the other tables; return whether one has refused."""
        if not self._is_careful:
            failed = self._in_turn(self._publish, self.tables[1:])
            if failed is None:
                return False
            logger.info(
                "Publication %s: going on with one table after the other: %s.",
                self.plan.publication,
                self._late(failed.error, failed.table),
            )
        for table in self.tables[1:]:
            rounds = Rounds(self.plan, table.uri)
            while (state := table.look()) != PUBLISHED:
                if state is not None and self._had_it(table):
                    break
                if state is not None:
                    return True
                why = "its commit was put"
                try:
                    self._claim(table)
                    _confirmed(Participant.put_published, table)
                except IntentMetError as met:
                    why = self._meet(table, met.publication)
                except DeltaError as error:
                    if not error.refuses_publication:
                        raise
                    why = f"the table cannot have it ({type(error).__name__})"
                    if table.look() is None:
                        table.put_state(REFUSED, reason=reason_of(error, table.uri))
                rounds.again(why)
        return False

    def _undo(self) -> str:
        """Take back what is published, or say that it stands if one table cannot be taken back."""
        stands = "on_late_conflict is 'keep'" if self.plan.on_late_conflict == "keep" else self._why_it_stands()
        states = set()
        for table in self.tables:
            rounds = Rounds(self.plan, table.uri)
            while True:
                state = table.look()
                if state == PUBLISHED:
                    inverse = None if stands else table.find_inverse()
                    if inverse is None or inverse.refused is not None:
                        stands = stands or f"table {table.uri}: {'' if inverse is None else inverse.refused}"
                        table.put_state(STANDS, reason={"message": stands})
                    else:
                        table.put_state(UNDONE, inverse=inverse)
                elif table.is_announced:
                    table.put_state(REFUSED, reason=_GIVEN_UP)
                else:
                    states.add(state)
                    break
                rounds.again("its end was put")
        return "split" if STANDS in states else "undone" if UNDONE in states else "refused"

    def _why_it_stands(self) -> str:
        """Return why what is published cannot be taken back; empty if it can."""
        for table in self.tables:
            state = table.look()
            if state == STANDS:
                return (table.reason(STANDS) or {}).get("message") or "another worker has said so"
            if state == PUBLISHED and (refused := table.find_inverse().refused) is not None:
                return f"table {table.uri}: {refused}"
        return ""

    def _close(self) -> None:
        """Close the intents of a publication that was never decided."""
        for table in self.tables[1:]:
            rounds = Rounds(self.plan, table.uri)
            table.look()
            while table.is_announced:
                table.put_state(REFUSED, reason=_GIVEN_UP)
                rounds.again("the end of its intent was put")
                table.look()

    # -- others ----------------------------------------------------------------------------------------------------------------

    def _claim(self, table: Participant) -> None:
        """Take a marker, by which VACUUM, aborts and older releases see that the staged files of a table are in use."""
        if table.fence is not None:
            return
        try:
            table.fence = self._markers.enter_context(fence(table.log, table.handle, self._attempt))
        except StagingException as error:
            if isinstance(error, TransactionAbortedException):
                raise
            raise PublicationPendingException(
                error.message, table=table.uri, publication=self.plan.publication, tables=self.plan.uris
            ) from error

    def _release(self, table: Participant) -> None:
        """Let the marker say how the attempt ended, so that staged files which nobody can publish any more may go."""
        if table.fence is None:
            return
        if (found := table.result()) is not None:
            table.fence.version = found.version
            table.fence.close()
        elif table.look() == REFUSED:
            table.fence.end(failedAt=int(time.time() * 1000))

    def _meet(self, table: Participant, other: str) -> str:
        """Let another publication end whose intent is open on one of our tables; return what came of it.

        If this worker does not know its anchor, it waits, and then goes on as an engine that knows no intents. Workers who did so
        have announced two on one table. Of two that are decided, the one with the smaller id goes on, whoever works: settling
        goes from larger ids to smaller ones, and from one that is decided to one that is refused, so it always ends.
        """
        what = f"publication {other} was met"
        table.log.update()  # the commit that met it has read on without the log
        settlement = self._settlement_of(table.log, other)
        if settlement is None:
            self._await(lambda: not _is_open(table.log, other), other, self._patience)
            if _is_open(table.log, other):
                logger.warning("Table %s: publication %s does not end; it is passed over.", table.uri, other)
                table.passed_over.add(other)
            return what
        if self._goes_before(settlement):
            logger.warning("Table %s: publication %s is decided, too; this one goes on first.", table.uri, other)
            table.passed_over.add(other)
            return what
        if self._held.count(other) > 1:  # not while the logs are as they were read
            raise table.log.error(
                PublicationPendingException,
                f"Publications {self.plan.publication} and {other} wait for each other on table {table.uri}. Run the task again.",
                publication=self.plan.publication,
                tables=self.plan.uris,
            )
        is_ours = PublicationId.parse(other).transaction == PublicationId.parse(self.plan.publication).transaction
        if not is_ours and other not in self._held and settlement.anchor.look() is None:
            seconds = min(_SHORTEST_PATIENCE, self._patience) if self.plan.publication < other else self._patience
            self._await(lambda: settlement.anchor.look() is not None or not _is_open(table.log, other), other, seconds)
        message = f"Publication {self.plan.publication} met it on table {table.uri} before it was decided."
        why = {"error": ConcurrentTransactionException.__name__, "message": message, "table": table.uri}
        settlement.run(give_up=True, why=why)
        if _is_open(table.log, other):
            table.passed_over.add(other)
        return what

    def _goes_before(self, other: Settlement) -> bool:
        """Tell whether this publication goes on before another one: both are decided, and its id is smaller."""
        is_smaller = self.plan.publication < other.plan.publication
        return is_smaller and self.anchor.look() == PUBLISHED and other.anchor.look() == PUBLISHED

    def _settlement_of(self, log: DeltaLog, other: str) -> Settlement | None:
        """Return the work on another publication, ``None`` if this worker does not know all of its tables."""
        uris = publication_tables(log, other)
        anchor = self._open_or_own(uris[0]) if uris else None
        if anchor is None:
            return None
        try:
            plan = load_plan(anchor, other)
            return settlement_of(plan, self._open_or_own, patience=self._patience, held=self._held)
        except (ManifestException, PublicationPendingException, DeltaIllegalArgumentException) as error:
            logger.warning("Publication %s cannot be settled here: %s", other, error.message)
            return None

    def _open_or_own(self, uri: str) -> DeltaLog | None:
        for table in self.tables:
            if table.log.uri == uri:
                return table.log
        return self._open_table(uri)

    def _await(self, ended: Callable[[], bool], other: str, seconds: float) -> None:
        until = self._met.setdefault(other, time.monotonic()) + seconds
        pause = 0.02
        while not ended() and (left := until - time.monotonic()) > 0:
            time.sleep(min(pause, left))
            pause = min(0.5, pause * 1.5)

    # -- the end ---------------------------------------------------------------------------------------------------------------

    def result(self, outcome: str) -> PublicationResult:
        """Return the publication as the logs have it."""
        states: dict[str, int] = {}
        winner, reason, standing, dirty = None, "", "", []
        looks = side_by_side(lambda table, _: table.look(), self.tables, beside=self._beside)
        for table, state in zip(self.tables, looks, strict=True):
            if state == REFUSED and outcome == "published":
                state = PUBLISHED  # before the table was dropped or replaced
            states[table.uri] = (INTENT if table.has_intent else -1) if state is None else state
            if state == REFUSED and winner is None and table.log.snapshot.version >= 0:
                found = table.reason(REFUSED)
                reason = reason or (found or {}).get("message") or ""
                winner = found if found and found.get("error") else None
            if state == STANDS:
                standing = standing or (table.reason(STANDS) or {}).get("message") or ""
            if state == UNDONE:
                dirty += table.dirty_reads()
        return PublicationResult(
            publication=self.plan.publication,
            outcome=outcome,
            anchor=self.anchor.uri,
            tables={table.uri: table.result() if states[table.uri] in (PUBLISHED, STANDS) else None for table in self.tables},
            states=states,
            reason=reason,
            standing=standing,
            winner=winner,
            dirty_reads=tuple(dirty),
        )


def _confirmed(work: Callable[[Participant], T], table: Participant) -> T:
    """Do something with a table, and once more if its error could be a wrong answer of the store."""
    try:
        return work(table)
    except TransactionAbortedException:  # a marker says so, and a claim that failed is not looked into again
        raise
    except DeltaError as error:
        if not error.may_be_wrong_answer:
            raise
        logger.info("Table %s: %s Looking again.", table.uri, error.message)
        return work(table)


def settlement_of(plan: PublicationPlan, open_table: OpenTable, *, patience: float, held: tuple[str, ...] = ()) -> Settlement:
    """Return the work on a publication of others.

    :raises PublicationPendingException: if one of its tables is not to be opened here.
    """
    tables = []
    for planned in plan.tables:
        log = open_table(planned.table)
        if log is None:
            raise PublicationPendingException(
                f"Publication {plan.publication} of {', '.join(plan.uris)} is under way, and table {planned.table} is not one "
                "that this task names, so it is not settled here. Its own Dag settles it, or `airflow delta settle`. Run this "
                "task again then.",
                table=planned.table,
                publication=plan.publication,
                tables=plan.uris,
            )
        tables.append(Participant(log, planned, plan))
    return Settlement(plan, tables, open_table, patience=patience, held=held)


def refused_error(result: PublicationResult) -> DeltaError:
    """Return the error of a commit task whose publication was refused: the conflict or the check, as the anchor's log has it."""
    winner = result.winner or {}
    kind = getattr(exceptions, str(winner.get("error")), None)
    if isinstance(kind, type) and issubclass(kind, DeltaConcurrentModificationException):
        return kind(
            str(winner.get("message")),
            table=winner.get("table"),
            winning_version=winner.get("version"),
            winning_commit=winner.get("commit"),
        )
    if kind is ChecksOutdatedException:
        checks = tuple((str(name), int(index)) for name, index in winner.get("checks") or ())
        return kind(str(winner.get("message")), table=winner.get("table"), checks=checks)
    if kind is DeltaAuditFailedException:
        return kind(str(winner.get("message")), table=winner.get("table"))
    return TransactionAbortedException(
        f"Publication {result.publication} was refused: {result.reason or 'nobody says why.'} Nothing of it was published. Clear "
        "the start tasks with everything downstream.",
        table=result.anchor,
    )


def own_tables(logs: Sequence[DeltaLog]) -> OpenTable:
    """Return what opens only these tables."""

    def opened(uri: str) -> DeltaLog | None:
        return next((log for log in logs if place_key(uri, log.store) == same_place_key(log)), None)

    return opened


def _is_open(log: DeltaLog, publication: str) -> bool:
    snapshot = log.update()
    return snapshot.version >= 0 and publication in open_intents(snapshot.intents)
