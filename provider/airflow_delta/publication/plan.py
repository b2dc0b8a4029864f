"""The plan of a publication: which tables, in which order, with which staged writes.

It lies below the staging directory of every table, the anchor's first. Whoever goes on with a publication has no XCom, so staged
writes are in files beside it, which the plan names with their checksums; the id of the publication has the digest of the plan.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_delta.contract.manifest import encode_manifest, manifest_ref, verify_manifest
from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.contract.staging_directory import PLAN_PREFIX, STAGING_DIRECTORY, transaction_directory
from airflow_delta.exceptions import (
    ContractVersionException,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    DeltaUnsupportedOperationException,
    ManifestException,
    StagingException,
)
from airflow_delta.log.storage.puts import creates
from airflow_delta.publication.ids import PublicationId, plan_path, same_place_key, table_mark
from airflow_delta.publication.records import (
    MAX_TABLES,
    Member,
    PlannedTable,
    PublicationOptions,
    PublicationPlan,
    publication_id,
)
from airflow_delta.publication.retention import check_retention, definitions_in_force
from airflow_delta.publication.side_by_side import asks_a_network, side_by_side
from airflow_delta.table.definition.altered_table import is_alter
from airflow_delta.table.definition.evolve import new_metadata
from airflow_delta.table.state.read_snapshot import snapshot_of_transaction

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog

_WRITES_PREFIX = "publication-writes-"

APPENDS, READS, READS_ALL, CHANGES_TABLE = range(4)
"""How hard it is to go on after a conflict on a table."""


def hardness(handle: TransactionHandle, writes: Sequence[StagedWrite]) -> int:
    """Return how hard the stages of a table are to rebase on other commits; the hardest table is the anchor."""
    if handle.read_version < 0 or any(is_alter(write) or write.overwrite_schema or write.definition for write in writes):
        return CHANGES_TABLE
    found = APPENDS
    for write in writes:
        reads = write.reads
        if reads.whole_table or (write.mode == "overwrite" and write.replace_where is None):
            return READS_ALL
        if write.mode != "append" or reads.predicates or reads.files or reads.keys or reads.app_ids or write.num_removed_files:
            found = READS
    return found


def check_publishable(handle: TransactionHandle, writes: Sequence[StagedWrite]) -> None:
    """Refuse what cannot be part of a publication.

    :raises DeltaUnsupportedOperationException: if it cannot.
    """

    def refused(why: str) -> DeltaUnsupportedOperationException:
        return DeltaUnsupportedOperationException(
            f"The transaction on table {handle.table} cannot be part of a publication of several tables: {why}",
            table=handle.table,
            version=handle.read_version,
        )

    if handle.monotonic:
        raise refused(
            "it has app_id and txn_version. After its rows were taken back, the log could not tell whether that version is "
            "committed. Use transaction_key, the default."
        )
    for write in writes:
        mode = write.definition.get("mode") if write.definition else None
        if mode is not None and mode != "create_if_not_exists":
            raise refused(
                f"stage {write.stage} creates or replaces the table ({mode}), which cannot be taken back. Create the table "
                "before, or with IF NOT EXISTS."
            )


def stays(log: DeltaLog, handle: TransactionHandle, writes: Sequence[StagedWrite]) -> str | None:
    """Return why what the stages do to a table could not be taken back; ``None``: it can, as far as is known before."""
    if changes_table(log, handle, writes):
        return "its stages change columns or properties"
    if any(table.properties.append_only for table in definitions_in_force(log, handle, writes)):
        return "it is append-only"
    return None


def changes_table(log: DeltaLog, handle: TransactionHandle, writes: Sequence[StagedWrite]) -> bool:
    """Tell whether the stages change columns or properties of an existing table."""
    if handle.read_version < 0:
        return False
    if any(is_alter(write) for write in writes):
        return True
    if not any(write.merge_schema or write.overwrite_schema for write in writes):
        return False
    snapshot = snapshot_of_transaction(log, handle)
    return new_metadata(handle, snapshot.definition, snapshot.metadata, writes) is not None


def ordered(members: Sequence[Member], writes: Sequence[Sequence[StagedWrite]], options: PublicationOptions) -> list[int]:
    """Return the positions of the members in the order of publication: the anchor, tables that are read, appends; by URI.

    If what is published may have to be taken back, the table where that is impossible is the last one.

    :raises DeltaIllegalArgumentException: if there are too many, two name the same table, or the anchor is not among them.
    :raises DeltaUnsupportedOperationException: if more than one could not be taken back, or the anchor.
    """
    if not 1 <= len(members) <= MAX_TABLES:
        raise DeltaIllegalArgumentException(f"A publication has 1 to {MAX_TABLES} tables, not {len(members)}.")
    keys = [same_place_key(member.log) for member in members]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise DeltaIllegalArgumentException(
            f"Table {twice[0]} is in the publication twice. Put all stages of a table into one transaction.", table=twice[0]
        )
    found = [hardness(member.handle, of_one) for member, of_one in zip(members, writes, strict=True)]
    positions = sorted(range(len(members)), key=lambda n: (-found[n], keys[n]))
    last = _last(members, writes, options)
    positions = [n for n in positions if n not in last] or positions
    anchor = positions[0]
    if options.anchor is not None:
        named = [n for n, member in enumerate(members) if options.anchor in (member.log.uri, member.handle.given_table, keys[n])]
        if not named:
            raise DeltaIllegalArgumentException(f"The anchor {options.anchor!r} is not a table of the publication.")
        anchor = named[0]
        if anchor in last:
            raise _not_taken_back(members[anchor].handle, last[anchor], "It cannot be the anchor, which is published first.")
    rest = sorted((n for n in positions if n != anchor), key=lambda n: (found[n] == APPENDS, keys[n]))
    return [anchor, *rest, *(n for n in last if n != anchor)]


def _last(members: Sequence[Member], writes: Sequence[Sequence[StagedWrite]], options: PublicationOptions) -> dict[int, str]:
    """Return the position of the table that has to be the last one, and why, if there is one."""
    if options.on_late_conflict == "keep" or len(members) == 1:
        return {}
    reasons = (stays(member.log, member.handle, of_one) for member, of_one in zip(members, writes, strict=True))
    found = {n: why for n, why in enumerate(reasons) if why is not None}
    if len(found) > 1:
        first, second = list(found)[:2]
        also = f"Only one table of a publication may be like that, it is published last; but {members[second].log.uri} is, too: "
        raise _not_taken_back(members[first].handle, found[first], f"{also}{found[second]}.")
    return found


def _not_taken_back(handle: TransactionHandle, why: str, rule: str) -> DeltaUnsupportedOperationException:
    return handle.error(
        DeltaUnsupportedOperationException,
        f"The transaction on table {handle.table} cannot be published with others like this: {why}, so it could not be taken "
        f"back if another table were refused after it. {rule} Nothing is published. Name another anchor, change or load the "
        "table in a transaction of its own before, or choose on_late_conflict='keep'.",
    )


def make_plan(
    members: Sequence[Member], writes: Sequence[Sequence[StagedWrite]], options: PublicationOptions
) -> tuple[PublicationPlan, dict[str, bytes]]:
    """Return the plan, and put it below every table, with the staged writes.

    A plan of the same staged writes that is there stays: every try of a commit goes on with the same publication.

    :return: with the plan, the files of staged writes that this call has created, by URI. One that was there may be damaged, and
        whoever ends the publication needs it: it is to be read before the decision.
    """
    order = ordered(members, writes, options)
    for position in order:
        member = members[position]
        check_retention(member.log, member.handle, writes[position])
        check_publishable(member.handle, writes[position])
    beside = asks_a_network(member.log for member in members)
    put = side_by_side(lambda position, _: _planned(members[position], writes[position]), order, beside=beside)
    planned = tuple(table for table, _ in put)
    _check_places([members[position] for position in order], planned)
    plan = PublicationPlan(
        on_late_conflict=options.on_late_conflict, intents=options.intents, put_at=int(time.time() * 1000), tables=planned
    )
    in_order = [members[position] for position in order]
    plan = replace(plan, publication=publication_id(plan, [table_mark(member.log) for member in in_order]))
    digest = plan.digest()
    data = json.dumps(plan.to_dict()).encode()
    paths = [plan_path(table.transaction_id, digest) for table in planned]
    if not creates(in_order[0].log.store, paths[0], data):  # of an earlier try: its bytes are the same everywhere
        plan = load_plan(in_order[0].log, plan.publication)
        data = in_order[0].log.store.read(paths[0])
    rest = range(1, len(paths))
    side_by_side(lambda number, _: creates(in_order[number].log.store, paths[number], data), rest, beside=beside)
    return plan, {table.table: written for table, written in put if written is not None}


def _check_places(members: Sequence[Member], planned: Sequence[PlannedTable]) -> None:
    """Refuse a table that two names stand for, without showing it: a link, another endpoint of one store.

    What was put below one of them is then below the other, too.
    """
    ids = [member.log.snapshot.metadata.id if member.log.snapshot.version >= 0 else None for member in members]
    for n, member in enumerate(members):
        others = {_staged_below(planned[m]): planned[m].table for m in range(n + 1, len(members)) if ids[m] == ids[n]}
        if others and (found := others.keys() & set(member.log.store.list_children(STAGING_DIRECTORY)[1])):
            raise DeltaIllegalArgumentException(
                f"{planned[n].table} and {others[found.pop()]} are one table, which is in the publication twice. Put all stages "
                "of a table into one transaction.",
                table=planned[n].table,
            )


def _staged_below(planned: PlannedTable) -> str:
    return transaction_directory(planned.transaction_id).rpartition("/")[2]


def _planned(member: Member, writes: Sequence[StagedWrite]) -> tuple[PlannedTable, bytes | None]:
    """Put the staged writes of a table into a file, named by its content.

    :return: the table's part of the plan, and the bytes of the file if it was not there.
    """
    lines = [json.dumps(write.to_dict(), sort_keys=True).encode() for write in writes]
    data = encode_manifest(sorted(lines))
    name = hashlib.sha256(data).hexdigest()[:16]
    path = f"{transaction_directory(member.handle.transaction_id)}/{_WRITES_PREFIX}{name}.jsonl"
    created = creates(member.log.store, path, data)
    planned = PlannedTable(
        table=member.log.uri,
        handle=member.handle.to_dict(),
        staged=manifest_ref(path, data, len(lines)),
        tags=dict(member.tags or {}),
        user_metadata=member.user_metadata,
        conflict_detection=member.conflict_detection,
        held=tuple(member.held),
    )
    return planned, data if created else None


def load_plan(log: DeltaLog, publication: str) -> PublicationPlan:
    """Return the plan of a publication from the anchor's table."""
    parts = PublicationId.parse(publication)
    return _read(log, parts.plan_path, publication)


