"""What horn keeps in ZooKeeper: who is there, who leads, how far they are."""
