"""The neuron language: what one neuron's methods say, as expressions.

The rooms in the order of the work, each importing only those before it: ``ir`` (expressions and
their table), ``source``, ``scope``, ``derive`` (backward from forward), ``expressions``, ``calls``,
``parse`` (the symbolic run of a method), ``layers`` (what is written for a layer). See
docs/notes/0003.
"""
