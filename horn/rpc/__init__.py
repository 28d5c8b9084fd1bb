"""Calls to an agent: requests, answers and files, for those whose key says that they may."""
