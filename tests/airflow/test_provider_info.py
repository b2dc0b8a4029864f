"""What the provider tells Airflow about itself, checked against the installed Airflow."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.resources
import inspect
import json

import jsonschema
import pytest

from airflow_delta.get_provider_info import get_provider_info

INFO = get_provider_info()
CONNECTION_TYPE = INFO["connection-types"][0]


def schema(name: str) -> dict:
    return json.loads(importlib.resources.files("airflow").joinpath(name).read_text())


def test_valid_for_airflow():
    jsonschema.validate(INFO, schema("provider_info.schema.json"))


def test_only_keys_that_airflow_knows():
    # Airflow ignores a misspelt key without a word; the schema tolerates it.
    assert INFO.keys() <= schema("provider_info.schema.json")["properties"].keys() | {"package-name", "name", "description"}
    known = {"connection-type", "hook-class-name", "hook-name", "ui-field-behaviour", "conn-fields"}
    assert CONNECTION_TYPE.keys() <= known
    assert CONNECTION_TYPE["ui-field-behaviour"].keys() <= {"hidden-fields", "relabeling", "placeholders"}
    for field in CONNECTION_TYPE["conn-fields"].values():
        assert field.keys() <= {"label", "description", "schema"}


def test_package_name_is_the_distribution_name():
    assert importlib.metadata.metadata("airflow-provider-delta")["Name"] == INFO["package-name"]
    (entry_point,) = [e for e in importlib.metadata.entry_points(group="apache_airflow_provider") if "airflow_delta" in e.value]
    assert entry_point.dist.name == INFO["package-name"]
    assert entry_point.load()() == INFO


SUFFIXES = {"operators": "Operator", "sensors": "Sensor", "triggers": "Trigger", "hooks": "Hook"}


@pytest.mark.parametrize(
    ("module", "suffix"), [(m, suffix) for kind, suffix in SUFFIXES.items() for e in INFO[kind] for m in e["python-modules"]]
)
def test_modules_can_be_imported(module, suffix):
    found = importlib.import_module(module)
    assert [n for n, c in vars(found).items() if inspect.isclass(c) and c.__module__ == module and n.endswith(suffix)]


@pytest.mark.parametrize(
    "path",
    [
        CONNECTION_TYPE["hook-class-name"],
        *(decorator["class-name"] for decorator in INFO["task-decorators"]),
        *(INFO["asset-uris"][0][name] for name in ("handler", "factory", "to_openlineage_converter")),
        *INFO["extra-links"],
        *INFO["cli"],
    ],
)
def test_classes_can_be_imported(path):
    module, _, name = path.rpartition(".")
    assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.airflow
def test_airflow_lists_the_provider(airflow_database):
    from airflow.providers_manager import ProvidersManager
    from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

    manager = ProvidersManager()
    provider = manager.providers["airflow-provider-delta"]
    assert provider.version == importlib.metadata.version("airflow-provider-delta")

    hook = ProvidersManagerTaskRuntime().hooks["delta"]
    assert (hook.hook_class_name, hook.package_name, hook.connection_testable) == (
        CONNECTION_TYPE["hook-class-name"],
        "airflow-provider-delta",
        True,
    )
    assert manager.field_behaviours["delta"]["relabeling"]["host"] == "Base path"
    assert "extra__delta__storage_options" in manager.connection_form_widgets

    from airflow.sdk import task

    assert task.delta_stage is not None
