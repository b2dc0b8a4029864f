"""The page and the example Dags are of the same services, and none is left out of the tests."""

from __future__ import annotations

from services.page import BLOCKS, EXAMPLES, FOLDER, PAGE, block_of
from support.documents import blocks_of, section
from support.places import files


def test_each_service_of_the_page_has_a_block_and_an_example() -> None:
    headings = [line.removeprefix("## ") for line in PAGE.read_text().splitlines() if line.startswith("## ")]
    services = [heading for heading in headings if any("delta_job(" in block.text for block in section(PAGE, heading))]
    assert services == ["From an empty folder to the first commit", *BLOCKS]
    assert EXAMPLES.keys() == BLOCKS.keys()
    assert sum("delta_job(" in block.text for block in blocks_of(PAGE)) == len(services)


def test_every_example_runs() -> None:
    assert sorted(path.stem for path in files(FOLDER, "*.py")) == sorted(name for name, _ in EXAMPLES.values())


def test_the_operator_of_an_example_is_that_of_the_block() -> None:
    for service, (name, _) in EXAMPLES.items():
        imports = [line for line in block_of(service).splitlines() if line.startswith("from airflow.providers")]
        assert imports, service
        assert set(imports) <= set((FOLDER / f"{name}.py").read_text().splitlines())
