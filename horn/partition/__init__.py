"""One program over the tasks of a group: the placement of weights and neurons, the blocks between
tasks, and their order.

``rewrite`` turns the compiler's program, by a ``placement``, into the one that every task runs on
its ``share``; ``supersteps`` orders it, ``group_sums`` adds over many groups, ``segment_marks``
marks the first use of parameters. Source: docs/notes/0021.
"""
