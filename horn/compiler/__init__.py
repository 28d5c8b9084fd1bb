"""The compiler: what one neuron does, in; a program over whole layers, out.

The rooms in the order of the work, each importing only those before it: ``ir`` (expressions and
their table), ``source``, ``scope``, ``derive`` (backward from forward), ``expressions``, ``calls``,
``parse`` (the symbolic run of a method), ``program`` (what comes out), ``contract`` (sums of
products into matrix products), ``layers``, ``layer_code`` (the IR of each layer), ``storage``,
``messages``, ``thinning``, ``updates`` and ``backward``, which are parts of the builder in
``lower``, ``explain`` (in a user's words).
The contract is two functions of
``lower``: ``training_program`` and ``inference_program``. See docs/notes/0003.
"""
