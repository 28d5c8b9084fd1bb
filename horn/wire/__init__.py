"""What travels between processes, and who may connect: frames, connections, admission."""
