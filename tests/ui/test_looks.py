"""Numbers, sizes and charts of the pages; no Airflow."""

from __future__ import annotations

import re
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from airflow_delta.ui import formats, own_files
from airflow_delta.ui.charts import chart_legend, commit_chart, sparkline
from support.places import files

TEMPLATES = files(Path(own_files.HERE) / "templates", "*.html")
STATIC = files(Path(own_files.HERE) / "static", "*")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, formats.UNKNOWN),
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1536, "1.5 KiB"),
        (300 * 1024**2, "300 MiB"),
        (5 * 1024**5, "5.0 PiB"),
    ],
)
def test_sizes(value, text):
    assert formats.format_bytes(value) == text


def test_numbers_and_times():
    assert formats.format_number(1234567) == "1\u202f234\u202f567"
    assert formats.compact(1_500_000) == "1.5M"
    assert formats.ago((time.time() - 7300) * 1000) == "2 hours"
    assert 'datetime="2023-11-14T22:13:20.000+00:00"' in formats.format_time(1_700_000_000_000)
    assert formats.format_time(10**20) == formats.UNKNOWN


DAY = 86_400_000


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        ((0, DAY), "1970-01-01 \u2192 1970-01-02 UTC"),
        ((0, 0), "1970-01-01 UTC"),
        ((3_600_000, DAY), "1970-01-01 01:00 \u2192 1970-01-02 00:00 UTC"),
    ],
)
def test_times_name_their_zone(interval, text):
    assert formats.format_time(interval[1] or DAY).striptags().endswith(" UTC")
    assert formats.format_interval(interval).striptags() == text


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("WRITE", "write"),
        ("MERGE", "change"),
        ("DELETE", "remove"),
        ("OPTIMIZE", "upkeep"),
        ("SET TBLPROPERTIES", "metadata"),
        (None, "metadata"),
    ],
)
def test_kinds(operation, kind):
    assert formats.operation_group(operation) == kind


def commit(version, rows=10, added=1000, removed=0, operation="WRITE"):
    return {
        "version": version,
        "operation": operation,
        "kind": formats.operation_group(operation),
        "num_records": rows,
        "bytes_added": added,
        "bytes_removed": removed,
        "url": f"/delta-tables/commit?table=a&version={version}",
    }


@pytest.mark.parametrize("commits", [[], [commit(0)], [commit(version, rows=None, added=0) for version in range(200, 0, -1)]])
def test_a_chart_is_well_formed(commits):
    chart = str(commit_chart(commits))
    if commits:
        assert len(list(ElementTree.fromstring(chart).iter("a"))) == 2 * len(commits)
        assert "nan" not in chart


def test_a_chart_escapes_what_the_log_says():
    chart = str(commit_chart([commit(1, operation="<script>alert(1)</script>")]))
    assert "<script" not in chart
    ElementTree.fromstring(chart)


def test_a_chart_has_no_bar_outside():
    chart = ElementTree.fromstring(
        str(commit_chart([commit(v, rows=v, added=v * 10**6, removed=(9 - v) * 10**7) for v in range(9, 0, -1)]))
    )
    height = float(chart.get("viewBox").split()[3])
    for bar in (bar for bar in chart.iter("rect") if bar.get("class") != "target"):
        assert float(bar.get("y")) >= 0
        assert float(bar.get("y")) + float(bar.get("height")) <= height


def test_what_came_and_what_left_have_one_scale():
    chart = ElementTree.fromstring(str(commit_chart([commit(2, added=0, removed=2000), commit(1, added=4000)])))
    heights = {bar.get("class").split()[0]: float(bar.get("height")) for bar in chart.iter("rect")}
    assert heights["up"] == pytest.approx(2 * heights["down"], abs=0.2)


def test_a_sparkline_leaves_gaps():
    line = ElementTree.fromstring(str(sparkline([1, None, 3], "Rows", formats.row_count)))
    assert [path.get("d").count("M") for path in line.iter("path")] == [1, 1]
    assert str(sparkline([], "Rows", formats.row_count)) == ""


def test_a_sparkline_is_two_elements_however_many_bars_it_has():
    line = ElementTree.fromstring(str(sparkline(list(range(30)), "Rows", formats.row_count)))
    earlier, last = (path.get("d") for path in line.iter("path"))
    assert (earlier.count("M"), last) == (29, "M127.6 20v-20.0h2.9v20.0z")
    assert len(list(line.iter())) == 6


@pytest.mark.parametrize(
    ("values", "text", "seen", "label"),
    [
        ([1, 3, 2], formats.row_count, "up to 3 rows", "Of it by 3 commits, oldest first: latest 2 rows, largest 3 rows"),
        (
            [1536, None],
            formats.format_bytes,
            "up to 1.5 KiB",
            "Of it by 2 commits, oldest first: latest unknown, largest 1.5 KiB",
        ),
        ([0], formats.row_count, "up to 0 rows", "Of it by 1 commit, oldest first: latest 0 rows, largest 0 rows"),
        ([None, None], formats.row_count, "Of it unknown", None),
    ],
)
def test_a_sparkline_says_what_it_shows(values, text, seen, label):
    line = ElementTree.fromstring(str(sparkline(values, "Of it", text)))
    assert line.find("span").text == seen
    assert [chart.get("aria-label") for chart in line.iter("svg")] == ([] if label is None else [label])


def test_a_legend_names_what_is_in_its_chart_and_no_more():
    assert chart_legend([commit(2), commit(1)]) == [("write", "WRITE")]
    several = [commit(3, operation="DELETE", removed=5), commit(2, operation="MERGE"), commit(1, operation="UPDATE"), commit(0)]
    assert chart_legend(several) == [
        ("remove", "DELETE"),
        ("change", "MERGE, UPDATE"),
        ("write", "WRITE"),
        ("taken", "bytes removed"),
    ]
    many = [commit(number, operation=f"SET {number}") for number in range(7)]
    assert chart_legend(many) == [("metadata", "SET 6, SET 5, SET 4, SET 3, 3 more")]


def test_a_chart_says_what_its_axis_counts_and_what_it_leaves_out():
    commits = [commit(version, rows=None if version == 45 else 10) for version in range(45, 0, -1)]
    words = {narrow: ElementTree.fromstring(str(commit_chart(commits, narrow=narrow))) for narrow in (False, True)}
    told = {narrow: [text.text for text in chart.iter("text")] for narrow, chart in words.items()}
    assert "Rows in added files, unknown for 1" in told[False]
    assert "Rows in added files (latest 30 of 45), unknown for 1" in told[True]
    assert "Bytes added, removed (latest 30 of 45)" in told[True]
    assert "Version" in told[False]


@pytest.mark.parametrize("path", [*TEMPLATES, *STATIC], ids=lambda path: path.name)
def test_nothing_comes_from_elsewhere_and_nothing_is_inline(path):
    text = path.read_text().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|@import|url\(", text)
    if path.name.endswith(".html"):
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=|<script(?![^>]*\ssrc=)|\|\s*safe", text)
