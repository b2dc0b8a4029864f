"""``_last_checkpoint``: its canonical checksum, and wrong hints, which only cost time (Delta's LastCheckpointInfoSuite)."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path

import pytest

from airflow_delta.log import DeltaLog
from airflow_delta.log.checkpoint.last_checkpoint import (
    LastCheckpointInfo,
    LastCheckpointV2,
    canonical_checksum,
    encode_last_checkpoint,
    read_last_checkpoint,
    short_schema,
)
from airflow_delta.log.checkpoint_write.writer import write_checkpoint
from airflow_delta.log.storage.factory import store_for
from support.tables import log_path, table_with_commits

# (document, canonical form by the rules of the protocol's "JSON checksum")
CANONICAL = [
    ({"k0": "'v 0'", "checksum": "x"}, '"k0"="%27v%200%27"'),
    ({"k1": {"k2": 1, "a": [True, None, "ö"]}}, '"k1"+"a"+0=true,"k1"+"a"+1=null,"k1"+"a"+2="%C3%B6","k1"+"k2"=1'),
    ({"b": 2, "a": 1}, '"a"=1,"b"=2'),
    ({"a.b": -1, "~_-": "A z/9"}, '"a.b"=-1,"~_-"="A%20z%2F9"'),
    ({"a": {}, "b": []}, ""),
    ({"a": {"checksum": "counts"}}, '"a"+"checksum"="counts"'),
    ({"a": ["x", {"b": 1}]}, '"a"+0="x","a"+1+"b"=1'),
]


@pytest.mark.parametrize(("document", "form"), CANONICAL)
def test_canonical_form(document: dict, form: str) -> None:
    assert canonical_checksum(document) == hashlib.md5(form.encode()).hexdigest()


def test_as_delta_spark_computed_it() -> None:
    """What Delta Spark 4.4.0 wrote for a V2 checkpoint of a table of one file."""
    assert canonical_checksum(json.loads(WRITTEN_BY_SPARK)) == json.loads(WRITTEN_BY_SPARK)["checksum"]


def info(**changes: object) -> LastCheckpointInfo:
    manifest = LastCheckpointV2(path="x.json", size_in_bytes=3, modification_time=4, sidecar_files=[{"path": "é"}])
    return LastCheckpointInfo(**{"version": 3, "size": 7, "parts": 2, "v2_checkpoint": manifest, **changes})


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    store = store_for(str(tmp_path))
    data = encode_last_checkpoint(info())
    store.put("_delta_log/_last_checkpoint", data)
    read = read_last_checkpoint(store)
    assert read is not None
    assert (read.version, read.size, read.parts, read.v2_checkpoint) == (3, 7, 2, info().v2_checkpoint)
    assert list(json.loads(data))[:3] == ["version", "size", "parts"], "old readers read no more than these"


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace('"size":7', '"size":8'),
        lambda text: text.replace('"version":3', '"version":4'),
        lambda text: text.replace('"version":3', '"version":3,"version":3'),
        lambda text: text[:-1],
        lambda text: text.replace("checksum", "checksun"),
        lambda text: text.replace("x.json", "y.json"),
        lambda text: "[" * 100_000,
    ],
)
def test_a_hint_that_contradicts_its_checksum_is_ignored(tmp_path: Path, damage, caplog: pytest.LogCaptureFixture) -> None:
    store = store_for(str(tmp_path))
    text = encode_last_checkpoint(info()).decode()
    changed = damage(text)
    store.put("_delta_log/_last_checkpoint", changed.encode())
    with caplog.at_level(logging.WARNING, logger="airflow_delta"):
        read = read_last_checkpoint(store)
    if "checksun" in changed:  # a file without a checksum is believed: old writers have none
        assert read is not None
    else:
        assert read is None
        assert "_last_checkpoint" in caplog.text


def test_a_long_schema_is_left_out(table: Path) -> None:
    assert short_schema({"type": "x" * 30_000}) is None
    table_with_commits(table, 1)
    fields = [{"name": f"column_{n}", "type": "long", "nullable": True, "metadata": {}} for n in range(200)]
    schema = json.dumps({"type": "struct", "fields": fields})
    commit = log_path(table, f"{0:020d}.json")
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    for line in lines:
        if "metaData" in line:
            line["metaData"]["schemaString"] = schema
            line["metaData"]["configuration"] = {"delta.dataSkippingNumIndexedCols": "-1"}
    commit.write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_checkpoint(DeltaLog.for_table(str(table)).snapshot)
    hint = json.loads(log_path(table, "_last_checkpoint").read_text())
    assert "checkpointSchema" not in hint
    assert hint["checksum"] == canonical_checksum(hint)


WRITTEN_BY_SPARK = (
    r"""{"version":1,"size":5,"sizeInBytes":12178,"numOfAddFiles":1,"v2Checkpoint":{"path":"00000000000000000001.check"""
    r"""point.0463f0cc-77e3-4f21-a33e-fdaa78fbd592.json","sizeInBytes":772,"modificationTime":1795247294772,"nonFileAc"""
    r"""tions":[{"protocol":{"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["v2Checkpoint"],"writerFeatur"""
    r"""es":["v2Checkpoint","invariants","appendOnly"]}},{"metaData":{"id":"60d2172d-d211-4ac1-bdf0-3eb696831612","for"""
    r"""mat":{"provider":"parquet","options":{}},"schemaString":"{\"type\":\"struct\",\"fields\":[{\"name\":\"ab\",\"t"""
    r"""ype\":\"integer\",\"nullable\":true,\"metadata\":{}}]}","partitionColumns":[],"configuration":{"delta.checkpoi"""
    r'''ntPolicy":"v2"},"createdTime":1795247256739}},{"checkpointMetadata":{"version":1,"tags":{"sidecarNumActions":"'''
    r"""1","sidecarSizeInBytes":"11406","numOfAddFiles":"1"}}}],"sidecarFiles":[{"path":"00000000000000000001.checkpoi"""
    r"""nt.0000000001.0000000001.de136b77-13e3-47e9-a7cb-fd2208b254e6.parquet","sizeInBytes":11406,"modificationTime":"""
    r"""1795247294588}]},"checksum":"865502553a747391d024bd78c48d63b3"}
"""
)
