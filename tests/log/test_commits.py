"""Decoding of commit files."""

from __future__ import annotations

import pytest

from airflow_delta.exceptions import DeltaLogCorruptedException
from airflow_delta.log.actions import AddFile, encode_actions
from airflow_delta.log.commits import CommitFile, decode_commit, file_totals, read_commit_info, read_small_state
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


def totals(*actions) -> tuple[int, int] | None:
    return file_totals([CommitFile(1, encode_actions(actions))], table=TABLE)


def test_totals_follow_the_actions() -> None:
    assert totals(tables.info(), tables.add("a", size=10), tables.add("b", size=5), tables.remove("c", size=7)) == (1, 8)
    assert totals(tables.info(), tables.metadata()) == (0, 0)


def test_totals_that_the_log_does_not_tell() -> None:
    assert totals(tables.info(), tables.remove("c", size=None)) is None
    assert totals(tables.info("COMPUTE STATS"), tables.add("a")) is None
    assert totals(tables.info("Manual Update"), tables.add("a")) is None


def test_an_add_of_another_writer_with_null_stats_and_extra_fields() -> None:
    line = (
        b'{"add":{"path":"p=1/a","partitionValues":{"p":null},"size":1,"modificationTime":2,"dataChange":true,"stats":null,'
        b'"tags":null,"deletionVector":null,"unheardOf":[1]}}\n'
    )
    (add,) = decode_commit(0, line, table=TABLE).adds
    assert add == AddFile(path="p=1/a", partition_values={"p": None}, size=1, modification_time=2, data_change=True)
