"""An embedded ZooKeeper server in pure Python."""
