"""Airflow Dags of the page about previews, word for word but for the place of the tables and of DuckDB's extension."""

from __future__ import annotations

import os
from pathlib import Path

from support.documents import blocks_of

ROOT = os.environ["DELTA_EXAMPLES"]
PAGE = Path(__file__).parents[3] / "docs" / "previews.md"
LOCAL = {
    'table="orders", delta_conn_id="lake"': f'table="{ROOT}/previewed_orders"',
    'table="prices", delta_conn_id="lake"': f'table="{ROOT}/previewed_prices"',
    # The extension comes from PyPI, and is not looked for anywhere else.
    "import duckdb\n": "from support import readers\n",
    "duckdb.connect()": "readers._duckdb()",
    'connection.execute("INSTALL delta; LOAD delta")\n': "\n",
    '@dag(schedule="@daily", ': "@dag(schedule=None, ",
}

for _block in blocks_of(PAGE):
    if _block.kind == "python":
        _text = _block.text
        for _there, _here in LOCAL.items():
            _text = _text.replace(_there, _here)
        exec(compile(_text, __file__, "exec"))
