"""The kernels' schedule of a program: choices that follow from the program alone, without a tape.

``choices`` (layout, threads), ``passes`` (loops that are merged), ``folds`` (of windows, and cheap
operations on their sums), ``lifetimes`` (buffers of all steps that share memory). ``horn.backends``
makes tapes of the schedule, ``horn.planner`` counts its cost.
"""