def plans_below(log: DeltaLog, transaction_id: str) -> list[PublicationPlan]:
    """Return the plans below a table that one of its transactions is part of, oldest first."""
    directory = transaction_directory(transaction_id)
    found = []
    for status in log.store.list_from(directory, PLAN_PREFIX, stat=False):
        if not status.name.startswith(PLAN_PREFIX):
            break
        if status.name.endswith(".json"):
            found.append(_read(log, status.path, None))
    return sorted(found, key=lambda plan: plan.put_at)


def _read(log: DeltaLog, path: str, publication: str | None) -> PublicationPlan:
    try:
        data = log.store.read(path)
    except FileNotFoundError:
        raise ManifestException(
            f"The plan {path} of a publication is gone from table {log.uri}, so nobody can go on with it.", table=log.uri
        ) from None
    try:
        plan = PublicationPlan.from_dict(json.loads(data))
    except ContractVersionException:
        raise
    except (ValueError, StagingException):
        plan = PublicationPlan()
    known = plan.tables and PublicationId.parse(plan.publication).digest == plan.digest()
    if not known or publication not in (None, plan.publication):
        raise ManifestException(f"The plan {path} of a publication on table {log.uri} was altered.", table=log.uri)
    return plan


def load_writes(log: DeltaLog, planned: PlannedTable, data: bytes | None = None) -> list[StagedWrite]:
    """Return the staged writes of a table of a plan.

    :param data: the bytes of their file, if they are at hand.
    """
    try:
        data = log.store.read(planned.staged.path) if data is None else data
    except FileNotFoundError:
        data = None
    lines = verify_manifest(planned.staged, data, table=log.uri, what="file", lines_are="staged writes")
    return [StagedWrite.from_dict(json.loads(line)) for line in lines]


def check_keys(members: Sequence[Member]) -> bool:
    """Return whether all keys are committed already; a publication has all of them or none.

    :raises DeltaIllegalStateException: if only some are.
    """
    committed = [member.handle.committed is not None for member in members]
    if any(committed) and not all(committed):
        done = ", ".join(m.log.uri for m in members if m.handle.committed is not None)
        rest = ", ".join(m.log.uri for m in members if m.handle.committed is None)
        raise DeltaIllegalStateException(
            f"The keys of {done} are committed already, those of {rest} are not: a table has joined the publication since, or "
            "it is split. Nothing is committed. Run the transactions of the missing tables on their own, or clear with "
            "rerun_policy='replace'."
        )
    return all(committed)
