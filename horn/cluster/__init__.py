"""What horn keeps in ZooKeeper: who is there, who leads, how far they are.

``paths`` is the table of names, ``coord`` the session and the only file that imports kazoo;
``members``, ``barrier``, ``election`` and ``jobs`` are written over ``coord`` alone. Importing this
package loads none of them.
"""
