"""The parts that tasks are made of.

Rooms: ``keys`` of transactions; ``trust`` (what XComs say is not believed); what tasks that ``start``, ``stage`` or ``commit``
share; ``checks`` before a commit; ``restart``; ``spark``; ``openlineage``.
"""
