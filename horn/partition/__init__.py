"""One program over the tasks of a group: where weights live, who computes what, which blocks
travel, and when.

``rewrite`` makes of the compiler's program, by a ``placement``, the one that every task runs on its
``share``; ``supersteps`` orders it, ``group_sums`` adds over many groups, ``segment_marks`` says
where parameters are first needed. Source: docs/notes/0021.
"""
