"""The neuron language: the methods of one neuron, translated to expressions of ``horn.ir``.

The modules in the order of the work, each importing only those before it: ``source``; the parts
of a symbolic run: ``references``, ``scope``, ``expressions``, ``names``, ``operators``,
``sequences``, ``orders``, ``loops``, ``statements``, ``functions``, ``words``, ``calls``, combined
in ``parse``; ``layers`` (the IR of a whole layer). See docs/notes/0003 and 0122.
"""
