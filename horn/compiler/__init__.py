"""The compiler: what one neuron does, in; a program over whole layers, out.

What comes out is ``horn.program``'s. The rooms in the order of the work, each importing only those
before it: ``layer_code`` (the IR of each layer), ``storage``, ``messages``, ``thinning``,
``updates`` and ``backward``, which are parts of the builder in ``lower``; of sequences ``steps``
(what runs step by step), ``fusion`` (in few passes) and ``parts`` (computed forward again). From
one task to several is ``horn.partition``'s. The contract is two functions of ``lower``:
``training_program`` and ``inference_program``. See docs/notes/0003 and 0145.
"""
