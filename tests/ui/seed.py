"""Fill the database of a test server: real runs of the Dags beside this file; prints a session token for each role.

Run as a script, in the environment of the server.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

DAYS_OF_SALES = range(1, 13)
RUNS = [
    *(("sales", day) for day in DAYS_OF_SALES),
    ("raced", 13),
    ("conflict", 14),
    ("sales", 15),
    ("hidden_costs", 16),
    ("left_open", 17),
]


FINE = {"least": "1", "level": "Serializable", "mode": "append"}


def nights() -> None:
    """Nights of one table: good ones, and one of every other kind; a table that never came to be, and an open question."""
    from ui.runs import Runs

    runs = Runs("ui")
    for day in (1, 2, 3):
        runs.run("night", day, **FINE)
    for fault, day in (("write", 4), ("extract", 5)):
        runs.run("night", day, **FINE, fault=fault)
    repaired = runs.run("night", 6, **{**FINE, "mode": "overwrite"}, fault="conflict")
    runs.clear("night", repaired, **{**FINE, "mode": "overwrite"})
    runs.run("night", 7, **{**FINE, "least": "1000"})
    for answer, day in (("Approve", 8), ("Reject", 9)):
        runs.answer("reviewed_night", runs.run("reviewed_night", day, **FINE), "txn.approve", answer, "clara")
    runs.run("reviewed_night", 10, **FINE)
    runs.run("two_tables", 1)
    runs.run("keyed_night", 1, **FINE, key="orders/monday")
    runs.run("keyed_night", 2, **FINE, key="orders/monday")  # finds the key committed
    runs.run("keyed_night", 3, **FINE, key="orders/monday", policy="replace")


def reviews() -> None:
    """Transactions that wait for somebody who looks at their page; of one, the stage has run again since."""
    from ui.runs import Runs

    runs = Runs("ui")
    runs.answer("reviewed_orders", runs.run("reviewed_orders", 1), "txn.approve", "Approve", "clara")
    runs.run("reviewed_orders", 2)
    runs.answer("watched_orders", runs.run("watched_orders", 1, rows=4, most="3"), "txn.approve", "Approve", "clara")
    runs.clear("watched_orders", runs.run("watched_orders", 2, rows=5, most="9"), "txn.write", rows=2, most="9")


def awaited(tables: str) -> None:
    """A table that is late for one Dag, and that another still waits for; both have had it once."""
    import deltalake
    import pyarrow as pa

    from ui.runs import Runs

    rows = pa.table({"day": [date(2026, 3, 1)], "id": [1]})
    deltalake.write_deltalake(f"{tables}/days", rows, partition_by=["day"])
    runs = Runs("ui")
    for dag_id in ("awaited_late", "awaited_ahead"):
        for day in (1, 2):
            runs.begin(dag_id, day)


def people(tables: str) -> None:
    """A table with a MERGE of rows that would harm a page that does not escape them."""
    import deltalake
    import pyarrow as pa

    def rows(ids: list[int], names: list[str]) -> pa.Table:
        return pa.table({"id": ids, "name": names, "city": ["Paris" if one % 2 else None for one in ids]})

    deltalake.write_deltalake(f"{tables}/people", rows(list(range(30)), [f"Person {number}" for number in range(30)]))
    odd = rows([2, 3, 40], ["Ada", "<script>document.title = 'harm'</script>", "<img src=x onerror=alert(1)>"])
    merge = deltalake.DeltaTable(f"{tables}/people").merge(odd, "target.id = source.id", "source", "target")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()


def orders(tables: str) -> None:
    """A partitioned table of many columns with a longer history, by another writer."""
    import deltalake
    import pyarrow as pa

    def batch(day: int) -> pa.Table:
        rows = 40 + 17 * (day * day % 11)
        return pa.table(
            {
                "order_id": pa.array(range(rows), pa.int64()),
                "month": [f"2026-{1 + day % 3:02}"] * rows,
                "customer": pa.array([{"name": "Ada", "tags": ["new"]}] * rows),
                "amount": pa.array([f"{day}.50"] * rows).cast(pa.decimal128(12, 2)),
                **{f"measure_{number}": pa.array([1.5] * rows) for number in range(14)},
            }
        )

    path = f"{tables}/orders"
    for day in range(45):
        deltalake.write_deltalake(path, batch(day), mode="append", partition_by=["month"])
        if day % 13 == 7:
            deltalake.DeltaTable(path).delete(f"order_id < {day}")
        if day % 20 == 11:
            deltalake.DeltaTable(path).optimize.compact()
    deltalake.DeltaTable(path).alter.set_table_properties({"delta.logRetentionDuration": "interval 60 days"})


def main() -> None:
    from airflow.api_fastapi.app import create_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from airflow.dag_processing.dagbag import DagBag
    from airflow.models.asset import AssetModel
    from airflow.models.connection import Connection
    from airflow.utils.db import initdb
    from airflow.utils.session import create_session

    from airflow_delta.assets.delta import delta_asset_uri

    initdb()
    tables = os.environ["UI_TABLES"]
    with create_session() as session:
        session.add(Connection(conn_id="lake", conn_type="delta", host=tables))
    bag = DagBag(dag_folder=str(Path(__file__).parent / "dags"))
    if bag.import_errors:
        raise SystemExit(str(bag.import_errors))
    start = datetime(2026, 3, 1, tzinfo=UTC)
    for dag_id, day in RUNS:
        at = start + timedelta(days=day)
        bag.dags[dag_id].test(logical_date=at, run_after=at)
    nights()
    reviews()
    awaited(tables)
    people(tables)
    orders(tables)
    with create_session() as session:
        for name in ("people", "orders", "days", "dropped"):  # the latter is a table that is gone
            uri = delta_asset_uri(f"{tables}/{name}")
            session.add(AssetModel(name=uri, uri=uri, group="asset", extra={}))
    manager = create_auth_manager()
    tokens = {
        role or "nobody": manager.generate_jwt(SimpleAuthManagerUser(username=role or "nobody", role=role))
        for role in ("admin", "viewer", "")
    }
    print(f"TOKENS {json.dumps(tokens)}")


if __name__ == "__main__":
    main()
