"""An embedded ZooKeeper server in pure Python.

It speaks the protocol of Apache ZooKeeper 3.8, so any client works with it. ``EmbeddedServer``
runs it in a thread, ``python -m zk`` as a process; docs/zookeeper.md says what it does and what
it leaves out.
"""

from zk.errors import LogError, ServerError, ZkError
from zk.server import EmbeddedServer

__all__ = ["EmbeddedServer", "LogError", "ServerError", "ZkError"]
