"""What a run is told where nobody says otherwise, through whatever door it comes."""

from __future__ import annotations

from typing import Final

STRATEGY: Final = "allreduce"
BACKEND: Final = "kernels"
BARRIER: Final = "message"
TRANSPORT: Final = "shm"
SUPERSTEP_TIMEOUT_S: Final = 60.0
START_TIMEOUT_S: Final = 60.0
KEPT_CHECKPOINTS: Final = 3
MAX_RESTARTS: Final = 3
