from airflow_delta.publication.plan import check_publishable as check_publishable
from airflow_delta.publication.publish import abort_tables as abort_tables
from airflow_delta.publication.publish import publish_tables as publish_tables
from airflow_delta.publication.publish import settle as settle
from airflow_delta.publication.publish import settle_named as settle_named
from airflow_delta.publication.publish import settle_open as settle_open
from airflow_delta.publication.records import Member as Member
from airflow_delta.publication.records import OpenPublication as OpenPublication
from airflow_delta.publication.records import OpenTable as OpenTable
from airflow_delta.publication.records import PublicationAbort as PublicationAbort
from airflow_delta.publication.records import PublicationId as PublicationId
from airflow_delta.publication.records import PublicationOptions as PublicationOptions
from airflow_delta.publication.records import PublicationPlan as PublicationPlan
from airflow_delta.publication.records import PublicationResult as PublicationResult
from airflow_delta.publication.records import VersionVector as VersionVector
from airflow_delta.publication.records import table_mark as table_mark
from airflow_delta.publication.states import open_publications as open_publications
from airflow_delta.publication.states import publication_states as publication_states
from airflow_delta.publication.states import publication_tables as publication_tables
from airflow_delta.publication.steps import own_tables as own_tables
from airflow_delta.publication.versions import check_versions as check_versions
from airflow_delta.publication.versions import get_versions as get_versions
from airflow_delta.publication.versions import has_lost as has_lost

__all__ = [
    "Member",
    "OpenPublication",
    "OpenTable",
    "PublicationAbort",
    "PublicationId",
    "PublicationOptions",
    "PublicationPlan",
    "PublicationResult",
    "VersionVector",
    "abort_tables",
    "check_publishable",
    "check_versions",
    "get_versions",
    "has_lost",
    "open_publications",
    "own_tables",
    "publication_states",
    "publication_tables",
    "publish_tables",
    "settle",
    "settle_named",
    "settle_open",
    "table_mark",
]
