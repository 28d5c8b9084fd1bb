"""Servers that hold parameters, their clients, and the journal they come back from."""
