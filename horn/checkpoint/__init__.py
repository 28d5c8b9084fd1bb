"""Checkpoints that survive a crash: one is complete and unaltered, or it is not loaded.

    <folder>/ckpt-<iteration>-<attempt>/       0700
        MANIFEST.json                          iteration, attempt, facts; size, sha256 of each part
        <part>.safetensors                     what one task has, and where it lies in the whole

A part is written by the task that has it (``write_part``), into the temporary folder that
``Checkpoints.begin`` makes; ``Checkpoints.commit`` writes the manifest and renames the folder. Each
file is on the disk before the manifest is, the manifest before the name. There is no file that says
which is the newest: the reader takes the newest folder that verifies.
"""

from horn.checkpoint.folder import Checkpoints
from horn.checkpoint.opened import CheckpointReader
from horn.checkpoint.parts import ArrayPiece, WrittenPart, write_part

__all__ = ["Checkpoints", "CheckpointReader", "ArrayPiece", "WrittenPart", "write_part"]
