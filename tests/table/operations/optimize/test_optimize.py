"""Which files OPTIMIZE and REORG choose, what they refuse, and how the outcome is committed; Arrow does Spark's part."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.contract.changes import ClusterBy
from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.exceptions import (
    CommitCancelledException,
    ConcurrentDeleteReadException,
    DeltaAnalysisException,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    DeltaTableNotFoundException,
    DeltaUnsupportedOperationException,
    MetadataChangedException,
    RowCountMismatchException,
    StagingException,
)
from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.actions import AddFile
from airflow_delta.table.commit.publish import publish
from airflow_delta.table.operations.optimize.auto_compaction import find_request
from airflow_delta.table.operations.optimize.bins import batches_of, bins_of, needs_compaction
from airflow_delta.table.operations.optimize.plan import plan_optimize, select_for_optimize
from airflow_delta.table.operations.optimize.reorg import select_for_purge
from airflow_delta.table.operations.optimize.run import run_rewrite
from airflow_delta.table.stage.plan_alter import plan_alter
from airflow_delta.table.stage.stage_view import SparkWork, open_stage
from airflow_delta.table.stage.view import view_of
from airflow_delta.table.start.begin import begin
from airflow_delta.transaction import CommitPolicy, Operation, OptimisticTransaction, PostCommitHook
from support import readers
from support.actions import add, domain, listed, schema, vector
from support.table import Table

IDENTITY = {"task_id": "optimize", "map_index": -1, "attempt": "1-a"}
COLUMNS = schema(id="long", name="string", part="string", list={"type": "array", "elementType": "long", "containsNull": True})


def file(path: str, size: int = 10, part: str | None = "a", rows: int = 10, deleted: int = 0) -> AddFile:
    if not deleted:
        return add(path, size=size, part=part, records=rows)
    stats = json.dumps({"numRecords": rows, "tightBounds": False})
    return add(path, size=size, part=part, stats=stats, deletion_vector=vector(cardinality=deleted))


def sizes(bins: Any) -> list[list[int]]:
    return [[f.size for f in members] for members in bins]


class Case(Table):
    """A table of small files with one row each."""

    def create(self, partition_by: Iterable[str] = ("part",), **options: Any) -> DeltaLog:
        return super().create(partition_by, schema_string=COLUMNS, **options)

    def commit(self, *given: Any, operation: Operation | None = None, **options: Any) -> int:
        return super().commit(*given, operation=operation or Operation.write(), **options)

    def file(self, number: int, part: str = "a", directory: str = "", extra: bool = False) -> AddFile:
        """Write a Parquet file of one row and return its action."""
        data: dict[str, Any] = {"id": [number], "name": [f"n{number}"], "list": [[number]]}
        if extra:
            data["gone"] = [1]
        path = f"{directory}file-{number}.parquet"
        (self.path / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(data), self.path / path)
        return file(path, (self.path / path).stat().st_size, part, rows=1)

    def handle(self) -> TransactionHandle:
        return begin(self.log(), transaction_key="k")

    def optimize(self, work: Any, *, batch_size: int | None = None, **options: Any) -> Any:
        return run_rewrite(
            self.log(),
            lambda view: select_for_optimize(view, **options),
            work,
            identity=IDENTITY,
            batch_size=batch_size,
        )

    def concatenate(self, request: StageRequest) -> StageReport:
        """Do Spark's part with Arrow: it depends on nothing but the request."""
        assert request.rewrite is not None
        written = {}
        for number, members in enumerate(request.arguments["bins"]):
            tables = [pq.read_table(self.path / request.rewrite.files[i].path, partitioning=None) for i in members]
            directory = self.path / request.directory / f"run-{number}"
            directory.mkdir(parents=True)
            rows = pa.concat_tables(tables)
            pq.write_table(rows, directory / "part-0.parquet")
            size = (directory / "part-0.parquet").stat().st_size
            written[directory.name] = {"numFiles": 1, "numRows": rows.num_rows, "numBytes": size}
        return StageReport(
            transaction_id=request.transaction_id,
            stage=request.stage,
            attempt=request.attempt,
            directories=tuple(written),
            written=written,
        )


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path / "table")


