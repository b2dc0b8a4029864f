"""GENERATE symlink_format_manifest: lists of a table's files for readers that do not know the log (``DeltaGenerateCommand``)."""

from __future__ import annotations

import logging
from dataclasses import asdict
from itertools import count
from typing import TYPE_CHECKING, Any

from airflow_delta.exceptions import DeltaTableNotFoundException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.transaction.commit.symlink_manifest import DIRECTORY, generate_manifests, wants_symlink_manifest

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog

logger = logging.getLogger(__name__)

MAX_RESTARTS = 3


@dataclass(frozen=True, slots=True)
class ManifestResult:
    """What a GENERATE has written.

    :param version: of the table, whose files are listed.
    :param location: directory of the manifests, which is where a table over them is made.
    :param num_manifests: one for each partition, or one.
    """

    table: str
    version: int
    location: str
    num_manifests: int

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        names = {"num_manifests": "numManifests"}
        return {names.get(name, name): value for name, value in asdict(self).items()}


def generate(log: DeltaLog, *, max_restarts: int = MAX_RESTARTS) -> ManifestResult:
    """Write the manifests of the latest version, and delete those of partitions that are gone. Nothing is committed.

    A commit that updates the manifests by itself and comes meanwhile may have been overwritten: then they are written again.

    :param max_restarts: how often.
    :raises DeltaTableNotFoundException: if there is no table.
    :raises DeltaUnsupportedOperationException: if the table has deletion vectors or column mapping, which readers of manifests
        do not support; nothing is written then.
    """
    for restarts in count():
        snapshot = log.update()
        if snapshot.version < 0:
            raise log.error(
                DeltaTableNotFoundException,
                f"There is no Delta table at {log.uri}, so there are no files to list. Check the location.",
            )
        result = ManifestResult(log.uri, snapshot.version, f"{log.uri}/{DIRECTORY}", generate_manifests(log, snapshot))
        if restarts >= max_restarts or not wants_symlink_manifest(snapshot.metadata.configuration):
            break
        if log.update().version == snapshot.version:
            break
        logger.info("Writing the manifests of %s again: version %s came meanwhile.", log.uri, log.snapshot.version)
    return result
