"""What runs a job over many tasks. Importing this package loads nothing; each module is one floor.

``messages`` is what tasks say to one another, byte by byte.
"""
