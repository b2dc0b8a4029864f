"""Decoding commit files."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_delta.exceptions import DeltaLogCorruptedException
from airflow_delta.log.actions.actions import AddFile, encode_actions
from airflow_delta.log.actions.decode import (
    CommitFile,
    CommitHead,
    decode_commit,
    decode_file_changes,
    read_commit_info,
    read_small_state,
)
from airflow_delta.log.schema.types import parse_schema
from airflow_delta.transaction.conflicts.winning_commit import WinningCommit
from support import tables

TABLE = "s3://lake/t"
FULL = encode_actions(
    [
        tables.info(),
        tables.protocol(),
        tables.metadata(),
        tables.txn("app", 3),
        tables.add("a"),
        tables.add("b"),
        tables.remove("c"),
    ]
)


def test_every_kind_of_action() -> None:
    commit = decode_commit(0, FULL, table=TABLE)
    assert commit.commit_info is not None
    assert commit.commit_info["operation"] == "WRITE"
    assert [add.path for add in commit.adds] == ["a", "b"]
    assert [remove.path for remove in commit.removes] == ["c"]
    assert commit.protocol == [tables.protocol()]
    assert commit.metadata == [tables.metadata()]
    assert commit.txns == [tables.txn("app", 3)]


def line_of(action: str, **fields: Any) -> bytes:
    """One action with fields as another writer spells them."""
    known = {
        "metaData": {"id": "m", "schemaString": '{"type":"struct","fields":[]}', "format": {"provider": "parquet"}},
        "add": {"path": "a", "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True},
    }
    return json.dumps({action: known[action] | fields}).encode() + b"\n"


def test_values_of_other_types_are_read_as_text_as_by_delta_spark() -> None:
    """Delta Spark 4.4 reads a number 5 as "5" and so on."""
    properties = {"a": None, "b": 5, "c": True, "d": "x", "e": {"k": [1]}, "é": 'q"'}
    data = line_of("metaData", configuration=properties, format={"provider": "parquet", "options": {"x": 1, "y": None}}, name=7)
    values = {"p": 5, "q": None, "r": 1.5, "s": False}
    data += line_of("add", partitionValues=values, tags={"t": 1, "u": None}, stats={"numRecords": 2})
    commit = decode_commit(0, data, table=TABLE)
    (metadata,), (added,) = commit.metadata, commit.adds
    assert metadata.configuration == {"a": None, "b": "5", "c": "true", "d": "x", "e": '{"k": [1]}', "é": 'q"'}
    assert (metadata.format.options, metadata.name) == ({"x": "1", "y": None}, "7")
    assert added.partition_values == {"p": "5", "q": None, "r": "1.5", "s": "false"}
    assert (added.tags, added.stats) == ({"t": "1", "u": None}, '{"numRecords": 2}')
    assert read_small_state([CommitFile(0, FULL), CommitFile(1, data)], table=TABLE).metadata == metadata
    assert WinningCommit(CommitFile(1, data), table=TABLE).metadata == [metadata]


@pytest.mark.parametrize("size", ["1234.0", "1234.", "1.234e3", "1.2340E+3", "1234.000e0"])
def test_a_number_that_is_whole_is_one(size: str) -> None:
    data = line_of("add", size=0).replace(b'"size": 0', f'"size": {size}'.encode())
    data = data.replace(b'"modificationTime": 1', b'"modificationTime": -17e2')
    if size.endswith("."):
        with pytest.raises(DeltaLogCorruptedException, match="line 1"):  # no JSON
            decode_commit(0, data, table=TABLE)
        return
    (found,) = decode_commit(0, data, table=TABLE).adds
    assert (found.size, found.modification_time) == (1234, -1700)
    changes = decode_file_changes(CommitFile(0, data), table=TABLE, whole_adds_up_to=0)
    assert [add.size for add in changes.adds] == [1234]


@pytest.mark.parametrize("fields", [{"schemaString": None}, {}])
def test_metadata_without_a_schema_have_no_columns(fields: dict[str, Any]) -> None:
    """As of the first commit of a pipeline on Databricks."""
    data = line_of("metaData", **fields)
    if not fields:
        data = data.replace(b'"schemaString"', b'"other"')
    (found,) = decode_commit(0, data, table=TABLE).metadata
    assert parse_schema(found.schema_string).fields == ()
    assert b'"schemaString"' in encode_actions([found]), "other readers need it"


def test_a_property_that_is_null_is_not_set() -> None:
    data = line_of("metaData", configuration={"delta.appendOnly": None, "Delta.columnMapping.mode": None, "mine": None, "a": "b"})
    (found,) = decode_commit(0, data, table=TABLE).metadata
    assert found.configuration == {"mine": None, "a": "b"}


@pytest.mark.parametrize(
    "data",
    [
        line_of("metaData", configuration=None),
        line_of("metaData", configuration=[5]),
        line_of("metaData", id=None, configuration={"a": 5}),
        line_of("metaData", schemaString=5),
        line_of("add", size="1"),
        line_of("add", size=1234.5),
        line_of("add", size=1e-3),
        line_of("add", size=True),
        line_of("add", size=1e300),
        line_of("add", dataChange="true", partitionValues={"p": 5}),
        line_of("add", modificationTime=1.5),
        line_of("add", partitionValues=None),
    ],
)
def test_what_delta_spark_does_not_read_either(data: bytes) -> None:
    with pytest.raises(DeltaLogCorruptedException, match="is malformed in line 1"):
        decode_commit(0, data, table=TABLE)


@pytest.mark.parametrize(
    "data",
    [
        FULL.rstrip(b"\n"),
        FULL.replace(b"\n", b"\r\n"),
        FULL.replace(b"\n", b"\n\n"),
        FULL + b"\n  \n",
        FULL.replace(b'{"add":', b'{"unheardOf":{"add":[{}]},"add":'),
    ],
    ids=["no last newline", "crlf", "blank lines", "blank end", "unknown fields"],
)
def test_what_is_tolerated(data: bytes) -> None:
    assert len(decode_commit(0, data, table=TABLE).adds) == 2
    assert read_small_state([CommitFile(0, data)], table=TABLE).transactions == {"app": tables.txn("app", 3)}


def test_an_action_of_unknown_kind_is_ignored() -> None:
    assert decode_commit(0, b'{"novelty":{"x":1}}\n' + FULL, table=TABLE).adds[0].path == "a"


def test_the_first_kind_in_deltas_order_counts() -> None:
    add = b'"add":{"path":"a","partitionValues":{},"size":1,"modificationTime":1,"dataChange":true}'
    line = b'{"txn":{"appId":"x","version":1},%s}' % add
    commit = decode_commit(0, line, table=TABLE)
    assert (len(commit.adds), commit.txns) == (1, [])


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (FULL[:-20], "truncated in line 7"),
        (FULL + b'{"add":', "truncated in line 8"),
        (FULL.replace(b'"path":"b"', b'"path":b'), "malformed in line 6"),
        (FULL.replace(b'"path":"b"', b'"path":7'), r"malformed in line 6: Expected `str`, got `int` - at `\$.add.path`"),
        (b"[1]\n" + FULL, "malformed in line 1"),
        (b"\x00\x00\x00}\n", "malformed in line 1"),
        (b'{"add":{"path":"\xff\xfe"}}\n', "malformed in line 1"),
    ],
)
def test_bad_files_name_table_version_line_and_way_out(data: bytes, what: str) -> None:
    with pytest.raises(DeltaLogCorruptedException, match=what) as caught:
        decode_commit(17, data, table=TABLE)
    assert (caught.value.table, caught.value.version) == (TABLE, 17)
    for part in (TABLE, "17", "00000000000000000017.json", "backup"):
        assert part in str(caught.value)


def test_in_a_joined_decode_the_bad_commit_is_found() -> None:
    good = encode_actions([tables.txn("a", 1)])
    files = [CommitFile(1, good), CommitFile(2, good + b'{"txn":{"appId":1}}\n'), CommitFile(3, good)]
    with pytest.raises(DeltaLogCorruptedException, match="malformed in line 2") as caught:
        read_small_state(files, table=TABLE)
    assert caught.value.version == 2


def test_the_last_word_counts_in_the_small_state() -> None:
    one = encode_actions([tables.metadata(name="one"), tables.txn("a", 5), tables.txn("b", 1)])
    two = encode_actions([tables.add("x", stats='{"note":"\\"metaData\\""}')])
    three = encode_actions([tables.metadata(name="three"), tables.txn("a", 4)])
    state = read_small_state([CommitFile(1, one), CommitFile(2, two), CommitFile(3, three)], table=TABLE)
    assert state.metadata is not None
    assert state.metadata.name == "three"
    assert {app: txn.version for app, txn in state.transactions.items()} == {"a": 4, "b": 1}


def test_the_commit_info_may_stand_anywhere_or_be_missing() -> None:
    data = encode_actions([tables.add("a"), tables.info("OPTIMIZE")])
    info = read_commit_info(3, data, table=TABLE)
    assert info is not None
    assert info["operation"] == "OPTIMIZE"
    assert read_commit_info(3, encode_actions([tables.add("a")]), table=TABLE) is None


def test_file_changes_without_what_totals_do_not_need() -> None:
    actions = [tables.info(), tables.add("a", size=10, stats="{}"), tables.add("b", size=5), tables.remove("c", size=7)]
    file = CommitFile(1, encode_actions(actions))
    whole = decode_file_changes(file, table=TABLE, whole_adds_up_to=2)
    assert (whole.whole, whole.adds, whole.removes) == (True, actions[1:3], actions[3:])
    sized = decode_file_changes(file, table=TABLE, whole_adds_up_to=1)
    assert (sized.whole, [(add.path, add.size) for add in sized.adds], sized.removes) == (
        False,
        [("a", 10), ("b", 5)],
        actions[3:],
    )
    assert whole.head == sized.head
    assert (whole.head.operation, whole.head.txn_id, whole.head.in_commit_timestamp) == ("WRITE", actions[0].txn_id, None)


def test_a_line_with_several_actions_is_the_first_of_them_in_deltas_order() -> None:
    add = b'"add":{"path":"a","partitionValues":{},"size":1,"modificationTime":2,"dataChange":true}'
    remove = b'"remove":{"path":"b","dataChange":true}'
    txn, domain = b'"txn":{"appId":"app","version":1}', b'"domainMetadata":{"domain":"d","configuration":"","removed":false}'
    cdc = b'"cdc":{"path":"c","partitionValues":{},"size":1,"dataChange":false}'
    lines = [[txn, add], [txn, remove], [domain, cdc], [b'"commitInfo":{"operation":"x"}', add]]
    data = b"".join(b"{" + b",".join(line) + b"}\n" for line in lines)
    commit = decode_commit(3, data, table=TABLE)
    assert (len(commit.adds), len(commit.removes), len(commit.cdcs), commit.txns, commit.domains) == (2, 1, 1, [], [])
    assert commit.commit_info is None
    state = read_small_state([CommitFile(3, data)], table=TABLE)
    assert (state.transactions, state.domains) == ({}, {})


def test_a_foreign_commit_info_may_hold_anything() -> None:
    info = {"operation": 5, "txnId": [1], "inCommitTimestamp": True, "lastManifestCommit": {"version": 1}, "timestamp": "now"}
    data = json.dumps({"commitInfo": info}).encode() + b"\n" + encode_actions([tables.add("a")])
    assert read_commit_info(1, data, table=TABLE) == info
    assert decode_file_changes(CommitFile(1, data), table=TABLE, whole_adds_up_to=1).head == CommitHead()


def test_an_add_of_another_writer_with_null_stats_and_extra_fields() -> None:
    line = (
        b'{"add":{"path":"p=1/a","partitionValues":{"p":null},"size":1,"modificationTime":2,"dataChange":true,"stats":null,'
        b'"tags":null,"deletionVector":null,"unheardOf":[1]}}\n'
    )
    (add,) = decode_commit(0, line, table=TABLE).adds
    assert add == AddFile(path="p=1/a", partition_values={"p": None}, size=1, modification_time=2, data_change=True)
