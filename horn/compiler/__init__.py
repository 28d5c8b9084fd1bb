"""The compiler: from the code of one neuron to a program over whole layers.

The result is a program of ``horn.program``. The modules in the order of the work, each importing
only those before it: ``layer_code`` (the IR of each layer), ``storage``, ``messages``,
``thinning``, ``updates`` and ``backward``, which are parts of the builder in ``lower``; for
sequences ``steps`` (statements that run step by step), ``fusion`` (in few passes) and ``parts``
(computed forward again). ``horn.partition`` continues from one task to several. The contract is two
functions of ``lower``: ``training_program`` and ``inference_program``. See docs/notes/0003 and
0145.
"""
