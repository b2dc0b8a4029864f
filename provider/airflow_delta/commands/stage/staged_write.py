"""What an attempt of a stage hands to the commit: its actions, in the payload or in a manifest beside the files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta.commands.files.adds import DataFiles
from airflow_delta.commands.stage.new_columns import check_new_columns
from airflow_delta.log.actions.actions import Action, AddCDCFile, RemoveFile, encode_action
from airflow_delta.staging.contract import StagedWrite, TransactionHandle
from airflow_delta.staging.manifest import INLINE_LIMIT, decode_actions, encode_manifest, manifest_ref
from airflow_delta.staging.paths import MANIFEST_NAME, attempt_directory

if TYPE_CHECKING:
    from airflow_delta.log import DeltaLog


def staged_write(
    log: DeltaLog,
    handle: TransactionHandle,
    new: DataFiles,
    copied: DataFiles,
    removes: Sequence[RemoveFile],
    changes: Sequence[AddCDCFile],
    **staged: Any,
) -> StagedWrite:
    """Return the staged write of an attempt; what its files add up to is counted here.

    :param new: files with new rows.
    :param copied: files with rows of replaced files.
    :param staged: other fields of :class:`~airflow_delta.staging.contract.StagedWrite`; they win over what is counted.
    :raises MetadataChangedException: the stage adds columns, and the table has got others since.
    """
    adds = [*new.adds, *copied.adds]
    actions: list[Action] = [*removes, *adds, *changes]
    lines = [encode_action(action) for action in actions]
    data = encode_manifest(lines)
    totals: dict[str, Any] = {
        "num_files": len(adds),
        "num_removed_files": len(removes),
        "num_records": new.rows,
        "num_copied_records": copied.rows,
        "num_change_files": len(changes),
        "num_bytes": sum(add.size for add in adds),
        **staged,
    }
    if len(data) <= INLINE_LIMIT:
        write = StagedWrite(transaction_id=handle.transaction_id, actions=decode_actions(lines), **totals)
        check_new_columns(log, handle, write)
        return write
    path = f"{attempt_directory(handle.transaction_id, staged['stage'], staged['attempt'])}/{MANIFEST_NAME}"
    log.store.put(path, data)
    ref = manifest_ref(path, data, len(lines))
    write = StagedWrite(transaction_id=handle.transaction_id, manifest=ref, **totals)
    check_new_columns(log, handle, write)
    return write
