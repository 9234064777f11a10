"""Which ONNX element type a torch dtype is."""

import torch
from onnx import TensorProto

ONNX_TYPES = {
    torch.float64: TensorProto.DOUBLE,
    torch.float32: TensorProto.FLOAT,
    torch.float16: TensorProto.FLOAT16,
    torch.bfloat16: TensorProto.BFLOAT16,
    torch.int64: TensorProto.INT64,
    torch.int32: TensorProto.INT32,
    torch.int16: TensorProto.INT16,
    torch.int8: TensorProto.INT8,
    torch.uint8: TensorProto.UINT8,
    torch.bool: TensorProto.BOOL,
}


def onnx_type(dtype: torch.dtype) -> int:
    """Return the ONNX element type of ``dtype``; a ``KeyError`` says that there is none."""
    return int(ONNX_TYPES[dtype])
