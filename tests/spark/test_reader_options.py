"""Options of Spark's readers, one by one: what COPY INTO takes keeps every row of the files that it records as loaded."""

from __future__ import annotations

import json

import pytest

from airflow_delta.contract.reader_options import REFUSED, TAKEN, check_reader_options
from airflow_delta.exceptions import DeltaIllegalArgumentException, SchemaMismatchException
from airflow_delta.operators.copy_into import DeltaCopyIntoOperator
from airflow_delta.spark.source_files import read_spark_files

CLASSES = {
    "csv": "catalyst.csv.CSVOptions",
    "json": "catalyst.json.JSONOptions",
    "parquet": "execution.datasources.parquet.ParquetOptions",
    "orc": "execution.datasources.orc.OrcOptions",
    "text": "execution.datasources.text.TextOptions",
    "avro": "avro.AvroOptions",
}
GENERIC = {"ignoreCorruptFiles", "ignoreMissingFiles", "modifiedAfter", "modifiedBefore", "pathGlobFilter", "recursiveFileLookup"}

DROPS = [
    # option, values that drop something, values that do not
    ("pathGlobFilter", ["*.csv", "*"], []),
    ("PATHGLOBFILTER", ["*"], []),
    ("modifiedBefore", ["2026-01-01T00:00:00"], []),
    ("modifiedAfter", ["2026-01-01T00:00:00"], []),
    ("recursiveFileLookup", [True, "true"], [False, "False"]),
    ("ignoreCorruptFiles", [True, "TRUE", "1"], [False, "false"]),
    ("ignoreMissingFiles", [True], ["false"]),
    ("badRecordsPath", ["/tmp/bad"], []),
    ("mode", ["DROPMALFORMED", "dropMalformed", " DropMalformed "], ["FAILFAST", "permissive"]),
    ("ignoreExtension", [False, "no"], [True]),
    ("mergeSchema", ["false"], ["true"]),
    ("samplingRatio", [0.1, "0.99", "some"], [1, "1.0"]),
]


def formats_of(option: str) -> tuple[str, ...]:
    return next(rule.formats or tuple(TAKEN) for name, rule in REFUSED.items() if name.lower() == option.lower())


def test_each_refused_option_has_a_case():
    assert {option.lower() for option, *_ in DROPS} == {name.lower() for name in REFUSED}


@pytest.mark.parametrize(("option", "drops", "keeps"), DROPS)
def test_what_drops_something_is_refused(option, drops, keeps):
    for file_format in formats_of(option):
        for value in drops:
            for options in ({option: value}, json.dumps({option: value})):
                with pytest.raises(DeltaIllegalArgumentException, match=f"format option {option}="):
                    check_reader_options(options, file_format, whose="The task 'load'")
        for value in keeps:
            check_reader_options({option: value}, file_format, whose="The task 'load'")


def test_an_option_that_nobody_knows():
    for name in ("parquet.read.filter", "rescuedDataColumn", "modifiedafterr"):
        with pytest.raises(DeltaIllegalArgumentException, match="not known to keep all rows"):
            check_reader_options({name: "x"}, "parquet", whose="The task 'load'")


def test_a_template_is_checked_when_it_is_rendered():
    check_reader_options("{{ var.value.options }}", "csv", whose="The task 'load'")


def test_the_operator_refuses_it_when_the_dag_is_parsed():
    with pytest.raises(DeltaIllegalArgumentException, match="modified_after"):
        DeltaCopyIntoOperator(
            task_id="load", table="/t", source="/raw", format="csv", format_options={"modifiedAfter": "2026-01-01T00:00:00"}
        )


@pytest.mark.spark
@pytest.mark.parametrize("file_format", CLASSES)
def test_every_option_of_this_spark_has_a_verdict(spark, file_format):
    """What a new release of Spark adds fails here until somebody has looked at it."""
    if file_format == "avro" and spark.version < "4":  # its options come with the package that reads it
        pytest.skip("Spark 3.5 reads no Avro by itself")
    module = spark._jvm.java.lang.Class.forName(f"org.apache.spark.sql.{CLASSES[file_format]}$").getField("MODULE$").get(None)
    found, options = set(), module.getAllOptions().iterator()
    while options.hasNext():
        found.add(options.next())
    assert found
    verdicts = {name for name, rule in REFUSED.items() if not rule.formats or file_format in rule.formats} | TAKEN[file_format]
    assert not (found | GENERIC) - verdicts


MANY = ['{"a":1}\n{"a":2}\n', '[{"a":1}]\n[{"a":2}]', '{"a":1},{"a":2}', '{"a":1}] {"a":2}', '{"a":1} x', '{"a":1}\n// c\n{}']
ONE = ['{\n"a": 1}\n', ' [{"a":1},\n{"a":2}] ', "", "\n", '\ufeff{"a":1}', '{"a": [{"b": "]}"}]}']


@pytest.mark.spark
@pytest.mark.parametrize("content", MANY)
def test_multi_line_json_with_several_documents_is_refused(spark, tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    (tmp_path / "b.json").write_text('{"a":1}')
    paths = [f"{tmp_path}/a.json", f"{tmp_path}/b.json"]
    with pytest.raises(SchemaMismatchException, match=r"a\.json is not one JSON document"):
        read_spark_files(spark, paths, file_format="json", options={"multiLine": True}, table=None)


@pytest.mark.spark
def test_multi_line_json(spark, tmp_path):
    paths = []
    for number, content in enumerate(ONE):
        (tmp_path / f"{number}.json").write_text(content)
        paths.append(f"{tmp_path}/{number}.json")
    rows = read_spark_files(spark, paths, file_format="json", options={"multiline": "true"}, table=None)
    assert rows.count() == 5
