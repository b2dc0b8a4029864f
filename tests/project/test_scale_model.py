"""The model of benchmarks/README.md computes what was measured, and its writers lose nothing."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
REQUESTS_WITHIN = 1.35
SECONDS_WITHIN = 3.0


@pytest.fixture(scope="module")
def model() -> ModuleType:
    spec = importlib.util.spec_from_file_location("scale_model", BENCHMARKS / "scale_model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_model_computes_the_recorded_points(model: ModuleType) -> None:
    points = model.compare(json.loads((BENCHMARKS / "scale.json").read_text())["rows"])
    assert {point["case"] for point in points} == set(model.OPERATIONS)
    assert {point["files"] for point in points} == {10**3, 10**4, 10**5, 10**6}
    wrong = []
    for point in points:
        for what, within in (("requests", REQUESTS_WITHIN), ("seconds", SECONDS_WITHIN)):
            measured, modelled = point[what]
            if not 1 / within <= modelled / measured <= within:
                wrong.append((point["files"], point["case"], what, measured, modelled))
    assert not wrong


@pytest.mark.parametrize("case", ["start", "commit", "collect", "publish"])
def test_a_transaction_costs_as_many_requests_on_any_table(model: ModuleType, case: str) -> None:
    asked = {
        model.requests(model.OPERATIONS[case](model.Work(files, staged=10_000), model.Machine()))
        for files in (10**3, 10**6, 10**8)
    }
    assert len(asked) == 1


def test_every_writer_commits(model: ModuleType) -> None:
    alone, many = (model.contend(writers, 20, model.Contention(put=0.02, read=0.02)) for writers in (1, 8))
    assert alone["requests"] == 3.0  # a listing, the put, the checksum
    assert many["requests"] > 4
    assert many["rate"] < 1 / 0.016  # one commit after the other, whoever writes it
    assert many["slowest"] > alone["slowest"]


def test_the_model_computes_the_measured_writers(model: ModuleType) -> None:
    for point in model.MEASURED_CONTENTION:
        found = model.contend(point["writers"], 50, model.CONTENTION)
        for what, within in (("rate", REQUESTS_WITHIN), ("requests", REQUESTS_WITHIN), ("p95", SECONDS_WITHIN)):
            assert 1 / within <= found[what] / point[what] <= within, (point, found)
