"""The pool of a table: one parameter in the Dag file, made by ``airflow delta pool``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.pools import table_pool

ROOT = Path(__file__).parents[2]


def pool_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "provider"), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "airflow", "delta", "pool", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=180, check=False)


def test_a_name_for_each_table_and_one_for_its_spellings():
    names = [table_pool("s3a://lake/orders/"), table_pool("delta://s3/lake/orders"), table_pool("s3://lake/orders")]
    assert len(set(names)) == 1
    assert names[0].startswith("delta.s3_lake_orders.")
    others = {
        table_pool("orders"),
        table_pool("orders", "lake"),
        table_pool("s3://lake/or_ders"),
        table_pool("s3://lake_/orders"),
    }
    assert len({*others, names[0]}) == 5
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]{1,250}", name) for name in {*names, *others, table_pool("s3://lake/" + "x" * 900)})


def test_a_template_has_no_name_yet():
    with pytest.raises(DeltaIllegalArgumentException, match="when the Dag is parsed"):
        table_pool("{{ params.table }}")


@pytest.mark.slow
@pytest.mark.airflow
def test_the_command_makes_the_pool_that_a_task_names(airflow_database):
    from airflow.models.pool import Pool
    from airflow.utils.session import create_session

    from airflow_delta.operators.delete_update import DeltaTruncateOperator

    task = DeltaTruncateOperator(task_id="empty", table="orders", delta_conn_id="lake", pool=table_pool("orders", "lake"))
    for slots, said in ((1, "1 slot"), (3, "3 slots")):
        done = pool_command("orders", "--conn-id", "lake", "--slots", str(slots))
        assert (done.returncode, done.stdout.strip()) == (0, f"Pool {task.pool} has {said}."), done.stderr
        with create_session() as session:
            pool = Pool.get_pool(task.pool, session=session)
            assert (pool.slots, pool.include_deferred) == (slots, True)
    assert pool_command("orders", "--slots", "0").returncode == 2
