"""The neuron language: what one neuron's methods say, as expressions of ``horn.ir``.

The rooms in the order of the work, each importing only those before it: ``source``; the parts of a
symbolic run: ``references``, ``scope``, ``expressions``, ``names``, ``operators``, ``sequences``,
``orders``, ``loops``, ``statements``, ``functions``, ``words``, ``calls``, put together in
``parse``; ``layers`` (what is written for a layer). See docs/notes/0003 and 0122.
"""
