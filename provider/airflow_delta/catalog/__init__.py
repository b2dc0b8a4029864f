"""Catalog-managed tables: Unity Catalog decides which versions a table has, and the log on storage follows.

``client`` speaks to the server, ``versions`` has what it last said about a table, ``store`` shows the log as the catalog knows
it, ``committer`` asks it for versions and publishes them, ``create`` makes tables, ``open`` finds a table by its name.
"""
