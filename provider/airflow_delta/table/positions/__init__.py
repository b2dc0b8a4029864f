"""How far a table has taken its sources, so that it takes each row, file and batch once.

A position is the version of an application id in the table's own log. It moves in the commit of what was taken:

======= ============================ ==================================================== ========================
source  application id               version                                              pinned by
======= ============================ ==================================================== ========================
rows    consumer, source             last version of the source that was read             first attempt of any stage
files   consumer                     number of the load; another id: digits of its record first attempt of the stage
batches id of the streaming query    id of the batch                                      checkpoint of the query
======= ============================ ==================================================== ========================
"""
