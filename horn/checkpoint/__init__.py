"""Checkpoints that survive a crash: one is complete and unaltered, or it is not loaded.

    <folder>/ckpt-<iteration>-<attempt>/       0700
        MANIFEST.json                          iteration, attempt, facts; size, sha256 of each part
        <part>.safetensors                     one task's arrays, and their places in the whole

Each task writes its part (``write_part``) into the temporary folder of ``Checkpoints.begin``;
``Checkpoints.commit`` writes the manifest and renames the folder. Parts are on the disk before the
manifest, the manifest before the name. Readers take the newest folder that verifies.
"""

from horn.checkpoint.folder import Checkpoints
from horn.checkpoint.opened import CheckpointReader
from horn.checkpoint.parts import ArrayPiece, WrittenPart, write_part

__all__ = ["Checkpoints", "CheckpointReader", "ArrayPiece", "WrittenPart", "write_part"]