# -- selection -----------------------------------------------------------------------------------------------------------------


def test_bins_are_filled_from_the_smallest_file_on() -> None:
    files = [file(str(n), n) for n in (50, 10, 40, 30, 20)]
    assert sizes(bins_of(files, 60)) == [[10, 20, 30]], "bins of one file are left alone"
    assert sizes(bins_of(files, 60, single=True)) == [[10, 20, 30], [40], [50]]
    assert sizes(bins_of(files, 100)) == [[10, 20, 30, 40]]
    assert sizes(bins_of([*files, file("x", 200)], 60, single=True))[-1] == [200]
    assert sizes(bins_of(files, None, single=True)) == [[50, 10, 40, 30, 20]]


def test_bins_stay_inside_their_partition() -> None:
    files = [file("1", part="a"), file("2", part="b"), file("3", part="a"), file("4", part=None), file("5", part=None)]
    assert [[f.path for f in members] for members in bins_of(files, 100)] == [["1", "3"], ["4", "5"]]


def test_batches_take_the_smallest_bins_first() -> None:
    bins = [(file("1", 50), file("2", 50)), (file("3", 5),), (file("4", 20),)]
    assert [sizes(batch) for batch in batches_of(bins, 30)] == [[[5], [20]], [[50, 50]]]
    assert len(batches_of(bins, None)) == 1


@pytest.mark.parametrize(
    ("one", "wanted"),
    [
        (file("f", 99), True),
        (file("f", 100), False),
        (file("f", 100, rows=100, deleted=5), False),
        (file("f", 100, rows=100, deleted=6), True),
        (msgspec.structs.replace(file("f", 100, deleted=1), stats=None), True),
    ],
)
def test_small_files_and_those_with_many_deleted_rows(one: AddFile, wanted: bool) -> None:
    assert needs_compaction(one, 100, 0.05) is wanted


def test_what_is_selected(case: Case) -> None:
    case.create(**{"delta.targetFileSize": "1kb"})
    case.commit(file("1", 400), file("2", 500), file("3", 900), file("4", 5000), file("5", 1, "b"), file("6", 1, "b"))
    view = view_of(case.log(), case.handle())
    found = select_for_optimize(view)
    assert sizes(found.bins) == [[400, 500], [1, 1]]
    assert (found.num_considered, found.max_file_size) == (6, 1024)
    found = select_for_optimize(view, where="part = 'b'")
    assert sizes(found.bins) == [[1, 1]]
    assert found.parameters == {"predicate": ["part = 'b'"], "zOrderBy": [], "clusterBy": [], "auto": False}
    assert sizes(select_for_optimize(view, max_file_size=10_000, min_file_size=450).bins) == [[1, 1]]
    found = select_for_optimize(view, max_file_size=1700, z_order_by=["NAME", "id"])
    assert sizes(found.bins) == [[400, 500, 900, 5000], [1, 1]], "all files of a partition"
    assert found.z_order_by == (("name",), ("id",))
    assert [found.num_outputs(members) for members in found.bins] == [4, 1]
    auto = select_for_optimize(view, auto=True, partitions=[{"part": "b"}])
    assert sizes(auto.bins) == [[1, 1]]
    assert auto.parameters["auto"] is True


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"where": "id = 1"}, DeltaAnalysisException, "may only name partition columns"),
        ({"z_order_by": ["part"]}, DeltaAnalysisException, "DELTA_ZORDERING_ON_PARTITION_COLUMN"),
        ({"z_order_by": ["nope"]}, DeltaAnalysisException, "DELTA_ZORDERING_COLUMN_DOES_NOT_EXIST"),
        ({"z_order_by": ["list"]}, DeltaAnalysisException, "no bounds"),
        ({"z_order_by": ["name"]}, DeltaAnalysisException, "DELTA_ZORDERING_ON_COLUMN_WITHOUT_STATS"),
        ({"max_file_size": 0}, DeltaIllegalArgumentException, "max_file_size >= 1"),
        ({"max_deleted_rows_ratio": 2}, DeltaIllegalArgumentException, "max_deleted_rows_ratio"),
        ({"full": "False"}, DeltaIllegalArgumentException, "full .* must be True or False, got 'False'"),
        ({"full": None}, DeltaIllegalArgumentException, "full .* must be True or False"),
    ],
)
def test_what_is_refused(case: Case, options: Any, error: type[Exception], says: str) -> None:
    case.create(**{"delta.dataSkippingStatsColumns": "id"})
    with pytest.raises(error, match=says):
        select_for_optimize(view_of(case.log(), case.handle()), **options)


