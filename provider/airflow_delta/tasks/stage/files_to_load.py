"""The files of a source that a table has not loaded yet, as a task finds them: each once, in the commit that records it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypedDict

from airflow.sdk.exceptions import AirflowSkipException

from airflow_delta import engine
from airflow_delta.contract.kinds import TRUTH, table_text, taken
from airflow_delta.contract.options import check_source
from airflow_delta.exceptions import DeltaIllegalArgumentException, DeltaTableNotFoundException
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.light_dataclasses import dataclass

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.positions.files.records import LoadedFile
    from airflow_delta.table.positions.files.unloaded import SourceFiles
    from airflow_delta.table.stage.stage_view import StageView
    from airflow_delta.tasks.stage.work import StageWork


class NewFilesParameters(TypedDict, total=False):
    """Options of ``new_files``, as those of :class:`~airflow_delta.operators.copy_into.DeltaCopyIntoOperator`.

    :ivar pattern: pattern of paths below the source, which then is a directory.
    :ivar recursive: also files in directories below.
    :ivar force: files that were loaded already, too.
    :ivar consumer: who loads: each consumer has a record of its own. Default: one for each directory, the one before the first
        wildcard of the source.
    :ivar modified_after: only files that were modified later: ISO time (naive: UTC).
    :ivar assume_new: a consumer of which the table knows nothing has loaded nothing, even if the table may have forgotten it. For
        one run.
    :ivar skip_if_none: skip the task if there is nothing to load.
    :ivar source_conn_id: connection of type ``delta`` to the source; default: the table's.
    """

    pattern: str | None
    recursive: bool
    force: bool | str
    consumer: str | None
    modified_after: str | datetime | None
    assume_new: bool
    skip_if_none: bool
    source_conn_id: str | None


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file that the commit of a stage records as loaded.

    :ivar path: absolute path, or URI as the worker's connection has it.
    :ivar size: in bytes.
    :ivar modification_time: as the store has it.
    :ivar etag: of an object store.
    """

    path: str
    size: int
    modification_time: datetime
    etag: str | None
    _found: SourceFiles
    _file: LoadedFile

    def open(self) -> Any:
        """Open the file, with the credentials of the source's connection.

        :return: a binary file that can be sought, as pandas, Polars and pyarrow read it; close it.
        """
        return self._found.open(self._file)


def new_files(found: SourceFiles) -> tuple[NewFile, ...]:
    """Return the files to load, as a function of the author gets them."""
    return tuple(
        NewFile(
            f"{found.store.root}/{file.path}",
            file.size,
            datetime.fromtimestamp(file.modification_time / 1000, UTC),
            file.etag,
            found,
            file,
        )
        for file in found.files
    )


def parse_new_files(given: Any, *, whose: str) -> tuple[str, NewFilesParameters]:
    """Return the source that ``new_files`` name, and the options.

    :param given: a source, or a mapping of one to options.
    :raises DeltaIllegalArgumentException: if it is neither, an option does not exist, or the source holds credentials.
    """
    source, options = next(iter(given.items())) if isinstance(given, Mapping) and len(given) == 1 else (given, {})
    if isinstance(source, Mapping) or not isinstance(options, Mapping):
        raise DeltaIllegalArgumentException(
            f"new_files of {whose} are {given!r}: expected a source, or a mapping of one source to its options."
        )
    if unknown := sorted(set(options) - set(NewFilesParameters.__annotations__)):
        raise DeltaIllegalArgumentException(
            f"The options new_files[{source!r}] of {whose} have unknown ones: {', '.join(unknown)}. They may be "
            f"{', '.join(NewFilesParameters.__annotations__)}."
        )
    path = table_text(source, name="new_files")
    check_source({"path": path}, whose=whose)
    return path, NewFilesParameters(**options)  # type: ignore[typeddict-item]


def find_new_files(stage: StageView, work: StageWork, source: str, options: NewFilesParameters) -> tuple[DeltaLog, SourceFiles]:
    """Return the files to load, as the first attempt of the transaction found them, and where they are.

    :raises AirflowSkipException: if there is nothing to load, and the task is then to be skipped.
    :raises DeltaTableNotFoundException: if there is no table, and no stage creates it.

    Also raises as :func:`airflow_delta.table.positions.files.unloaded.find_source_files` does.
    """
    task: Any = work.task
    if not stage.exists and not stage.target.is_known:
        raise stage.handle.error(
            DeltaTableNotFoundException,
            f"There is no table at {stage.handle.table} to load files into. Create it first (DeltaCreateTableOperator), or "
            "give delta_transaction a schema.",
        )
    whose = f"of the task {task.task_id!r}"
    pattern = engine.SourcePattern.parse(
        source, options.get("pattern"), recursive=taken(f"recursive {whose}", options.get("recursive", False), TRUTH)
    )
    conn_id = options.get("source_conn_id") or work.delta_conn_id or work.handle.delta_conn_id
    log = DeltaHook(conn_id or DeltaHook.default_conn_name).get_log(pattern.base)
    found = engine.find_source_files(
        stage,
        log.store,
        pattern,
        engine.CopyIntoOptions(
            consumer=options.get("consumer"),
            force=taken(f"force {whose}", options.get("force", False), TRUTH),
            modified_after=_time(options.get("modified_after"), whose),
            assume_new=taken(f"assume_new {whose}", options.get("assume_new", False), TRUTH),
        ),
    )
    task.log.info(
        "Transaction %s: loads %s files (%s bytes) of %s%s.",
        stage.handle.transaction_id,
        len(found.files),
        sum(file.size for file in found.files),
        found.source,
        "" if found.load is None else f" as load {found.load.number} of {found.load.consumer!r}",
    )
    if found.load is None and taken(f"skip_if_none {whose}", options.get("skip_if_none", False), TRUTH):
        raise AirflowSkipException(f"{found.source} has no files that {stage.handle.table} does not have.")
    return log, found


def _time(value: Any, whose: str) -> int | None:
    if value is None:
        return None
    try:
        given = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        raise DeltaIllegalArgumentException(f"modified_after {whose} must be an ISO time, got {value!r}.") from None
    return int((given if given.tzinfo is not None else given.replace(tzinfo=UTC)).timestamp() * 1000)
