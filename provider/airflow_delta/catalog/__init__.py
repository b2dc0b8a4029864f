"""Catalog-managed tables: Unity Catalog decides which versions a table has, and the log on storage follows.

Upwards: ``answers`` of the server, and ``client``, which asks it; ``versions`` (what it last said about a table) and
``definition`` (what it keeps of one); ``create``; ``committer`` (gets versions and publishes them); ``store`` (the log as the
catalog knows it); ``open`` (a table by its name).
"""
