"""Calls to an agent: requests, answers and files, authorized by the role of the caller's key."""
