"""MERGE on Spark.

First, matching rows are paired, reading only the columns of conditions: the pairs say which rows change, in which files, and
which source rows have no match. Then changed rows are written, unchanged rows of the same files are copied without a shuffle
(with deletion vectors they stay), and new rows are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from airflow_delta.contract.merge import MATCHED, NOT_MATCHED, NOT_MATCHED_BY_SOURCE, UPDATE, MergeArguments
from airflow_delta.contract.merge_columns import several_matches, takes_any_match
from airflow_delta.contract.payloads import ScanFile
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.spark.align import align, spark_value
from airflow_delta.spark.job_group import with_job_group
from airflow_delta.spark.merge_clauses import CLAUSE, MergeClauses
from airflow_delta.spark.merge_rewrite import MergeRewrite, TouchedFile
from airflow_delta.spark.merge_source import SOURCE_ROW, MergeSource
from airflow_delta.spark.read import FILE_COLUMN, MAX_BROADCAST_WORDS, ROW_COLUMN, read_plan_files
from airflow_delta.spark.rewrite import FILE, NUMBER, WORD, file_of, files_by_uri, row_errors
from airflow_delta.spark.scd2 import versions_to_merge

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_UPDATED, _SEEN, _PAIRS = "updated", "seen", "pairs"
_BY_SOURCE_UPDATED, _BY_SOURCE_DELETED = "by_source_updated", "by_source_deleted"


def run(spark: SparkSession, request: StageRequest, source: DataFrame) -> StageReport:
    """Merge the rows of a source into the table, or the versions that they make."""
    if (history := MergeArguments.of(request).history) is not None:
        source = versions_to_merge(spark, request, history, source)
    work = MergeRewrite(spark, request)
    with row_errors(work):
        merge = _Merge(work, source)
        merge.run()
        keys = None if merge.by_source else merge.source.keys()  # all rows of the table were read
        work.lap("materializeSourceTimeMs")
    return replace(work.report(), identities=merge.clauses.counts_identities if merge.inserts else (), keys=keys)


class _Merge:
    def __init__(self, work: MergeRewrite, source: DataFrame) -> None:
        arguments = MergeArguments.of(work.request)
        self.work = work
        self._target_alias = arguments.target_alias
        self._condition = arguments.condition
        self.source = MergeSource(work, source, arguments.source_alias, arguments.keys)
        work.lap("materializeSourceTimeMs")
        self.clauses = MergeClauses(work, self.source, arguments)
        self.matched = self.clauses.of(MATCHED)
        self.inserts = self.clauses.of(NOT_MATCHED)
        self.by_source = self.clauses.of(NOT_MATCHED_BY_SOURCE)
        self.updates = self.clauses.of(MATCHED, NOT_MATCHED_BY_SOURCE, action=UPDATE)
        # Rows without a match matter: the whole table is read, without skipping.
        self._how = "left" if self.by_source else "inner"
        files = work.plan.files
        self.files = list(files) if self.by_source else self.source.possible_files(files)
        conditions = [self._condition, *self.clauses.conditions(MATCHED, NOT_MATCHED_BY_SOURCE)]
        self._pairs_small = self.source.is_small(conditions)
        values = self.clauses.values_of(self.updates)
        self._rows_small = self.source.is_small(None if values is None else [*conditions, *values])
        self._words: DataFrame
        self._words_written = False
        self._paired: DataFrame | None = None
        self._duplicates = False
        self._check()

    def run(self) -> None:
        work, metrics = self.work, self.work.metrics
        self._note_rows([])
        touched = self._find_touched() if self.matched or self.by_source else []
        metrics["numSourceRows"] = self.source.count
        work.note({item.file.path: item.rows for item in touched})
        work.lap("scanTimeMs")
        new = self._inserted() if self.inserts and self.source.count else None
        with ThreadPoolExecutor(max_workers=1) as pool:  # two independent jobs share the cluster
            inserting = None if new is None else pool.submit(with_job_group(work.spark, work.write_inserted), new)
            updated = self._rewrite(touched) if touched else None
            inserted = None if inserting is None else inserting.result()
        if touched and work.request.rules.change_data:
            self._write_changes(touched, updated, inserted)
        work.lap("rewriteTimeMs")

    # -- which rows -----------------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        target, source = self._target(self.work.plan.files[:1]), self.source.rows
        both = target.crossJoin(source)
        self.clauses.resolved_condition(both, self._condition, "ON")
        for rows, numbers in ((both, self.matched), (source, self.inserts), (target, self.by_source)):
            self.clauses.check(rows, numbers)

    def _target(self, files: Sequence[ScanFile], *, positions: bool = False) -> DataFrame:
        """Return the live rows of files under the alias of the table."""
        rows = read_plan_files(self.work.spark, self.work.plan, files, file_column=positions, row_column=positions)
        return rows.alias(self._target_alias)

    def _to_write(self, files: Sequence[ScanFile], *, positions: bool = False) -> DataFrame:
        """Return the same with row ids, if these are kept."""
        return self.work.read(files, file_column=positions, row_column=positions).alias(self._target_alias)

    def _joined(self, rows: DataFrame, *, small: bool, how: str | None = None) -> DataFrame:
        """Return rows of the table with their matching source rows, and the clause of each.

        :param small: broadcast the needed columns of the source: no row of the table is shuffled.
        :param how: join; default: ``left`` if rows without a match matter, else ``inner`` among rows that may match.
        """
        if how is None and not self.by_source:
            rows = self.source.possible(rows)
        source = sf.broadcast(self.source.rows) if small else self.source.rows
        joined = rows.join(source, self._on, how or self._how)
        return joined.select("*", self._decided().alias(CLAUSE))

    @property
    def _on(self) -> Column:
        return spark_value(self._condition).cast("boolean")  # NULL has no type

    def _decided(self) -> Column:
        matched = sf.when(sf.col(SOURCE_ROW).isNotNull(), self.clauses.deciding(MATCHED))
        return matched.otherwise(self.clauses.deciding(NOT_MATCHED_BY_SOURCE)) if self.by_source else matched

    def _find_touched(self) -> list[TouchedFile]:
        """Pair the rows, record what the clauses decide, and return the files that change."""
        work = self.work
        if not self.files or not (self.source.count or self.by_source):
            return []
        joined = self._joined(self._target(self.files, positions=True), small=self._pairs_small)
        pairs = joined.select(FILE_COLUMN, ROW_COLUMN, SOURCE_ROW, CLAUSE)
        if self.inserts:  # which also need the paired source rows
            pairs = work.write_scratch(pairs.where(f"{SOURCE_ROW} IS NOT NULL OR {CLAUSE} IS NOT NULL"), "pairs")
            self._paired = pairs.where(sf.col(SOURCE_ROW).isNotNull())
        self._words = self._words_of(pairs)
        if self._needs_words:
            self._write_words()
        counts = self._words.groupBy(FILE).agg(
            sf.sum(sf.bit_count(WORD)),
            sf.sum(sf.bit_count(_UPDATED)),
            sf.sum(sf.bit_count(_SEEN)),
            *(sf.sum(name) for name in (_PAIRS, _BY_SOURCE_UPDATED, _BY_SOURCE_DELETED)),
            sf.count_if(sf.col(WORD) != 0),
        )
        found = [tuple(row) for row in counts.collect()]
        self._check_duplicates(sum(row[4] for row in found), sum(row[3] for row in found))
        self._note_rows(found)
        known = files_by_uri(work.plan)
        return [TouchedFile(file_of(known, row[0]), row[1], row[2], row[7]) for row in found if row[1]]

    @property
    def _needs_words(self) -> bool:
        """Whether more than the counts of the words is certainly needed."""
        return self.work.request.deletion_vectors or self.work.request.rules.change_data or not self._rows_small

    def _write_words(self) -> None:
        if not self._words_written:
            self._words, self._words_written = self.work.write_scratch(self._words, "words"), True

    def _words_of(self, pairs: DataFrame) -> DataFrame:
        """Return pairs as words of 64 rows: decided by a clause, updated, matching."""
        one = sf.lit(1).cast("long")
        bit = sf.call_function("shiftleft", one, sf.col(ROW_COLUMN).bitwiseAND(63).cast("int"))
        clause, paired = sf.col(CLAUSE), sf.col(SOURCE_ROW).isNotNull()
        nothing = sf.lit(0).cast("long")

        def bits(condition: Column) -> Column:
            return sf.bit_or(sf.when(condition, bit).otherwise(nothing))

        updates = clause.isin(self.updates) if self.updates else sf.lit(False)
        return pairs.groupBy(sf.col(FILE_COLUMN).alias(FILE), sf.shiftright(sf.col(ROW_COLUMN), 6).alias(NUMBER)).agg(
            bits(clause.isNotNull()).alias(WORD),
            bits(updates).alias(_UPDATED),
            bits(paired).alias(_SEEN),
            sf.count_if(paired).alias(_PAIRS),
            sf.count_if(~paired & updates).alias(_BY_SOURCE_UPDATED),
            sf.count_if(~paired & clause.isNotNull() & ~updates).alias(_BY_SOURCE_DELETED),
        )

    def _check_duplicates(self, pairs: int, rows: int) -> None:
        self._duplicates = pairs > rows
        if self._duplicates and not takes_any_match([self.clauses.all[i] for i in self.matched]):
            raise several_matches(self.work.request, pairs, rows, self._condition)

    def _note_rows(self, found: Sequence[tuple[int, ...]]) -> None:
        rows, updated, by_updated, by_deleted = (sum(row[i] for row in found) for i in (1, 2, 5, 6))
        self.work.metrics.update(
            numTargetRowsUpdated=updated,
            numTargetRowsMatchedUpdated=updated - by_updated,
            numTargetRowsNotMatchedBySourceUpdated=by_updated,
            numTargetRowsDeleted=rows - updated,
            numTargetRowsMatchedDeleted=rows - updated - by_deleted,
            numTargetRowsNotMatchedBySourceDeleted=by_deleted,
        )

    # -- new files ------------------------------------------------------------------------------------------------------------

    def _rewrite(self, touched: Sequence[TouchedFile]) -> str | None:
        """Write changed rows and unchanged rows of their files; return the directory that holds only changed rows."""
        work, request = self.work, self.work.request
        if request.deletion_vectors:
            work.write_vectors(self._words.select(FILE, NUMBER, WORD).where(sf.col(WORD) != 0))
        elif self._in_one_pass(touched):
            rows = self._to_write([item.file for item in touched if not item.deleted])
            joined = self._joined(rows, small=self._rows_small, how="left")
            stays = sf.col(CLAUSE).isNull() | sf.col(CLAUSE).isin(self.updates)
            if any(not item.deleted for item in touched):
                work.write(work.aligned(self.clauses.updated(joined.where(stays))), "new")
            return None
        self._write_words()
        updated = None
        changed = [item for item in touched if item.updated]
        if changed:
            rows = self._to_write([item.file for item in changed], positions=not self._rows_small)
            if not self._rows_small:  # only changed rows are worth a shuffle
                rows = self._marked(rows, changed, sf.col(_UPDATED)).alias(self._target_alias)
            joined = self._joined(rows, small=self._rows_small).where(sf.col(CLAUSE).isin(self.updates))
            updated = work.write(work.aligned(self.clauses.updated(joined)), "new")
        partly = [item for item in touched if not item.gone]
        if partly and not request.deletion_vectors:
            rows = self._to_write([item.file for item in partly], positions=True)
            kept = self._plain(self._marked(rows, partly, sf.col(WORD), "left_anti"))
            work.write(work.aligned(kept), "copied")
        return updated

    def _in_one_pass(self, touched: Sequence[TouchedFile]) -> bool:
        """Return whether changed and unchanged rows are best written together.

        They are if no row is shuffled for it, or if most rows change. Change data need the changed rows alone.
        """
        if self.work.request.rules.change_data or self._duplicates:
            return False
        live = sum(item.file.num_records or 2 * item.rows for item in touched)
        return self._rows_small or 2 * sum(item.rows for item in touched) > live

    def _inserted(self) -> DataFrame:
        """Return source rows without a match as rows of the table, if a clause inserts them."""
        rows = self._unmatched().select("*", self.clauses.deciding(NOT_MATCHED).alias(CLAUSE)).where(sf.col(CLAUSE).isNotNull())
        return self.work.aligned(self.clauses.inserted(rows))

    def _unmatched(self) -> DataFrame:
        rows = self.source.rows
        if self._paired is not None:
            paired = self._paired
        elif not self.files:
            return rows
        elif self._pairs_small:  # one pass over the table without a shuffle
            target = self.source.possible(self._target(self.files))
            paired = target.join(sf.broadcast(rows), self._on).select(SOURCE_ROW).distinct()
        else:
            target = self.source.possible(self._target(self.files))
            return rows.join(target, self._on, "left_anti")
        known = "__airflow_delta_paired_row"
        paired = paired.select(sf.col(SOURCE_ROW).alias(known))
        return rows.join(paired, sf.col(SOURCE_ROW) == sf.col(known), "left_anti")

    # -- change data ----------------------------------------------------------------------------------------------------------

    def _write_changes(self, touched: Sequence[TouchedFile], updated: str | None, inserted: str | None) -> None:
        work = self.work
        deleted_word = sf.col(WORD).bitwiseAND(sf.bitwise_not(sf.col(_UPDATED)))
        for items, word, change in (
            ([item for item in touched if item.updated], sf.col(_UPDATED), "update_preimage"),
            ([item for item in touched if item.updated < item.rows], deleted_word, "delete"),
        ):
            if items:
                rows = self._plain(self._marked(self._target([item.file for item in items], positions=True), items, word))
                work.write(align(rows, work.target, work.checks), "change", change_type=change)
        if updated is not None:
            work.write_again(updated, "update_postimage")
        if inserted is not None:
            work.write_again(inserted, "insert")

    # -- helpers --------------------------------------------------------------------------------------------------------------

    def _marked(self, rows: DataFrame, touched: Sequence[TouchedFile], word: Column, how: str = "left_semi") -> DataFrame:
        """Return the rows whose bit is set in the words of their file, or those whose bit is not (``left_anti``)."""
        file, number, bits = (f"__airflow_delta_{name}_of_word" for name in ("file", "number", "bits"))
        words = self._words.select(sf.col(FILE).alias(file), sf.col(NUMBER).alias(number), word.alias(bits))
        words = words.where(sf.col(bits) != 0)
        many = sum(item.num_words for item in touched) > MAX_BROADCAST_WORDS
        same = (sf.col(FILE_COLUMN) == sf.col(file)) & (sf.shiftright(sf.col(ROW_COLUMN), 6) == sf.col(number))
        bit = sf.getbit(sf.col(bits), sf.col(ROW_COLUMN).bitwiseAND(63).cast("int")) == 1
        return rows.join(words.hint("merge" if many else "broadcast"), same & bit, how)

    def _plain(self, rows: DataFrame) -> DataFrame:
        return rows.drop(FILE_COLUMN, ROW_COLUMN)
