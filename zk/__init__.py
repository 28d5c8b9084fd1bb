"""An embedded ZooKeeper server in pure Python, which speaks the protocol of Apache 3.8.

``EmbeddedServer`` runs it in a thread, ``python -m zk`` as a process; docs/zookeeper.md.
"""

from zk.errors import LogError, ServerError, ZkError
from zk.server import EmbeddedServer

__all__ = ["EmbeddedServer", "LogError", "ServerError", "ZkError"]
