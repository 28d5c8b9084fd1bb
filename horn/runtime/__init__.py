"""The BSP core: a state machine (``task``), the only loop (``group``), exchanges of blocks."""
