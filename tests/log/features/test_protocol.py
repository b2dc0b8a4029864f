"""The protocol: which features are refused, which protocol a table needs, and how it may change."""

from __future__ import annotations

import pytest

from airflow_delta.exceptions import (
    DeltaIllegalArgumentException,
    DeltaUnsupportedTableFeatureException,
    InvalidProtocolVersionException,
    ProtocolDowngradeException,
)
from airflow_delta.log.actions.actions import Metadata
from airflow_delta.log.features.protocol import (
    FEATURES,
    active_features,
    apply_feature_properties,
    check_can_read,
    check_can_write,
    check_form,
    check_transition,
    features,
    needs_manual_enablement,
    required_protocol,
    upgraded,
)
from support.actions import protocol


def metadata(type_="long", field_metadata="{}", nullable="true", **configuration):
    schema = f'{{"type":"struct","fields":[{{"name":"a","type":"{type_}","nullable":{nullable},"metadata":{field_metadata}}}]}}'
    return Metadata(
        id="i", schema_string=schema, configuration={f"delta.{k.replace('__', '.')}": v for k, v in configuration.items()}
    )


PLAIN = metadata()
NTZ = protocol(3, 7, ["timestampNtz"], ["appendOnly", "invariants", "timestampNtz"])


@pytest.mark.parametrize(
    ("versions", "mapped"), [((1, 5), False), ((1, 6), False), ((2, 4), False), ((2, 5), True), ((2, 6), True)]
)
def test_a_reader_feature_is_implied_by_both_versions(versions, mapped):
    assert ("columnMapping" in features(protocol(*versions))) is mapped


@pytest.mark.parametrize("versions", [(1, 1), (1, 2), (1, 3), (1, 4), (2, 5), (2, 6)])
def test_legacy_versions_are_written_while_their_features_are_not_used(versions):
    check_can_write(protocol(*versions), PLAIN, "t", 1)


@pytest.mark.parametrize(
    ("table", "meta", "feature", "said"),
    [
        (
            protocol(1, 7, None, ["icebergCompatV1"]),
            metadata(enableIcebergCompatV1="true"),
            "icebergCompatV1",
            "icebergCompatV1: this provider does not write the Parq",
        ),
        (protocol(1, 2), metadata(enableIcebergCompatV2="true"), "icebergCompatV2", "Iceberg readers need"),
        (protocol(1, 2), metadata(enableIcebergCompatV3="true"), "icebergCompatV3", "Iceberg readers need"),
        (
            protocol(3, 7, ["variantType"], ["variantType"]),
            metadata("variant", enableVariantShredding="true"),
            "variantShredding-preview",
            "writes variants whole, not shredded",
        ),
        (
            protocol(1, 7, None, ["coordinatedCommits-preview"]),
            metadata(**{"coordinatedCommits__commitCoordinator-preview": "c"}),
            "coordinatedCommits-preview",
            "commit coordinator",
        ),
        (
            protocol(3, 7, ["catalogManaged"], ["catalogManaged"]),
            PLAIN,
            "catalogManaged",
            "the log on storage is not authoritative",
        ),
        (
            protocol(1, 7, None, ["redirectWriterOnly-preview"]),
            metadata(**{"redirectWriterOnly-preview": "{}"}),
            "redirectWriterOnly-preview",
            "DELTA_UNSUPPORTED_FEATURES_FOR_WR",
        ),
        (protocol(1, 7, None, ["sparkles"]), PLAIN, "sparkles", "does not support the table feature sparkles"),
    ],
)
def test_features_are_refused_by_name_and_with_the_reason(table, meta, feature, said):
    with pytest.raises(DeltaUnsupportedTableFeatureException, match=said) as caught:
        check_can_write(table, meta, "s3://t", 9)
    assert feature in caught.value.features
    assert "s3://t at version 9" in str(caught.value)


