"""What the error of a driver says of its master, and what PySpark says of other packages."""

from __future__ import annotations

import socket
import warnings
from importlib.metadata import version

import pytest

from airflow_delta.exceptions import SparkJobException, SparkVersionException
from airflow_delta.tasks.spark.connection import registration_error
from airflow_delta.tasks.spark.session import quiet_about_pandas

STOPPED = """java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.
\tat org.apache.spark.SparkContext.assertNotStopped(SparkContext.scala:128)
\tat org.apache.spark.sql.classic.SparkSession.<init>(SparkSession.scala:125)"""


def test_a_master_that_listens_and_does_not_answer():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        failure = RuntimeError(STOPPED)
        for master in (f"spark://127.0.0.1:{port}", f"spark://127.0.0.1:1,127.0.0.1:{port}"):
            assert isinstance(registration_error(failure, master), SparkVersionException)
        assert registration_error(failure, f"k8s://127.0.0.1:{port}") is None
        assert registration_error(RuntimeError("something else"), f"spark://127.0.0.1:{port}") is None
    down = registration_error(failure, f"spark://127.0.0.1:{port}")
    assert isinstance(down, SparkJobException), "one that is down may be up for the next try"
    assert "nothing listens there now" in str(down)


@pytest.mark.depends("frames")
def test_what_pyspark_says_of_every_pandas_is_not_repeated():
    from pyspark.sql.pandas.utils import require_minimum_pandas_version

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        require_minimum_pandas_version()
        heard = len(said)
        quiet_about_pandas()
        require_minimum_pandas_version()
        assert len(said) == heard
        warnings.warn("of something else", FutureWarning, stacklevel=1)
        assert len(said) == heard + 1
    if version("pyspark").startswith("4.2.") and version("pandas").startswith("3."):
        assert heard == 1
