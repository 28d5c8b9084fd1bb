"""A model's inference program in the operations of other libraries.

    program.py   the statements of the compiled program as calls to a Graph
    onnx.py      a Graph that makes ONNX nodes; extra ``onnx``
    torch.py     a Graph that computes PyTorch tensors

``Model.export`` and ``Model.to_torch`` are the public names.
"""
