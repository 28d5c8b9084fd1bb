"""What horn keeps in ZooKeeper: who is there, who leads, how far they are.

``paths`` is the table of names and ``records`` what is passed around; ``session`` is the only file
that imports kazoo, ``nodes`` its blocking calls; ``membership``, ``roster``, ``barrier``,
``election`` and ``jobs`` are made of those.
"""
