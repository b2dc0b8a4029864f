"""Airflow Dags of the documentation, word for word but for the buckets."""

from __future__ import annotations

import os
from pathlib import Path

from support.documents import section

ROOT = os.environ["DELTA_EXAMPLES"]
PAGE = Path(__file__).parents[3] / "docs" / "operations" / "merge.md"

for _block in section(PAGE, "Every version of a row"):
    if _block.kind == "python":
        _text = _block.text.replace("s3://lake/", f"{ROOT}/lake/").replace("s3a://raw/", f"{ROOT}/raw/")
        exec(compile(_text, __file__, "exec"))