def test_a_table_that_does_not_exist(case: Case) -> None:
    with pytest.raises(DeltaTableNotFoundException):
        case.optimize(case.concatenate)
    assert not (case.path / "_delta_log").exists()


# -- clustered tables ----------------------------------------------------------------------------------------------------------


def cluster(case: Case, *columns: Any, create: bool = True, partition_by: Iterable[str] = (), **options: Any) -> None:
    """Cluster a table, as CLUSTER BY does."""
    if create:
        case.create(partition_by, **options)
        case.commit(listed((), "clustering", "domainMetadata"), operation=Operation.manual_update())
    configuration = json.dumps({"clusteringColumns": list(columns), "domainName": "delta.clustering"})
    case.commit(domain("delta.clustering", configuration), operation=Operation.cluster_by((), ()))


def unpartitioned(case: Case, number: int) -> AddFile:
    return msgspec.structs.replace(case.file(number), partition_values={})


def cubes(case: Case, version: int) -> list[tuple[str, str, str]]:
    """Return provider, cube and columns of the files that a version added."""
    return [(a["clusteringProvider"], *map(a["tags"].get, ("ZCUBE_ID", "ZCUBE_ZORDER_BY"))) for a in case.actions(version)["add"]]


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        ([["id"]], {"z_order_by": ["id"]}, "clustered by id.*DELTA_CLUSTERING_WITH_ZORDER_BY"),
        ([["id"]], {"where": "part = 'a'"}, "DELTA_CLUSTERING_WITH_PARTITION_PREDICATE"),
        ([["id"]], {"where": "part = 'a'", "full": True}, "DELTA_CLUSTERING_WITH_PARTITION_PREDICATE"),
        ([], {"z_order_by": ["id"]}, "DELTA_CLUSTERING_WITH_ZORDER_BY"),
        ([], {"where": "part = 'a'"}, "DELTA_CLUSTERING_WITH_PARTITION_PREDICATE"),
        ([], {"full": True}, "DELTA_OPTIMIZE_FULL_NOT_SUPPORTED"),
        ([["gone"]], {}, "gone, which it does not have"),
        ([["part"]], {"partitioned": True}, "DELTA_CLUSTER_BY_WITH_PARTITIONED_BY"),
    ],
)
def test_what_a_clustered_table_refuses(case: Case, columns: Any, options: Any, says: str) -> None:
    cluster(case, *columns, partition_by=["part"] if options.pop("partitioned", False) else ())
    with pytest.raises((DeltaUnsupportedOperationException, DeltaAnalysisException), match=says):
        select_for_optimize(view_of(case.log(), case.handle()), **options)


def test_full_is_for_clustered_tables(case: Case) -> None:
    case.create()
    with pytest.raises(DeltaUnsupportedOperationException, match="DELTA_OPTIMIZE_FULL_NOT_SUPPORTED"):
        select_for_optimize(view_of(case.log(), case.handle()), full=True)


