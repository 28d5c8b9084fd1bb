"""The interpreter, by name: it stands above this package, whose contract it keeps."""

BACKEND = "horn.interpreter:Engine"
