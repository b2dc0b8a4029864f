"""How the previews of a transaction end: with its commit or its abort, or some days later."""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_delta.contract.staging_directory import CHANGES_DIRECTORY, KEPT_PREFIX, PREVIEW_DIRECTORY, transaction_directory

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog

logger = logging.getLogger(__name__)

DIRECTORIES = (PREVIEW_DIRECTORY, CHANGES_DIRECTORY)


def end_previews(log: DeltaLog, transaction_id: str, *, keep: timedelta | float | None = None) -> None:
    """Delete the previews of a transaction that is committed. Never fails: the commit stands, and VACUUM deletes leftovers.

    :param keep: leave them for this long instead, or so many days; VACUUM then deletes them once they are also older than its
        retention.
    """
    for name in DIRECTORIES:
        directory = f"{transaction_directory(transaction_id)}/{name}"
        try:
            if keep is None:
                log.store.delete_tree(directory)
            elif log.store.list_children(directory) != ([], []):
                length = keep if isinstance(keep, timedelta) else timedelta(days=keep)
                until = int(time.time() * 1000) + length // timedelta(milliseconds=1)
                log.store.put(f"{directory}/{KEPT_PREFIX}{until}", b"")
        except Exception as error:  # noqa: BLE001 - as said
            logger.warning("Could not end the preview %s of table %s: %s", directory, log.uri, error)
