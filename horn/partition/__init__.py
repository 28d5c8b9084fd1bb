"""One program over the tasks of a group: the placement of weights and neurons, the blocks between
tasks, and their order.

``rewrite`` makes of the compiler's program, by a ``placement``, the one that every task runs on its
``share``; ``supersteps`` orders it, ``group_sums`` adds over many groups, ``segment_marks`` says
where parameters are first needed. Source: docs/notes/0021.
"""
