"""How the kernels will run a program: what follows from the program alone, before there is a tape.

``choices`` (layout, threads), ``passes`` (which loops are one), ``folds`` (of windows, and what is
done where sums are made), ``lifetimes`` (buffers of all steps that share memory). ``horn.backends``
makes tapes of it, ``horn.planner`` counts it.
"""
