"""Globs of file names: what they select, and that no name takes long."""

from __future__ import annotations

import re
import time

import pytest

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.table.positions.files.globs import part_expression

SELECTED = [
    # glob, names that it selects, names that it does not
    ("*.csv", ["a.csv", ".csv", "a.csv.csv"], ["a.csvx", "a/b.csv", "csv"]),
    ("a*b*c", ["abc", "aXbYc", "abbc", "abcbc", "a\nbc"], ["ac", "acb", "abcd"]),
    ("*a*a", ["aa", "baaa", "xaxa"], ["a", "ab", ""]),
    ("**_", ["_", "a_"], ["_a"]),
    ("*", ["", "a"], ["a/"]),
    ("a?c", ["abc", "a?c"], ["ac", "a/c", "abbc"]),
    ("[a-c]*[!0-9]", ["ab", "cx", "b1x"], ["a1", "db", "a/"]),
    ("[^a]", ["b", "^"], ["a", "/"]),
    ("[]a]", ["]", "a"], ["b"]),
    ("[!]]", ["a"], ["]"]),
    ("[a&&b]", ["a", "&", "b"], ["c"]),
    ("{a,b*}.csv", ["a.csv", "b.csv", "bx.csv"], ["ax.csv", "c.csv"]),
    ("{a,{b,c}d}{,x}", ["a", "ax", "bd", "cdx"], ["b", "adx"]),
    ("{*_,*__}x", ["_x", "a_x", "a__x", "__x"], ["x", "_"]),
    ("a,b}", ["a,b}"], ["a"]),
    (r"\*\{\[a", ["*{[a"], ["a{[a"]),
    ("a.b", ["a.b"], ["aXb"]),
    ("a\\", ["a\\"], ["a"]),
]


@pytest.mark.parametrize(("glob", "selected", "others"), SELECTED)
def test_what_is_selected(glob, selected, others):
    matches = re.compile(part_expression(glob, glob), re.DOTALL).fullmatch
    assert [name for name in [*selected, *others] if matches(name)] == selected


@pytest.mark.parametrize(
    ("glob", "problem"),
    [
        ("[z-a]*", "bad character range z-a"),
        ("[a", "without its ]"),
        ("{a", "without its }"),
        ("{a,{b}", "without its }"),
        ("{0,1,2,3,4,5,6,7,8,9}" * 4, "more than 1000 names"),
    ],
)
def test_what_is_refused(glob, problem):
    with pytest.raises(DeltaIllegalArgumentException, match=problem):
        part_expression(glob, glob)


@pytest.mark.parametrize("glob", ["*_*_*_*.csv", "*_*_*_*_*_*_*_*_*_*.csv", "*{_,__}*{_,__}*{_,__}*.csv", "*?*?*?*?*.csv"])
def test_long_names_take_no_longer_than_their_length(glob):
    matches = re.compile(part_expression(glob, glob)).fullmatch
    began = time.process_time()
    assert not any(matches("_" * 1000) for _ in range(10))  # by trying all: minutes for one
    assert matches("_" * 1000 + ".csv")
    assert time.process_time() - began < 2
