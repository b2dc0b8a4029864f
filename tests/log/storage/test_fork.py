"""Object stores do not survive a fork: a forked child refuses at once. The forks are real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_delta.exceptions import ForkedProcessException
from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.actions import encode_actions
from support import tables


def in_child(body: Callable[[], str]) -> str:
    """Run ``body`` in a forked child and return what it returns; a hang is killed after 20 seconds."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is what this test is about
        child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            answer = body()
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    assert not os.WIFSIGNALED(status), "the child hung"
    return answer


def put_and_read(uri: str, options: dict[str, str], version: int) -> str:
    log = DeltaLog.for_table(uri, options)
    log.write_commit(version, encode_actions([tables.info(), tables.protocol(), tables.metadata()]))
    return str(log.update().version)


def main(uri: str, options: dict[str, str], local: str) -> None:
    """Print the results of children forked before and after this process used object stores."""
    first = DeltaLog.for_table(uri, options)  # opened, not used
    print(in_child(lambda: put_and_read(uri, options, 0)))
    assert first.update().version == 0
    print(in_child(lambda: str(first.update().version)))
    print(in_child(lambda: put_and_read(uri, options, 2)))
    print(in_child(lambda: in_child(lambda: put_and_read(uri, options, 2))))
    print(in_child(lambda: put_and_read(local, {}, 0)))
    print(put_and_read(uri, options, 1))


@pytest.mark.s3
def test_a_used_runtime_is_refused_in_a_child_and_a_fresh_one_works(
    s3_table: str, s3_options: dict[str, str], tmp_path: Path
) -> None:
    # A fresh interpreter: whatever ran before in this one may have used object stores.
    call = f"test_fork.main({s3_table!r}, {s3_options!r}, {str(tmp_path / 't')!r})"
    script = f"import sys; sys.path[:0] = {sys.path!r}; import test_fork; {call}"
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    unused, inherited, anew, grandchild, local, parent = result.stdout.splitlines()
    assert unused == "0"
    for answer in (inherited, anew, grandchild):
        assert answer.startswith(ForkedProcessException.__name__), answer
        assert "spawn" in answer
    assert local == "0"
    assert parent == "1"


def test_local_tables_work_across_a_fork(tmp_path: Path) -> None:
    table = tmp_path / "t"
    tables.create_table(table)
    log = DeltaLog.for_table(str(table))
    assert log.snapshot.version == 0

    def child() -> str:
        log.write_commit(1, encode_actions([tables.info()]))
        return str(log.update().version)

    assert in_child(child) == "1"
    assert log.update().version == 1


GARBAGE = """
import gc, os
from airflow_delta.log.storage.fork import check_runtime

class Client:
    def __del__(self):
        os.write(1, b"collected in " + (b"the parent" if os.getpid() == parent else b"the child") + b"\\n")

parent = os.getpid()
gc.disable()
check_runtime("s3://lake/t")
unreachable = Client()
unreachable.itself = unreachable
del unreachable
if os.fork() == 0:
    gc.collect()
    os._exit(0)
os.wait()
gc.collect()
"""


def test_garbage_of_the_parent_is_not_collected_in_a_child() -> None:
    """A client of HDFS that the collector finds there waits for threads that only the parent has."""
    done = subprocess.run([sys.executable, "-c", GARBAGE], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "collected in the parent\n"
