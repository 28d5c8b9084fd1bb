"""The engine of parallel dropout: sub-models of a network, and how they are merged."""
