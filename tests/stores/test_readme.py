"""The README's Dag on an object store, word for word: only the connection says where."""

from __future__ import annotations

import io
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq

from stores.airflow_home import ROOT, AirflowHome
from stores.servers import Versitygw, make_bucket
from support.documents import blocks_of


def test_the_dag_of_the_readme(versitygw: Versitygw, airflow: AirflowHome, tmp_path: Path) -> None:
    import obstore
    from obstore.store import S3Store

    for name in ("lake", "raw"):
        make_bucket(versitygw.options, name)
    rows = pa.table({"flight": [7, 8, 9], "origin": ["JFK", "LGA", None]})
    pq.write_table(rows, data := io.BytesIO())
    raw = S3Store("raw", config=versitygw.options, client_options={"allow_http": True})
    obstore.put(raw, "flights/2025-12/part.parquet", data.getvalue())

    [block] = [block for block in blocks_of(ROOT / "README.md") if block.kind == "python"]
    airflow.dags = tmp_path / "dags" / "flights.py"
    airflow.dags.parent.mkdir()
    airflow.dags.write_text(block.text)
    extra = {"storage_options": {"AWS_ENDPOINT_URL": versitygw.url}, "spark_packages": "auto"}
    airflow.connect(
        "lake", {"conn_type": "delta", "login": versitygw.ACCESS_KEY, "password": versitygw.SECRET_KEY, "extra": extra}
    )
    airflow.connect("spark_default", {"conn_type": "spark", "host": "local[2]"})
    run = airflow.run("flights")
    assert run.state == "success", run.log[-4000:]
    table = deltalake.DeltaTable("s3://lake/flights", storage_options=versitygw.options).to_pyarrow_table()
    assert sorted(table.to_pylist(), key=str) == sorted(
        [{**row, "month": table.column("month")[0].as_py()} for row in rows.to_pylist()], key=str
    )
    assert str(table.column("month")[0]) == "2025-12-01"
