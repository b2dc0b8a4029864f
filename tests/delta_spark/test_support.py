"""The judge itself: it sees what both engines write, and a difference does not pass."""

from __future__ import annotations

import dataclasses

import pytest

from airflow_delta.transaction import Operation
from delta_spark.support import assert_equal_states, assert_same_state, delta_log, open_log, sql_name


def test_a_table_of_delta_spark(delta, tmp_path):
    path = tmp_path / "t"
    delta.sql(f"CREATE TABLE {sql_name(path)} (id BIGINT, p STRING) USING delta PARTITIONED BY (p) TBLPROPERTIES ('a' = 'b')")
    delta.sql(f"INSERT INTO {sql_name(path)} VALUES (1, 'x'), (2, NULL)")
    log = open_log(path)
    state = assert_same_state(log, delta, path)
    assert (state.version, len(state.rows), state.metadata["configuration"]) == (1, 2, {"a": "b"})
    delta.sql(f"DELETE FROM {sql_name(path)} WHERE id = 1")
    assert assert_same_state(log, delta, path).rows == ["id=2, p=None"]


def test_a_table_of_ours(delta, table):
    table.write("SELECT * FROM VALUES (1, 'a'), (2, 'b') AS t(id, p)", begin={"partition_by": ["p"]})
    log = table.log()
    state = assert_same_state(log, delta, table.path)
    assert (state.version, state.transactions) == (0, {"key-1": 0})
    table.write("SELECT 3 AS id, 'b' AS p", mode="overwrite", replace_where="p = 'b'")
    assert assert_same_state(log, delta, table.path).rows == ["id=1, p='a'", "id=3, p='b'"]


def test_a_difference_is_found(delta, table):
    table.write("SELECT 1 AS id")
    state = assert_same_state(None, delta, table.path)
    for changed in ({"rows": []}, {"version": 7}, {"transactions": {}}, {"history": {}}, {"files": {}}, {"schema": {}}):
        with pytest.raises(AssertionError, match=next(iter(changed))):
            assert_equal_states(dataclasses.replace(state, **changed), state)


def test_delta_reads_storage_and_not_its_cache(delta, table):
    table.write("SELECT 1 AS id")
    first = delta_log(delta, table.path).unsafeVolatileSnapshot()
    table.write("SELECT 2 AS id")
    assert (first.version(), delta_log(delta, table.path).unsafeVolatileSnapshot().version()) == (0, 1)


def test_delta_reads_a_last_checkpoint_that_replaced_its_own(delta, tmp_path):
    """On local disk Hadoop keeps a checksum beside each file, and reads nothing that contradicts it."""
    path = tmp_path / "t"
    delta.sql(f"CREATE TABLE {sql_name(path)} (id BIGINT) USING delta")
    delta_log(delta, path).checkpoint()
    assert (path / "_delta_log" / "._last_checkpoint.crc").exists()
    log = open_log(path)
    log.start_transaction().commit([], Operation.manual_update())
    log.checkpoint(log.update())
    hint = delta_log(delta, path).readLastCheckpointFile()
    assert hint.isDefined()
    assert hint.get().checksum().isDefined()
    assert hint.get().version() == 1
