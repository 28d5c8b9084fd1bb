"""What horn keeps in ZooKeeper: who is there, who leads, how far they are.

``paths`` is the table of names and ``records`` what is passed around; ``coord`` is the session and
the only file that imports kazoo, ``nodes`` its blocking calls; ``members``, ``barrier``,
``election`` and ``jobs`` are written over them. Importing this package loads none of them.
"""
