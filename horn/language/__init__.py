"""The neuron language: what one neuron's methods say, as expressions.

The rooms in the order of the work, each importing only those before it: ``ir`` (expressions and
their table), ``source``, ``neuron_ir``, ``derive`` (backward from forward); the parts of a symbolic
run: ``references``, ``scope``, ``expressions``, ``names``, ``operators``, ``sequences``,
``monoids``, ``loops``, ``statements``, ``functions``, ``words``, ``calls``, put together in
``parse``; ``layers`` (what is written for a layer). See docs/notes/0003 and 0122.
"""
