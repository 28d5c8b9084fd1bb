"""What a run is told where nobody says otherwise, through whatever door it comes; and the longest
times that it can be told.
"""

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
# Seconds. Waits of threads end at 9.2e9, those of poll at 2.1e6.
LONGEST_S: Final = 1e9
LONGEST_WAIT_S: Final = 1e6
