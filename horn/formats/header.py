"""What the header of a safetensors file may say: of model files, and of the parts of checkpoints.
Source: github.com/huggingface/safetensors, "Format".
"""

from __future__ import annotations

MAX_HEADER_BYTES = 100_000_000  # the limit of safetensors itself
DTYPES = {  # in NumPy's words, as ``dtype.str``
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2",
    "I8": "|i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1",
}  # fmt: skip
