"""FSCK REPAIR TABLE as a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_delta import engine
from airflow_delta.contract.kinds import NUMBER
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.tasks.declared import parameter
from airflow_delta.tasks.maintenance_base import DeltaMaintenanceBase
from airflow_delta.tasks.outlets import withdraw_default_outlets

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.tasks.commit.commit_part import CommitPart
    from airflow_delta.tasks.declared import Taken


class DeltaRepairTableOperator(DeltaMaintenanceBase):
    """Find data files of a table that are gone, and remove their entries (FSCK REPAIR TABLE), in the worker.

    By default it only reports. With ``dry_run=False`` it removes the entries in one commit, once for its identity; their rows are
    lost. It refuses if more than a share of the table is gone, if no file is found at all, if deletion vectors are gone, or if
    the store does not say whether a file is there.

    Returns JSON: ``dryRun``, ``table``, ``version``, ``numMissingFiles``, ``numMissingBytes``, ``numMissingRecords`` (rows lost;
    null if the statistics do not say), ``missingShare``, ``paths`` and ``lostDeletionVectors``; of a dry run also ``refusal``,
    why a repair would fail; of a repair also the result of the commit.

    :param dry_run: only report; commit nothing.
    :param max_missing_share: share of the table, by files or by bytes, up to which it removes entries, above 0 and at most 1.
        (templated)
    :param max_restarts: how often to look again if others commit meanwhile.
    :param max_paths: number of paths to list in the result.

    The other parameters are those of :class:`~airflow_delta.tasks.maintenance_base.DeltaMaintenanceBase`.
    """

    only_list: bool = parameter(default=True, alias="dry_run")  # dry_run() is a method of every operator
    max_missing_share: Taken[float | str, float] = parameter(default=0.1, templated=True, kind=NUMBER)
    max_restarts: int = parameter(default=10)
    max_paths: int = parameter(default=1000)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.only_list, bool):  # a text such as a template's "False" would be true
            raise DeltaIllegalArgumentException(f"dry_run must be True or False, got {self.only_list!r}.")
        if self.only_list:
            withdraw_default_outlets(self)

    def run(self, log: DeltaLog, committer: CommitPart, context: Context) -> dict[str, Any]:
        """Look for the files, and remove the entries of those that are gone.

        :raises DeltaFileNotFoundException: if the repair is refused.
        """
        share = self.max_missing_share
        if self.only_list:
            missing = engine.find_missing_files(log)
            refusal = missing.refusal(share)
            self.log.info(
                "%s of %s files of version %s of %s are gone (%s rows, %s bytes)%s.",
                len(missing.files),
                missing.num_files,
                missing.version,
                missing.table,
                missing.missing_records,
                missing.missing_bytes,
                "" if refusal is None else "; a repair would be refused",
            )
            found = missing.to_dict(max_paths=self.max_paths)
            return {**found, "dryRun": True, "refusal": None if refusal is None else refusal.message}
        result = engine.repair_table(
            log, max_missing_share=share, max_restarts=self.max_restarts, **self.commit_options(committer, context)
        )
        removed = {} if result.missing is None else result.missing.to_dict(max_paths=self.max_paths)
        for path in () if result.commit.committed_before else removed.get("paths", ()):
            self.log.warning("Removed the entry of %s, which is gone.", path)
        return {**removed, "dryRun": False, **committer.finish(context, result.commit)}
