"""What the commit and abort tasks of a publication call: publish several tables as one, or abort."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from airflow_delta.contract.payloads import AbortResult, CommitResult, StagedWrite
from airflow_delta.contract.staging_directory import new_attempt
from airflow_delta.exceptions import (
    DeltaIllegalStateException,
    PublicationPendingException,
    PublicationSplitException,
    PublicationUndoneException,
)
from airflow_delta.publication.ids import PublicationId, plan_path, same_place_key, table_mark
from airflow_delta.publication.participant import OneAtATime, Participant
from airflow_delta.publication.plan import check_keys, load_plan, make_plan, plans_below
from airflow_delta.publication.records import PUBLISHED, STANDS, UNDONE, Member, OpenTable, PublicationOptions, PublicationPlan
from airflow_delta.publication.results import PublicationAbort, PublicationResult
from airflow_delta.publication.side_by_side import asks_a_network, side_by_side
from airflow_delta.publication.states import decided_by, newest_state, publication_of_commit
from airflow_delta.publication.steps import Settlement, own_tables
from airflow_delta.table.abort import abort
from airflow_delta.table.commit.publish import clean_up, committed_before
from airflow_delta.table.stage.staged_writes import check_reported, parse_staged
from airflow_delta.table.state.find_commit import committed_earlier
from airflow_delta.table.state.key_users import check_key_of_run, check_key_of_table

if TYPE_CHECKING:
    from airflow_delta.transaction import CommitPolicy

logger = logging.getLogger(__name__)

T = TypeVar("T")


def publish_tables(
    members: Sequence[Member],
    *,
    attempt: str,
    options: PublicationOptions | None = None,
    policy: CommitPolicy | None = None,
    check: Callable[[], Mapping[str, str] | None] | None = None,
    open_table: OpenTable | None = None,
) -> PublicationResult:
    """Publish the staged writes of several tables: all of them, or none.

    Safe to repeat after any failure: what an earlier try began is found in the logs and brought to its end.

    :param attempt: unique name of this execution (:func:`airflow_delta.contract.staging_directory.new_attempt`).
    :param check: called before anything is published, unless the logs hold the publication; raises what forbids it,
        and returns tags that say what was checked.
    :param open_table: opens the tables of other publications that are in the way; default: only those of the members.
    :return: of a publication that is on all tables.
    :raises DeltaConcurrentModificationException: if another commit conflicts; nothing was published.
    :raises PublicationUndoneException: if one came between the decision and its turn; everything was taken back.
    :raises PublicationSplitException: if it is on some tables only, for good.
    :raises PublicationPendingException: if it could not be ended; run the task again.
    :raises DeltaUnsupportedOperationException: if something cannot be part of a publication.
    :raises TransactionAbortedException: if it was given up.

    It raises what :func:`airflow_delta.table.commit.publish.publish` does, too; nothing was published then.
    """
    options = options if options is not None else PublicationOptions()
    logs = [member.log for member in members]
    opens = open_table if open_table is not None else own_tables(logs)
    if options.on_late_conflict == "keep" and (kept := _kept_by_split(members)):
        rest = [member for member in members if member.log.uri not in kept]
        alone = replace(options, anchor=_anchor_among(rest, options.anchor))
        published = publish_tables(rest, attempt=attempt, options=alone, policy=policy, check=check, open_table=opens)
        states = {**dict.fromkeys(kept, STANDS), **published.states}
        return replace(published, tables={**kept, **published.tables}, states=states)
    # Some start tasks alone may have run again since it was published: the handles of the others do not say so.
    is_known = any(member.handle.committed is not None for member in members)
    if is_known and (before := _committed_by_others(members)) is not None:
        return before
    reports = [_reports(member) for member in members]
    if (plan := _decided(members)) is not None:
        _check_tables(plan, members)
        return _ended(_settlement(plan, members, options, opens, attempt, policy), members, reports, before=True)
    if (before := _committed_by_others(members, looked=True)) is not None:
        return before
    for member, writes in zip(members, reports, strict=True):
        if member.expected is not None:
            check_reported(member.handle, writes, member.expected)
    if check is not None and (checked := check()):
        members = [replace(member, tags={**(member.tags or {}), **checked}) for member in members]
    reports = [parse_staged(member.handle, writes) for member, writes in zip(members, reports, strict=True)]
    plan, staged = make_plan(members, reports, options)
    return _ended(_settlement(plan, members, options, opens, attempt, policy, staged), members, reports, before=False)


def _kept_by_split(members: Sequence[Member]) -> dict[str, CommitResult]:
    """Return the tables that keep a publication which is split, if the start tasks of all others have run again since."""
    kept: dict[str, CommitResult] = {}
    split = set[str]()
    for member in members:
        log, handle = member.log, member.handle
        commit = committed_earlier(log, handle) if handle.committed is not None else committed_before(log, handle)
        found = None if commit is None else publication_of_commit(log, commit)
        if commit is not None and found is not None and newest_state(log.snapshot, found[0]) == STANDS:
            kept[log.uri] = commit
            split.add(found[0])
    for member in members:
        if kept and member.log.uri not in kept and not all(_is_refused_before(member, publication) for publication in split):
            return {}
    return kept if len(kept) < len(members) else {}


def _is_refused_before(member: Member, publication: str) -> bool:
    """Tell whether a publication could not be put on a table, and its transaction there has begun since."""
    parts = PublicationId.parse(publication)
    was_part = table_mark(member.log) in parts.tables
    is_there = newest_state(member.log.update(), publication) in (PUBLISHED, STANDS)
    plan = plan_path(member.handle.transaction_id, parts.digest)
    return was_part and not is_there and member.log.store.head(plan) is None


def _anchor_among(members: Sequence[Member], anchor: str | None) -> str | None:
    is_member = any(anchor in (member.log.uri, member.handle.given_table, same_place_key(member.log)) for member in members)
    return anchor if is_member else None


def _reports(member: Member) -> list[StagedWrite]:
    return [write if isinstance(write, StagedWrite) else StagedWrite.from_dict(write) for write in member.staged]


def _settlement(
    plan: PublicationPlan,
    members: Sequence[Member],
    options: PublicationOptions,
    opens: OpenTable,
    attempt: str,
    policy: CommitPolicy | None,
    staged: Mapping[str, bytes] | None = None,
) -> Settlement:
    own = own_tables([member.log for member in members])
    by_log = {id(member.log): member for member in members}
    turns = threading.Lock()
    tables = []
    for planned in plan.tables:
        log = own(planned.table)
        member = by_log.get(id(log))
        log = log if log is not None else opens(planned.table)
        if log is None:
            raise PublicationPendingException(
                f"Publication {plan.publication} also has table {planned.table}, which this task does not name.",
                table=planned.table,
                publication=plan.publication,
                tables=plan.uris,
            )
        hooks = [OneAtATime(hook, turns) for hook in member.hooks] if member is not None else ()
        written = None if staged is None or member is None else staged.get(planned.table)
        tables.append(Participant(log, planned, plan, hooks=hooks, policy=policy, staged=written))
    return Settlement(plan, tables, opens, patience=options.patience, attempt=attempt)


def _decided(members: Sequence[Member]) -> PublicationPlan | None:
    """Return the plan of an earlier try, if it is decided; stages may have run again since."""

    def decided(member: Member) -> str | None:
        return decided_by(member.log, member.handle.transaction_id, since=max(member.handle.read_version + 1, 0))

    for member, publication in zip(members, _of_each(decided, members), strict=True):
        if publication is not None:
            return load_plan(member.log, publication)
    return None


def _of_each(work: Callable[[Member], T], members: Sequence[Member]) -> list[T]:
    """Do something with each member that has no order."""
    return side_by_side(lambda member, _: work(member), members, beside=asks_a_network(member.log for member in members))


def _check_tables(plan: PublicationPlan, members: Sequence[Member]) -> None:
    """Refuse to go on with a plan that knows nothing of a transaction: its staged rows would stay behind."""
    planned = {table.transaction_id for table in plan.tables}
    rest = [member for member in members if member.handle.transaction_id not in planned]
    if rest:
        raise rest[0].handle.error(
            DeltaIllegalStateException,
            f"Publication {plan.publication} of {', '.join(plan.uris)} is decided, and the transaction on "
            f"{', '.join(member.log.uri for member in rest)} is not part of it: a table has joined the publication since, or its "
            "start task has run again. Nothing more is committed. Clear all start tasks with everything downstream.",
        )


def _committed_by_others(members: Sequence[Member], *, looked: bool = False) -> PublicationResult | None:
    """Return the commits of other executions of the same keys, if they are there by now.

    :param looked: the logs have just been looked at.
    """

    def commit_of(member: Member) -> CommitResult | None:
        log, handle = member.log, member.handle
        if handle.committed is not None:
            return committed_earlier(log, handle)
        before = committed_before(log, handle, log.snapshot if looked else None)
        if before is not None and before.transaction_id != handle.transaction_id:
            check_key_of_table(log.uri, handle, before, member.user)
        elif handle.rerun_policy != "append" and log.snapshot.version >= 0:
            check_key_of_run(log, log.snapshot, handle.app_id, member.user, after=handle.read_version)
        return before

    found = _of_each(commit_of, members)
    committed = [
        replace(member, handle=replace(member.handle, committed=before)) for member, before in zip(members, found, strict=True)
    ]
    return _of_commits(members, [before for before in found if before is not None]) if check_keys(committed) else None


def _of_commits(members: Sequence[Member], commits: Sequence[CommitResult]) -> PublicationResult:
    """Return the result of keys that are committed already."""
    found = (publication_of_commit(member.log, commit) for member, commit in zip(members, commits, strict=True))
    publication, anchor = next((one for one in found if one is not None), ("", members[0].log.uri))
    return PublicationResult(
        publication=publication,
        outcome="published",
        anchor=anchor,
        tables={member.log.uri: commit for member, commit in zip(members, commits, strict=True)},
        states=dict.fromkeys((member.log.uri for member in members), PUBLISHED),
        committed_before=True,
    )


def _ended(
    settlement: Settlement, members: Sequence[Member], writes: Sequence[Sequence[StagedWrite]], *, before: bool
) -> PublicationResult:
    """Bring a publication to its end, and return it if it is published."""
    result = settlement.run(give_up=False)
    if result.outcome == "published":
        staged = dict(zip(map(id, members), writes, strict=True))
        _of_each(lambda one: clean_up(one.log, one.handle, staged[id(one)], one.log.snapshot), members)
        return replace(result, committed_before=before)
    raise _error(result)


def _error(result: PublicationResult) -> PublicationUndoneException | PublicationSplitException:
    """Return the error of a publication that was decided and is not on all tables."""
    winner = result.winner or {}
    who = f" because of {winner.get('operation')} in version {winner['version']}" if winner.get("version") is not None else ""
    why = f"Table {winner.get('table')} refused it{who}: {winner.get('message') or result.reason}"
    if result.outcome == "split":
        published = [uri for uri, state in result.states.items() if state in (PUBLISHED, STANDS)]
        missing = [uri for uri in result.states if uri not in published]
        standing = result.standing or "on_late_conflict is 'keep', or later commits were built on it"
        return PublicationSplitException(
            f"Publication {result.publication} is split for good: {', '.join(published)} show it, {', '.join(missing)} do not. "
            f"{why} What is published was not taken back: {standing}. Look at the tables: publish the missing ones with a "
            "transaction of their own, or restore the others.",
            table=missing[0] if missing else None,
            publication=result.publication,
            published=published,
            missing=missing,
        )
    dirty = ", ".join(f"{read['operation']} in version {read['version']} of {read['table']}" for read in result.dirty_reads)
    return PublicationUndoneException(
        f"Publication {result.publication} was taken back on every table. {why} "
        + (f"Built on its rows before they were taken back, perhaps: {dirty}. " if dirty else "")
        + "Clear the start tasks with everything downstream to publish again.",
        table=winner.get("table"),
        winning_version=winner.get("version"),
        winning_commit=winner.get("commit"),
        publication=result.publication,
        dirty_reads=result.dirty_reads,
    )


def abort_tables(members: Sequence[Member], *, open_table: OpenTable | None = None) -> PublicationAbort:
    """Abort a publication: refuse it if it is not decided, and delete what it staged; otherwise bring it to its end.

    :param members: with their handles; staged writes are not needed.
    :raises PublicationPendingException: if it is decided and could not be ended; run the task again.
    """
    opens = open_table if open_table is not None else own_tables([member.log for member in members])
    ends = _give_up(members, opens)
    tables = {member.log.uri: _abort(member, ends) for member in members}
    if any(result.outcome == "marked" for result in tables.values()) and len(_plans(members)) > len(ends):
        ends = _give_up(members, opens)  # a commit came between the two looks
        tables = {member.log.uri: _abort(member, ends) for member in members}
    found = _best(result for _, result in ends)
    outcome = "refused" if found is None else found.outcome
    if tables and all(result.outcome == "committed" for result in tables.values()):
        outcome = "published"  # perhaps by several: an earlier run, or what was missing of one that is split
    return PublicationAbort(
        publication=None if found is None else found.publication,
        outcome=outcome,
        tables=tables,
        reason="" if found is None else found.reason,
    )


_BY_WHAT_STANDS = ("refused", "undone", "split", "published")


def _best(results: Iterable[PublicationResult]) -> PublicationResult | None:
    """Return the publication of which most is there; of several, the last: earlier ones were tried again."""
    return max(reversed(list(results)), key=lambda result: _BY_WHAT_STANDS.index(result.outcome), default=None)


def _give_up(members: Sequence[Member], opens: OpenTable) -> list[tuple[PublicationPlan, PublicationResult]]:
    """Bring every plan to its end."""
    return [
        (plan, _settlement(plan, members, PublicationOptions(), opens, new_attempt(), None).run(give_up=True))
        for plan in _plans(members)
    ]


def _plans(members: Sequence[Member]) -> list[PublicationPlan]:
    found: dict[str, PublicationPlan] = {}
    for member in members:
        for plan in plans_below(member.log, member.handle.transaction_id):
            found.setdefault(plan.publication, plan)
    return sorted(found.values(), key=lambda plan: plan.put_at)


def _abort(member: Member, ends: Sequence[tuple[PublicationPlan, PublicationResult]]) -> AbortResult:
    """Abort a transaction, unless a publication has put it on its table."""
    own = {
        result.publication: planned.table
        for plan, result in ends
        for planned in plan.tables
        if planned.transaction_id == member.handle.transaction_id
    }
    result = _best(result for _, result in ends if result.publication in own)
    uri = "" if result is None else own[result.publication]
    state = None if result is None else result.states.get(uri)
    if result is not None and state in (PUBLISHED, STANDS):
        commit = result.tables.get(uri)
        return AbortResult(
            transaction_id=member.handle.transaction_id,
            table=member.log.uri,
            outcome="committed",
            version=None if commit is None else commit.version,
            reason=f"Publication {result.publication} is {result.outcome}. Nothing was deleted.",
        )
    if result is not None and state == UNDONE:
        return AbortResult(
            transaction_id=member.handle.transaction_id,
            table=member.log.uri,
            outcome="undone",
            reason=f"Publication {result.publication} was taken back here. Earlier versions of the table need its files.",
        )
    return abort(member.log, member.handle)