# Delta's own, by running it: DeltaProtocolTransitionsSuite and the attributes of TableFeature.
REQUIRES = {
    "rowTracking": {"domainMetadata"},
    "clustering": {"domainMetadata"},
    "icebergCompatV3": {"columnMapping", "rowTracking"},
    "variantShredding": {"variantType"},
    "coordinatedCommits-preview": {"inCommitTimestamp", "vacuumProtocolCheck"},
    "catalogManaged": {"inCommitTimestamp", "vacuumProtocolCheck"},
}
TOLERANT_OF_UPGRADES = {
    *("appendOnly", "changeDataFeed", "columnMapping", "timestampNtz", "deletionVectors", "rowTracking", "domainMetadata"),
    *("icebergCompatV1", "icebergCompatV2", "icebergCompatV3", "v2Checkpoint", "catalogManaged", "inCommitTimestamp"),
    "vacuumProtocolCheck",
}


def test_the_table_of_features_says_what_deltas_does():
    assert {name: set(FEATURES[name].requires) for name in REQUIRES} == REQUIRES
    assert {n for n, f in FEATURES.items() if not f.fail_concurrent_transactions_at_upgrade} == TOLERANT_OF_UPGRADES
    legacy = {n: f.legacy for n, f in FEATURES.items() if f.legacy}
    assert legacy == {
        "appendOnly": (1, 2),
        "invariants": (1, 2),
        "checkConstraints": (1, 3),
        "changeDataFeed": (1, 4),
        "generatedColumns": (1, 4),
        "columnMapping": (2, 5),
        "identityColumns": (1, 6),
    }
    assert all(f.tolerated for f in FEATURES.values() if f.supported)
    assert all(f.readable for f in FEATURES.values() if f.tolerated)
    assert all(required in FEATURES for f in FEATURES.values() for required in f.requires)


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


def test_a_column_invariant_and_a_constraint_spelled_in_another_case_make_use_of_their_features():
    assert active_features(metadata(field_metadata='{"delta.invariants":"{}"}')) == {"invariants"}
    foreign = Metadata(id="i", schema_string=PLAIN.schema_string, configuration={"Delta.Constraints.c": "a > 1"})
    assert active_features(foreign) == {"checkConstraints"}
    assert active_features(PLAIN) == set()


def test_a_protocol_that_has_all_that_is_needed_stays_as_it_is_written():
    spelled_out = protocol(1, 7, None, ["invariants", "appendOnly"])  # (1, 2) says the same
    assert upgraded(spelled_out, protocol(1, 2)) is spelled_out
    assert apply_feature_properties(metadata(appendOnly="true"), spelled_out)[1] is spelled_out


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (protocol(3, 5, ["columnMapping"]), "needs writer version 7"),
        (protocol(3, 7, None, ["deletionVectors"]), "must list reader features if and only if"),
        (protocol(1, 7, ["deletionVectors"], ["deletionVectors"]), "must list reader features if and only if"),
        (protocol(1, 7), "must list writer features if and only if"),
        (protocol(1, 2, None, ["appendOnly"]), "must list writer features if and only if"),
        (protocol(3, 7, ["deletionVectors"], ["appendOnly"]), "lists deletionVectors for readers but not for writers"),
        (protocol(0, 2), "positive versions"),
    ],
)
def test_versions_and_lists_of_features_must_fit_each_other(bad, said):
    with pytest.raises(DeltaIllegalArgumentException, match=said):
        check_form(bad, "s3://t")


@pytest.mark.parametrize(
    "good", [protocol(1, 1), protocol(2, 6), protocol(1, 7, None, []), protocol(2, 7, None, ["columnMapping"]), NTZ]
)
def test_protocols_of_every_form(good):
    check_form(good, "s3://t")


def test_a_preview_feature_stands_in_for_the_one_it_became():
    preview = protocol(3, 7, ["typeWidening-preview"], ["typeWidening-preview"])
    assert apply_feature_properties(metadata(enableTypeWidening="true"), preview)[1] == preview
    assert needs_manual_enablement(preview, metadata(enableTypeWidening="true")) == ()
    assert features(required_protocol(metadata("variant"))) >= {"variantType"}


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
    with pytest.raises(DeltaIllegalArgumentException, match="DELTA_UNSUPPORTED_FEATURE_STATUS"):
        apply_feature_properties(metadata(feature__domainMetadata="on"), None)
