"""The interpreter, by name: it lies above this package, whose contract it keeps."""

BACKEND = "horn.interpreter:Engine"
