"""Which stages can be in one commit: checked when a stage is planned on top of others, before its work, as the commit does."""

from __future__ import annotations

from airflow_delta.exceptions import StageConflictException
from airflow_delta.table.definition.altered_table import MODE, is_alter, needs_own_commit
from airflow_delta.table.stage.view import TransactionView


def check_same_commit(view: TransactionView, key: str, *, mode: str, replaces_schema: bool) -> None:
    """Refuse a stage on top of others that cannot be in one commit with it.

    :param view: what the stage is planned on.
    :param key: name of the stage.
    :raises StageConflictException: if the stage or one before it replaces the schema, and the other does not, or one before it
        needs a commit of its own.
    """
    handle = view.handle
    for write in (stage.write for stage in view.stages):
        if (alone := needs_own_commit(write)) is not None:
            raise handle.error(
                StageConflictException,
                f"Stage {key} of transaction {handle.transaction_id} on table {handle.table} cannot be planned on top of stage "
                f"{write.stage}: {alone} needs its own transaction.",
            )
        others = bool(write.definition) or write.overwrite_schema
        if handle.read_version < 0:
            together = not (write.definition and replaces_schema)
        elif mode == MODE or is_alter(write):
            together = not (others or replaces_schema)
        elif write.definition:
            together = not replaces_schema
        else:
            together = others == replaces_schema
        if not together:
            raise handle.error(
                StageConflictException,
                f"Stage {key} of transaction {handle.transaction_id} cannot be planned on top of stage {write.stage} "
                f"({write.operation}): {'it' if replaces_schema else 'that one'} replaces the schema of table {handle.table}, "
                "and the other does not. Put them into separate transactions. Rows can be written on top of a table that "
                "DeltaCreateTableOperator replaces.",
            )
