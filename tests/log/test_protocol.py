"""The protocol: what is refused by name, what a table needs, and how it may change."""

from __future__ import annotations

import pytest

from airflow_delta.exceptions import (
    DeltaIllegalArgumentException,
    DeltaUnsupportedTableFeatureException,
    InvalidProtocolVersionException,
    ProtocolDowngradeException,
)
from airflow_delta.log.actions import Metadata, Protocol
from airflow_delta.log.protocol import (
    apply_feature_properties,
    check_can_read,
    check_can_write,
    check_transition,
    features,
    required_protocol,
    upgraded,
)


def protocol(reader, writer, reader_features=None, writer_features=None):
    return Protocol(
        min_reader_version=reader, min_writer_version=writer, reader_features=reader_features, writer_features=writer_features
    )


def metadata(type_="long", field_metadata="{}", nullable="true", **configuration):
    schema = f'{{"type":"struct","fields":[{{"name":"a","type":"{type_}","nullable":{nullable},"metadata":{field_metadata}}}]}}'
    return Metadata(
        id="i", schema_string=schema, configuration={f"delta.{k.replace('__', '.')}": v for k, v in configuration.items()}
    )


PLAIN = metadata()
NTZ = protocol(3, 7, ["timestampNtz"], ["appendOnly", "invariants", "timestampNtz"])


@pytest.mark.parametrize("versions", [(1, 1), (1, 2), (1, 3), (1, 4), (2, 5), (2, 6)])
def test_legacy_versions_are_written_while_their_features_are_not_used(versions):
    check_can_write(protocol(*versions), PLAIN, "t", 1)


@pytest.mark.parametrize(
    ("table", "meta", "feature"),
    [
        (protocol(1, 3), metadata(constraints__c="a > 1"), "checkConstraints"),
        (protocol(1, 4), metadata(enableChangeDataFeed="true"), "changeDataFeed"),
        (protocol(1, 4), metadata(field_metadata='{"delta.generationExpression":"b"}'), "generatedColumns"),
        (protocol(2, 5), metadata(columnMapping__mode="name"), "columnMapping"),
        (protocol(1, 6), metadata(field_metadata='{"delta.identity.start":1}'), "identityColumns"),
        (protocol(1, 2), metadata(field_metadata='{"delta.invariants":"{}"}'), "invariants"),
        (protocol(1, 7, None, ["rowTracking", "domainMetadata"]), PLAIN, "rowTracking"),
        (protocol(1, 7, None, ["sparkles"]), PLAIN, "sparkles"),
        (protocol(3, 7, ["catalogManaged"], ["catalogManaged"]), PLAIN, "catalogManaged"),
        (protocol(3, 7, ["v2Checkpoint"], ["v2Checkpoint"]), PLAIN, "v2Checkpoint"),
    ],
)
def test_features_in_use_are_refused_by_name(table, meta, feature):
    with pytest.raises(DeltaUnsupportedTableFeatureException, match=feature) as caught:
        check_can_write(table, meta, "s3://t", 9)
    assert feature in caught.value.features
    assert "s3://t at version 9" in str(caught.value)


def test_supported_features_and_writer_only_features_of_readers():
    check_can_write(NTZ, metadata("timestamp_ntz"), "t", 1)
    check_can_write(protocol(3, 7, ["deletionVectors"], ["deletionVectors"]), metadata(enableDeletionVectors="true"), "t", 1)
    check_can_write(protocol(1, 2), metadata(nullable="false", appendOnly="true"), "t", 1)
    check_can_read(protocol(1, 7, None, ["sparkles"]), "t", 1)  # readers need not know it


@pytest.mark.parametrize(
    ("versions", "said"), [((4, 7), "reader version 4"), ((1, 8), "writer version 8"), ((0, 2), "reader version 0")]
)
def test_newer_versions(versions, said):
    with pytest.raises(InvalidProtocolVersionException, match=said):
        check_can_write(protocol(*versions), PLAIN, "t", 1)


def test_required_protocol_is_the_weakest():
    assert required_protocol(PLAIN) == protocol(1, 2)
    assert required_protocol(metadata("timestamp_ntz")) == NTZ
    assert upgraded(protocol(1, 2), protocol(1, 2)) == protocol(1, 2)
    assert upgraded(protocol(1, 2), NTZ) == NTZ
    assert features(upgraded(protocol(2, 5), NTZ)) == features(protocol(2, 5)) | {"timestampNtz"}


def test_a_protocol_may_not_lose_a_feature():
    check_transition(protocol(1, 2), NTZ, "t", 1)
    with pytest.raises(ProtocolDowngradeException, match="would lose timestampNtz"):
        check_transition(NTZ, protocol(1, 2), "t", 1)


def test_feature_properties_are_stripped_and_applied():
    given = metadata(feature__domainMetadata="supported", minReaderVersion="1", minWriterVersion="2", appendOnly="true")
    kept, new = apply_feature_properties(given, None)
    assert kept.configuration == {"delta.appendOnly": "true"}
    assert new == protocol(1, 7, None, ["appendOnly", "domainMetadata", "invariants"])
    assert apply_feature_properties(PLAIN, NTZ) == (PLAIN, NTZ)
    with pytest.raises(DeltaIllegalArgumentException, match=r"delta.feature.sparkles"):
        apply_feature_properties(metadata(feature__sparkles="supported"), None)