def test_a_table_clustered_by_no_columns_is_compacted(case: Case) -> None:
    cluster(case)
    case.commit(unpartitioned(case, 1), unpartitioned(case, 2))
    result = case.optimize(case.concatenate)
    assert "tags" not in case.actions(result.version)["add"][0]
    assert "isFull" not in case.actions(result.version)["commitInfo"][0]["operationParameters"]


def test_each_bin_becomes_a_cube(case: Case) -> None:
    cluster(case, ["id"], "name")  # the protocol's example has names instead of paths
    case.commit(*(unpartitioned(case, n) for n in range(3)))
    result = case.optimize(case.concatenate)
    ((provider, first, columns),) = cubes(case, result.version)
    assert (provider, columns) == ("liquid", '["id","name"]')
    parameters = case.actions(result.version)["commitInfo"][0]["operationParameters"]
    assert (parameters["clusterBy"], parameters["isFull"]) == ('["id","name"]', False)
    assert case.optimize(case.concatenate).version is None, "one cube, and nothing else"
    case.commit(unpartitioned(case, 3))
    result = case.optimize(case.concatenate)
    ((_, second, _),) = cubes(case, result.version)
    assert first != second
    assert result.metrics["numRemovedFiles"] == 2
    assert sorted(row["id"] for row in readers.rows(case.path)) == [0, 1, 2, 3]
    size = case.log().snapshot.add_files()[0].size
    case.commit(*(unpartitioned(case, n) for n in range(4, 7)))
    view = view_of(case.log(), case.handle())
    found = select_for_optimize(view, min_cube_size=size)
    assert [len(members) for members in found.bins] == [1, 1, 1], "a cube of that size is left alone"
    found = select_for_optimize(view, min_cube_size=size * 7 // 5, max_file_size=size // 2)
    assert [len(members) for members in found.bins] == [2, 2], "others get half as large again"
    assert all(found.num_outputs(members) >= 2 for members in found.bins)


def test_other_clustering_columns_leave_old_cubes_to_optimize_full(case: Case) -> None:
    cluster(case, ["id"])
    case.commit(unpartitioned(case, 1), unpartitioned(case, 2))
    case.optimize(case.concatenate)
    cluster(case, ["name"], create=False)
    assert case.optimize(case.concatenate).version is None
    case.commit(unpartitioned(case, 3))
    result = case.optimize(case.concatenate)
    assert result.metrics["numRemovedFiles"] == 1
    result = case.optimize(case.concatenate, full=True)
    assert result.metrics["numRemovedFiles"] == 2
    assert cubes(case, result.version)[0][2] == '["name"]'
    assert case.actions(result.version)["commitInfo"][0]["operationParameters"]["isFull"] is True
    assert case.optimize(case.concatenate, full=True).version is None


@pytest.mark.parametrize(("winner", "conflicts"), [("name", True), (None, True), ("id", False)])
@pytest.mark.parametrize("max_restarts", [0, 1])
def test_a_concurrent_cluster_by(case: Case, winner: str | None, conflicts: bool, max_restarts: int) -> None:
    cluster(case, ["id"])
    case.commit(unpartitioned(case, 1), unpartitioned(case, 2))
    done: list[int] = []

    def meanwhile(request: StageRequest) -> StageReport:
        if not done:
            cluster(case, *([] if winner is None else [[winner]]), create=False)
            done.append(1)
        return case.concatenate(request)

    def optimize() -> Any:
        return run_rewrite(case.log(), select_for_optimize, meanwhile, identity=IDENTITY, max_restarts=max_restarts)

    if conflicts and not max_restarts:
        with pytest.raises(MetadataChangedException, match="clustering columns were changed"):
            optimize()
        assert not list((case.path / "staged").rglob("*.parquet"))
        return
    added = case.actions(optimize().version)["add"][0]
    assert added.get("tags", {}).get("ZCUBE_ZORDER_BY") == (None if winner is None else f'["{winner}"]')


@pytest.mark.parametrize("max_restarts", [0, 1])
def test_concurrent_changes_of_a_clustered_table(case: Case, max_restarts: int) -> None:
    """An append stays out of the cube; another OPTIMIZE is a conflict, after which there may be nothing left to do."""
    cluster(case, ["id"])
    case.commit(unpartitioned(case, 1), unpartitioned(case, 2))
    others: list[Any] = [lambda: case.commit(unpartitioned(case, 3))]

    def beside(request: StageRequest) -> StageReport:
        while others:
            others.pop()()
        return case.concatenate(request)

    def optimize() -> Any:
        return run_rewrite(case.log(), select_for_optimize, beside, identity=IDENTITY, max_restarts=max_restarts)

    assert optimize().metrics["numRemovedFiles"] == 2
    assert sorted(file.clustering_provider or "" for file in case.log().snapshot.add_files()) == ["", "liquid"]
    others.append(lambda: case.optimize(case.concatenate))
    if max_restarts:
        assert optimize().version is None
    else:
        with pytest.raises(ConcurrentDeleteReadException):
            optimize()
    (file,) = case.log().snapshot.add_files()
    assert (file.clustering_provider, sorted(row["id"] for row in readers.rows(case.path))) == ("liquid", [1, 2, 3])


def test_an_earlier_stage_changes_the_clustering(case: Case) -> None:
    cluster(case, ["id"])
    case.commit(unpartitioned(case, 1), unpartitioned(case, 2))
    handle = case.handle()
    stage = open_stage(case.log(), handle, **IDENTITY)
    altered = plan_alter(stage, [ClusterBy(("name",))])
    assert isinstance(altered, StagedWrite)
    view = view_of(case.log(), handle, [altered])
    with pytest.raises(DeltaUnsupportedOperationException, match="earlier stage"):
        select_for_optimize(view)


def test_reorg_takes_files_with_deleted_rows_or_dropped_columns(case: Case) -> None:
    case.create()
    case.commit(case.file(1), case.file(2, extra=True), case.file(3, "b", extra=True))
    found = select_for_purge(view_of(case.log(), case.handle()), where="part = 'a'")
    assert [[f.path for f in members] for members in found.bins] == [["file-2.parquet"]], "one file is enough"
    assert found.parameters == {"predicate": ["part = 'a'"], "applyPurge": True}
    assert len(select_for_purge(view_of(case.log(), case.handle())).bins) == 2


# -- commit --------------------------------------------------------------------------------------------------------------------


def test_one_commit_at_snapshot_isolation(case: Case) -> None:
    case.create()
    case.commit(*[case.file(n) for n in range(3)], *[case.file(n, "b") for n in range(3, 5)], case.file(9, "c"))
    result = case.optimize(case.concatenate)
    assert (result.version, result.num_bins, result.num_batches, result.num_partitions) == (2, 2, 1, 2)
    assert (result.num_considered, result.num_skipped) == (6, 1)
    entry = case.actions(2)
    [info] = entry["commitInfo"]
    assert "txn" not in entry
    assert (info["operation"], info["isolationLevel"], info["isBlindAppend"]) == ("OPTIMIZE", "SnapshotIsolation", False)
    assert info["operationParameters"] == {"predicate": "[]", "zOrderBy": "[]", "clusterBy": "[]", "auto": False}
    metrics = info["operationMetrics"]
    assert (metrics["numAddedFiles"], metrics["numRemovedFiles"], metrics["numDeletionVectorsRemoved"]) == ("2", "5", "0")
    assert metrics["p50FileSize"] == metrics["maxFileSize"]
    assert {add["dataChange"] for add in entry["add"]} == {remove["dataChange"] for remove in entry["remove"]} == {False}
    assert {add["partitionValues"]["part"] for add in entry["add"]} == {"a", "b"}
    assert sorted(json.loads(add["stats"])["numRecords"] for add in entry["add"]) == [2, 3]
    again = case.optimize(case.concatenate)
    assert (again.version, again.commits, again.num_skipped) == (None, (), 3)


def test_bins_that_others_compact_meanwhile_are_dropped(case: Case) -> None:
    case.create()
    case.commit(*[case.file(n) for n in range(3)], *[case.file(n, "b") for n in range(3, 5)])

    def beside(request: StageRequest) -> StageReport:
        case.optimize(case.concatenate, where="part = 'a'")
        return case.concatenate(request)

    result = case.optimize(beside)
    assert (result.version, result.num_bins, result.num_dropped_bins, result.num_skipped) == (3, 2, 1, 3)
    assert result.metrics["numRemovedFiles"] == len(case.actions(3)["remove"]) == 2
    assert result.metrics["numAddedFiles"] == result.commits[0].num_files == len(case.actions(3)["add"]) == 1
    assert result.commits[0].num_records == 2
    assert result.commits[0].resolved == {"dropped": "2", "moved": "2"}
    assert len(case.log().update().add_files()) == 2
    assert sorted(row["id"] for row in readers.rows(case.path)) == list(range(5))


def test_if_others_compact_everything_meanwhile_nothing_is_committed(case: Case) -> None:
    case.create()
    case.commit(*[case.file(n) for n in range(3)])

    def beside(request: StageRequest) -> StageReport:
        case.optimize(case.concatenate)
        return case.concatenate(request)

    result = case.optimize(beside)
    assert (result.version, result.commits, result.num_bins, result.num_dropped_bins) == (None, (), 1, 1)
    assert (result.num_skipped, result.metrics["numAddedFiles"]) == (3, 0)
    assert case.log().update().version == 2
    assert len(list(case.path.rglob("part-*.parquet"))) == 1, "what nobody needs is deleted"
    assert sorted(row["id"] for row in readers.rows(case.path)) == list(range(3))


def test_a_stage_drops_bins_too_and_its_commit_says_what_is_left(case: Case) -> None:
    case.create()
    case.commit(*[case.file(n) for n in range(3)], *[case.file(n, "b") for n in range(3, 5)])
    handle = case.handle()
    work = plan_optimize(open_stage(case.log(), handle, **IDENTITY))
    assert isinstance(work, SparkWork)
    staged = work.collect(work.request, case.concatenate(work.request))
    case.optimize(case.concatenate, where="part = 'a'")
    result = publish(case.log(), handle, [staged], attempt="1-a")
    assert (result.version, result.num_files, result.num_removed_files) == (3, 1, 2)
    assert result.partitions == ({"part": "b"},)
    assert result.resolved["dropped"] == "2"
    assert len(case.log().update().add_files()) == 2
    again = publish(case.log(), handle, [staged], attempt="1-a")
    assert (again.version, again.committed_before, again.num_files) == (3, True, 1)
    assert sorted(row["id"] for row in readers.rows(case.path)) == list(range(5))


def test_the_result_says_what_the_entry_says(case: Case) -> None:
    """Rows that another commit deleted meanwhile are marked in the new file, and files that it removed are not removed again."""
    case.create(**{"delta.enableDeletionVectors": "true"})
    first = case.file(0)
    case.commit(first, *[case.file(n) for n in range(1, 4)])

    def meanwhile(request: StageRequest) -> StageReport:
        report = case.concatenate(request)
        case.commit(first.remove(1), operation=Operation.delete())
        [name] = report.directories
        return replace(report, first_rows={name: [[at, at] for at in range(4)]})

    result = case.optimize(meanwhile)
    [commit] = result.commits
    entry = case.actions(3)
    [info] = entry["commitInfo"]
    assert commit.resolved == {"rows": "2"}
    assert (commit.num_records, commit.num_removed_files, len(entry["remove"])) == (3, 3, 3)
    assert {name: str(count) for name, count in result.metrics.items()} == info["operationMetrics"]
    assert sorted(row["id"] for row in readers.rows(case.path)) == [1, 2, 3]


def test_batches_are_committed_one_after_the_other(case: Case) -> None:
    case.create()
    case.commit(*[case.file(n, "ab"[n % 2]) for n in range(4)])
    result = case.optimize(case.concatenate, batch_size=1)
    assert [commit.version for commit in result.commits] == [2, 3]
    assert {commit.read_version for commit in result.commits} == {1}
    assert len({commit.transaction_id for commit in result.commits}) == 2
    assert result.metrics["numRemovedFiles"] == 4
    assert len(case.log().snapshot.add_files()) == 2


def test_what_was_staged_goes_when_the_work_fails(case: Case) -> None:
    case.create()
    case.commit(case.file(1), case.file(2))

    def broken(request: StageRequest) -> StageReport:
        case.concatenate(request)
        raise ValueError("no disk")

    with pytest.raises(ValueError, match="no disk"):
        case.optimize(broken)
    assert not list((case.path / "staged").rglob("*.parquet"))
    assert case.log().snapshot.version == 1


def test_lost_rows_are_never_committed(case: Case) -> None:
    case.create()
    one = msgspec.structs.replace(case.file(1), stats='{"numRecords":2}')
    case.commit(one, case.file(2))
    with pytest.raises(RowCountMismatchException, match="has 1 rows by its Parquet footer, and 2 by the log"):
        case.optimize(case.concatenate)
    case.commit(msgspec.structs.replace(one, stats='{"numRecords":1}'))

    def lossy(request: StageRequest) -> StageReport:
        assert request.rewrite is not None
        return case.concatenate(replace(request, arguments={**request.arguments, "bins": [[0]]}))

    with pytest.raises(StagingException, match="wrote 1 rows instead of the 2"):
        case.optimize(lossy)
    assert case.log().snapshot.version == 2


def test_others_may_add_meanwhile_and_change_the_metadata(case: Case) -> None:
    case.create()
    case.commit(case.file(1), case.file(2))

    def meanwhile(request: StageRequest) -> StageReport:
        case.commit(case.file(3))
        txn = OptimisticTransaction(case.log())
        txn.update_metadata(msgspec.structs.replace(txn.metadata, description="new"))
        txn.commit([], Operation.manual_update())
        return case.concatenate(request)

    result = case.optimize(meanwhile)
    assert result.version == 4
    assert result.commits[0].read_version == 3, "committed again, as it was"
    assert len(case.log().snapshot.add_files()) == 2


def test_a_file_that_another_commit_removes_ends_it(case: Case) -> None:
    case.create()
    first = case.file(1)
    case.commit(first, case.file(2))

    def meanwhile(request: StageRequest) -> StageReport:
        case.commit(first.remove(1), operation=Operation.delete())
        return case.concatenate(request)

    with pytest.raises(ConcurrentDeleteReadException):
        case.optimize(meanwhile)
    assert case.log().snapshot.version == 2
    assert not list((case.path / "staged").rglob("*.parquet"))


@pytest.mark.parametrize("batch_size", [None, 1])
@pytest.mark.parametrize("max_restarts", [1, 2])
def test_it_starts_over_after_a_conflict(case: Case, max_restarts: int, batch_size: int | None) -> None:
    case.create()
    first, second, other = case.file(1), case.file(2), [case.file(n, "b") for n in range(5, 8)]
    case.commit(first, second, case.file(3), case.file(4))
    case.commit(*other)
    gone = [first, second]

    def meanwhile(request: StageRequest) -> StageReport:
        assert request.rewrite is not None
        there = {one.path for one in request.rewrite.files}
        if gone and gone[0].path in there:
            removed = [gone.pop(0), *([other.pop()] if batch_size is None else [])]
            case.commit(*(one.remove(1) for one in removed), operation=Operation.delete())
        return case.concatenate(request)

    def optimize() -> Any:
        options = {"identity": IDENTITY, "batch_size": batch_size, "max_restarts": max_restarts}
        return run_rewrite(case.log(), select_for_optimize, meanwhile, **options)

    if max_restarts == 1:
        with pytest.raises(ConcurrentDeleteReadException):
            optimize()
        live = {file.path for file in case.log().update().add_files()}
        staged = {str(path.relative_to(case.path)) for path in (case.path / "staged").rglob("*.parquet")}
        assert staged <= live, "what was given up is deleted"
        return
    result = optimize()
    assert not gone
    assert sum(len(case.actions(commit.version)["remove"]) for commit in result.commits) == result.metrics["numRemovedFiles"]
    assert sorted(row["id"] for row in readers.rows(case.path)) == ([3, 4, 5] if batch_size is None else [3, 4, 5, 6, 7])
    assert len(case.log().update().add_files()) == 2


def test_rows_that_another_commit_marks_do_not_come_back(case: Case) -> None:
    """The path is still live, with another deletion vector."""
    case.create(**{"delta.enableDeletionVectors": "true"})
    first = case.file(1)
    case.commit(first, case.file(2))
    marked = msgspec.structs.replace(
        first, deletion_vector=file("x", deleted=1).deletion_vector, stats='{"numRecords":1,"tightBounds":false}'
    )

    def meanwhile(request: StageRequest) -> StageReport:
        case.commit(first.remove(1), marked, operation=Operation.delete())
        return case.concatenate(request)

    with pytest.raises(ConcurrentDeleteReadException):
        case.optimize(meanwhile)
    assert case.log().snapshot.version == 2
    assert not list((case.path / "staged").rglob("*.parquet"))


class Failing(PostCommitHook):
    """Ends as it is told, after the log entry was written."""

    name = "failing"

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def run(self, txn: OptimisticTransaction, version: int, actions: Any) -> None:
        raise self.error

    def handle_error(self, txn: OptimisticTransaction, error: Exception, version: int) -> None:
        raise error


@pytest.mark.parametrize(
    "error", [DeltaIllegalStateException("hook"), ConcurrentDeleteReadException("of another table"), KeyboardInterrupt("killed")]
)
def test_what_is_committed_stays_whatever_comes_after(case: Case, error: BaseException) -> None:
    case.create()
    case.commit(case.file(1), case.file(2))
    with pytest.raises(type(error)):
        run_rewrite(case.log(), select_for_optimize, case.concatenate, identity=IDENTITY, hooks=[Failing(error)])
    snapshot = case.log().snapshot
    assert snapshot.version == 2
    assert [(case.path / live.path).exists() for live in snapshot.add_files()] == [True]


def test_what_was_staged_goes_when_the_commit_is_refused(case: Case) -> None:
    case.create()
    case.commit(case.file(1), case.file(2))
    with pytest.raises(CommitCancelledException):
        run_rewrite(
            case.log(), select_for_optimize, case.concatenate, identity=IDENTITY, policy=CommitPolicy(cancelled=lambda: True)
        )
    assert not list((case.path / "staged").rglob("*.parquet"))


def test_a_stage_without_anything_to_rewrite(case: Case) -> None:
    case.create()
    staged = plan_optimize(open_stage(case.log(), case.handle(), **IDENTITY))
    assert isinstance(staged, StagedWrite)
    assert (staged.operation, staged.mode, staged.num_files, staged.actions) == ("OPTIMIZE", "rewrite", 0, ())


def test_what_is_due_for_auto_compaction(case: Case) -> None:
    case.create()
    case.commit(*[case.file(n) for n in range(3)], case.file(9, "b"))
    assert find_request(case.log()) is None
    request = find_request(case.log(), min_files=3)
    assert request is not None
    assert (request["partitions"], request["numSmallFiles"]) == ([{"part": "a"}], 3)
    assert (request["minFileSize"], request["maxFileSize"]) == (64 << 20, 128 << 20)
