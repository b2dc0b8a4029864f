"""Delta's own ``OptimisticTransaction``, driven through the methods that ours has, so that one scenario runs on both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_delta.log.actions.actions import Action, AddFile, encode_action
from airflow_delta.transaction import Operation
from support.actions import add

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELTA = "org.apache.spark.sql.delta"
_CHANGES_PROTOCOL = "DROP FEATURE"
_QUIET = {
    # Files of these tables do not exist, and what follows a commit is not what is judged here.
    "spark.databricks.delta.incremental.commit.verify": "false",
    "spark.databricks.delta.writeChecksumFile.enabled": "false",
    "spark.databricks.delta.stats.skipping": "false",
}


class JvmTransaction:
    """An open transaction of Delta Spark on a table.

    :param path: directory of the table.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._jvm = spark._jvm
        self._session = spark._jsparkSession
        log = self._class("DeltaLog").forTable(self._session, path)
        self._txn = log.startTransaction()
        self.read_version: int = self._txn.readVersion()

    def _class(self, name: str) -> Any:
        return getattr(self._jvm, f"{DELTA}.{name}")

    def _object(self, name: str) -> Any:
        return getattr(self._class(f"{name}$"), "MODULE$")

    def _seq(self, items: Iterable[Any]) -> Any:
        return self._jvm.org.apache.spark.api.python.PythonUtils.toSeq(list(items))

    def _expressions(self, predicates: Sequence[str]) -> Any:
        """Return the conjuncts of predicates, which is what Delta's commands hand over."""
        parser = self._session.sessionState().sqlParser()
        return self._seq(part for predicate in predicates for part in _conjuncts(parser.parseExpression(predicate)))

    def _action(self, action: Action) -> Any:
        return self._class("actions.Action").fromJson(encode_action(action).decode())

    @staticmethod
    def _paths(files: Any) -> pa.Table:
        return pa.table({"path": pa.array([files.apply(i).path() for i in range(files.size())], pa.string())})

    # -- reads -----------------------------------------------------------------------------------------------------------------

    def filter_files(self, *predicates: str) -> pa.Table:
        return self._paths(self._txn.filterFiles(self._expressions(predicates or ("true",)), False))

    def filter_files_for_partitions(self, new_files: Iterable[AddFile]) -> pa.Table:
        return self._paths(self._txn.filterFiles(self._seq(self._action(file) for file in new_files)))

    def track_files_read(self, paths: Iterable[str]) -> None:
        files = [add(path) for path in paths]
        self._txn.trackFilesRead(self._seq(self._action(file) for file in files))

    def read_whole_table(self) -> None:
        self._txn.readWholeTable()

    def txn_version(self, app_id: str) -> int:
        return int(self._txn.txnVersion(app_id))

    # -- commit ----------------------------------------------------------------------------------------------------------------

    def commit(self, actions: Iterable[Action], operation: Operation) -> int:
        return int(self._txn.commit(self._seq(self._action(action) for action in actions), self._operation(operation)))

    def _operation(self, operation: Operation) -> Any:
        """Return an operation of Delta that is alike in all that a conflict depends on."""
        if operation.name == _CHANGES_PROTOCOL:
            return self._class("DeltaOperations$DropTableFeature")(str(operation.parameters["featureName"]), False)
        if operation.name in ("ROW TRACKING BACKFILL", "ROW TRACKING UNBACKFILL"):
            name = "RowTrackingBackfill" if operation.name == "ROW TRACKING BACKFILL" else "RowTrackingUnBackfill"
            return self._class(f"DeltaOperations${name}")(0)
        if operation.changes_data:
            return self._class("DeltaOperations$Truncate")()
        return self._object("DeltaOperations$ManualUpdate")


def _conjuncts(expression: Any) -> list[Any]:
    if expression.getClass().getSimpleName() == "And":
        return [*_conjuncts(expression.left()), *_conjuncts(expression.right())]
    return [expression]


def java_exception(error: BaseException) -> Any:
    """Return the exception that Delta has thrown, ``None`` when ``error`` is none of the JVM's."""
    java = getattr(error, "java_exception", None)
    return java if java is not None else getattr(error, "_origin", None)


def exception_name(error: BaseException) -> str:
    """Return the class of what Delta has thrown, without its package."""
    java = java_exception(error)
    return str(java.getClass().getSimpleName()) if java is not None else type(error).__name__


def decide(transaction: JvmTransaction, actions: Iterable[Action], operation: Operation) -> tuple[str | None, str]:
    """Commit; return the class of the exception (``None`` when it succeeds) and its message."""
    try:
        transaction.commit(actions, operation)
    except Exception as error:
        java = java_exception(error)
        if java is None:
            raise
        return exception_name(error), str(java.getMessage())
    return None, ""


@contextmanager
def configured(session: SparkSession, conf: Mapping[str, str] = _QUIET) -> Iterator[SparkSession]:
    """Yield the session with other settings; by default, with what is not judged switched off."""
    before = {key: session.conf.get(key, None) for key in conf}
    for key, value in conf.items():
        session.conf.set(key, value)
    try:
        yield session
    finally:
        for key, old in before.items():
            if old is None:
                session.conf.unset(key)
            else:
                session.conf.set(key, old)
