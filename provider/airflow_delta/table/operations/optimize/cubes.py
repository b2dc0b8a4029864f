"""What OPTIMIZE clusters of a clustered table, and what such a table refuses (Delta's ``ClusteringStrategy``, ``ZCube``).

Each OPTIMIZE makes cubes of the files that are in none and of the small cubes; a large cube is left alone. Files that were
clustered by other columns stay as they are until OPTIMIZE FULL.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

from airflow_delta.exceptions import DeltaAnalysisException, DeltaUnsupportedOperationException
from airflow_delta.log.features.clustering import PROVIDER, clustering_columns, cube_of, logical_columns, quoted_path
from airflow_delta.log.schema.walk import dotted, folded, walk_fields
from airflow_delta.log.statistics.row_counts import num_records

if TYPE_CHECKING:
    from airflow_delta.log.actions.actions import AddFile
    from airflow_delta.log.schema.walk import Path
    from airflow_delta.table.stage.view import TransactionView


MIN_CUBE_SIZE = 100 << 30
"""Bytes from which a cube is left alone (``optimize.clustering.mergeStrategy.minCubeSize.threshold``)."""


def clustering_of(view: TransactionView, *, where: str | None, z_order_by: Sequence[str], full: bool) -> tuple[Path, ...]:
    """Return the columns to cluster by, as the schema spells them; none if the table is not clustered.

    :param where: a predicate, which a clustered table does not take; nor does it take ``z_order_by``.
    :param full: for OPTIMIZE FULL, which only a clustered table takes.
    :raises DeltaUnsupportedOperationException: for an option that the table does not take.
    :raises DeltaAnalysisException: if the clustering does not fit the table.
    """
    table = view.target
    is_clustered = "clustering" in view.definition.features and view.definition.version >= 0
    columns = clustering_columns(view.snapshot.domain_metadata) if is_clustered else []
    about = f"table {table.table} version {table.version}"
    refused = None
    if full and not columns:
        refused = (
            f"OPTIMIZE FULL is for tables with clustering columns, and {about} has none (DELTA_OPTIMIZE_FULL_NOT_SUPPORTED). "
            "Leave full out."
        )
    elif is_clustered and where is not None:
        refused = (
            f"OPTIMIZE of a clustered table takes no predicate, and {about} is clustered by {_names(columns)} "
            "(DELTA_CLUSTERING_WITH_PARTITION_PREDICATE). Leave where out."
        )
    elif is_clustered and z_order_by:
        refused = (
            f"OPTIMIZE of a clustered table takes no ZORDER BY, and {about} is clustered by {_names(columns)} "
            "(DELTA_CLUSTERING_WITH_ZORDER_BY). Leave z_order_by out, or change the clustering: ALTER TABLE ... CLUSTER BY."
        )
    elif _changes_clustering(view, is_clustered=bool(columns)):
        refused = (
            f"An earlier stage of the transaction changes what {about} is clustered by, so its rows cannot be clustered yet. Run "
            "OPTIMIZE in a later transaction."
        )
    if refused is not None:
        raise table.error(DeltaUnsupportedOperationException, refused)
    if columns and table.partition_columns:
        raise table.error(
            DeltaAnalysisException,
            f"OPTIMIZE of {about}: it is clustered by {_names(columns)} and partitioned by "
            f"{', '.join(table.partition_columns)}, which exclude each other (DELTA_CLUSTER_BY_WITH_PARTITIONED_BY). End the "
            "clustering: ALTER TABLE ... CLUSTER BY NONE.",
        )
    paths = logical_columns(view.schema, columns)
    known = {folded(path) for path, _ in walk_fields(view.schema)}
    if gone := [path for path in paths if folded(path) not in known]:
        raise table.error(
            DeltaAnalysisException,
            f"OPTIMIZE of {about}: it is clustered by {_names(gone)}, which it does not have. Change the clustering: ALTER TABLE "
            "... CLUSTER BY.",
        )
    return tuple(paths)


def _names(columns: Sequence[Path]) -> str:
    return ", ".join(map(dotted, columns)) or "no columns"


def _changes_clustering(view: TransactionView, *, is_clustered: bool) -> bool:
    """Return whether an earlier stage changes the clustering columns; of a replaced table, only if it has any now."""
    writes = [stage.write for stage in view.stages]
    if any(change.get("change") == "ClusterBy" for write in writes for change in write.changes):
        return True
    return is_clustered and any(bool(write.definition) or write.overwrite_schema for write in writes)


def files_to_cluster(
    files: Sequence[AddFile], columns: Sequence[Path], *, full: bool = False, min_cube_size: int = MIN_CUBE_SIZE
) -> list[AddFile]:
    """Return the files to cluster, in the order in which cubes take them: those in no cube first, then cube by cube.

    :param columns: what to cluster by.
    :param full: with the files that were clustered by other columns, or by another provider.
    :param min_cube_size: bytes from which a cube is left alone.
    """
    wanted = tuple(map(quoted_path, columns))
    fresh: list[AddFile] = []
    others: list[tuple[str, AddFile]] = []
    cubes: dict[str, list[AddFile]] = defaultdict(list)
    for file in files:
        cube = cube_of(file.tags)
        if file.clustering_provider not in (None, PROVIDER) or (cube is not None and cube.columns != wanted):
            others.append(("" if cube is None else cube.cube_id, file))
        elif cube is None:
            fresh.append(file)
        else:
            cubes[cube.cube_id].append(file)
    small = [cubes[name] for name in sorted(cubes) if sum(map(_live_size, cubes[name])) < min_cube_size]
    chosen = [*fresh, *chain.from_iterable(small)]
    if full and others:
        return [*chosen, *(file for _, file in sorted(others, key=lambda other: other[0]))]
    return chosen if fresh or len(small) > 1 else []


def _live_size(file: AddFile) -> int:
    """Return the bytes of a file that its live rows take, if their share is known."""
    rows = num_records(file.stats)
    if file.deletion_vector is None or not rows:
        return file.size
    return int(file.size * max(0, rows - file.deletion_vector.cardinality) / rows)
