"""Coordination through ZooKeeper: members, leaders, barriers and jobs.

``paths`` is the table of names and ``records`` has the data types; ``session`` is the only file
that imports kazoo, ``nodes`` its blocking calls; ``membership``, ``roster``, ``barrier``,
``election`` and ``jobs`` are made of those.
"""
