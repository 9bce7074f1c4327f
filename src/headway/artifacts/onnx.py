"""Weights of ONNX files: an encoder's state dict, dequantised as it is read.

Only what is needed of the format is read: names, initializers and which nodes use them. An ONNX file is a protobuf
message (protobuf.dev/programming-guides/encoding; the fields are those of `onnx.proto`, github.com/onnx/onnx, whose
numbers are given below). The graph itself is not run: the model's `config.json` says what is computed, and a graph
that holds an operator which no BERT has is refused.

Weights are kept by `onnx.quantize` (ONNX Runtime's dynamic quantisation) as X_quantized, X_scale and X_zero_point:
value = (quantized - zero_point) · scale, for a whole tensor or for each column. A matrix has lost its name; the bias
that is added to its product still has one.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from headway.artifacts.revision import ContentDigest
from headway.core.errors import ArtifactError, UnsupportedModel

# Numbers of the fields that are read.
_MODEL_GRAPH = 7
_GRAPH_NODE, _GRAPH_INITIALIZER = 1, 5
_NODE_INPUT, _NODE_OUTPUT, _NODE_OPERATOR = 1, 2, 4
_DIMS, _DATA_TYPE, _FLOATS, _INT32S, _NAME, _RAW, _LOCATION = 1, 2, 4, 5, 8, 9, 14
#: TensorProto.DataType → as numpy sees it.
_TYPES = {1: "<f4", 2: "|u1", 3: "|i1", 10: "<f2"}

_QUANTIZED = ("_quantized", "_scale", "_zero_point")
_PRODUCTS = {"MatMulInteger", "MatMul"}
#: How many nodes lie between an integer product and its bias at most: Cast, Mul, Add.
_STEPS_TO_BIAS = 3
#: What exports of BERT and its heads consist of.
_OPERATORS = _PRODUCTS | {
    *("Add", "Cast", "Concat", "Constant", "ConstantOfShape", "DequantizeLinear", "Div", "DynamicQuantizeLinear"),
    *(
        "Equal",
        "Erf",
        "Expand",
        "Gather",
        "LayerNormalization",
        "Mul",
        "Pow",
        "ReduceMean",
        "Reshape",
        "Shape",
        "Slice",
    ),
    *("Softmax", "Sqrt", "Sub", "Tanh", "Transpose", "Unsqueeze", "Where"),
}

Field = tuple[int, int | memoryview]


@dataclass(frozen=True, slots=True)
class _Node:
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Stored:
    """One initializer. `values` are of the file, or of its message for the few that are spelled out."""

    shape: tuple[int, ...]
    values: np.ndarray


class OnnxTensors:
    """Implements `Tensors`. Raises UnsupportedModel for a graph that is not an encoder's, or for values of a kind
    that is not read, ArtifactError for a file that is no ONNX model or cut off."""

    def __init__(self, name: str, path: Path) -> None:
        self._name, self._path = name, path
        try:
            with path.open("rb") as file:
                data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            graph = next(value for number, value in _fields(data) if number == _MODEL_GRAPH)
            parts = [(number, value) for number, value in _fields(_message(graph))]
            nodes = [_node(_message(value)) for number, value in parts if number == _GRAPH_NODE]
            stored = dict(self._stored(_message(value)) for number, value in parts if number == _GRAPH_INITIALIZER)
        except (StopIteration, IndexError, ValueError) as error:
            raise ArtifactError(
                f"{path} is not an ONNX model, or is truncated ({str(error) or 'it has no graph'})"
            ) from error
        for node in nodes:
            if node.operator not in _OPERATORS:
                raise UnsupportedModel(name, f"an ONNX graph with the operator {node.operator}, which no BERT has")
        self._tensors = stored
        self._columns = self._matrices(nodes)

    def names(self) -> list[str]:
        return [self._columns.get(stem, stem) for stem in self._stems]

    def read(self) -> Iterator[tuple[str, np.ndarray]]:
        for stem in self._stems:
            values = self._values(stem)
            matrix = self._columns.get(stem)
            # A product of ONNX is x W, one of Hugging Face's files x Wᵀ.
            yield (stem, values) if matrix is None else (matrix, np.ascontiguousarray(values.T))

    def digest(self) -> str:
        content = ContentDigest(("onnx", sorted(self._columns.items())))
        for name, each in self._tensors.items():
            content.add(name, each.shape, each.values.dtype.str, each.values)
        return content.text()

    @cached_property
    def _stems(self) -> list[str]:
        """Every tensor's name, without what quantisation put behind it."""
        stems = [name.removesuffix("_quantized") for name in self._tensors]
        quantised = {stem for stem, name in zip(stems, self._tensors, strict=True) if stem != name}
        beside = {stem + suffix for stem in quantised for suffix in _QUANTIZED[1:]}
        return [stem for stem in stems if stem not in beside]

    def _values(self, stem: str) -> np.ndarray:
        whole = self._tensors.get(stem)
        if whole is not None:
            return whole.values.reshape(whole.shape).astype("<f4", copy=False)
        quantised, scale, zero = (self._tensors.get(stem + suffix) for suffix in _QUANTIZED)
        if quantised is None or scale is None or zero is None:
            raise ArtifactError(f"{self._path}: {stem} has no scale or no zero point")
        values = quantised.values.reshape(quantised.shape).astype(np.float32)
        values -= zero.values.astype(np.float32)
        values *= scale.values
        return values

    def _matrices(self, nodes: list[_Node]) -> dict[str, str]:
        """Stems of the weights of products → the names that their biases give them."""
        users: dict[str, list[_Node]] = {}
        for node in nodes:
            for each in node.inputs:
                users.setdefault(each, []).append(node)
        found = {}
        for node in nodes:
            if node.operator in _PRODUCTS and node.inputs[1] in self._tensors:
                stem = node.inputs[1].removesuffix("_quantized")
                bias = self._bias(node, users)
                found[stem] = stem if bias is None else bias.removesuffix(".bias") + ".weight"
        return found

    def _bias(self, product: _Node, users: dict[str, list[_Node]]) -> str | None:
        node = product
        for _ in range(_STEPS_TO_BIAS):
            after = users.get(node.outputs[0], [])
            if len(after) != 1:
                return None
            node = after[0]
            biases = [each for each in node.inputs if each in self._tensors and each.endswith(".bias")]
            if node.operator == "Add" and biases:
                return biases[0]
        return None

    def _stored(self, message: memoryview) -> tuple[str, _Stored]:
        name, kind, location = "", 0, 0
        shape: list[int] = []
        raw: memoryview | None = None
        floats: list[np.ndarray] = []
        ints: list[int] = []
        for number, value in _fields(message):
            if number == _NAME:
                name = bytes(_message(value)).decode()
            elif number == _DATA_TYPE:
                kind = _number(value)
            elif number == _LOCATION:
                location = _number(value)
            elif number == _DIMS:
                shape += [value] if isinstance(value, int) else _varints(value)
            elif number == _RAW:
                raw = _message(value)
            elif number == _FLOATS:
                floats.append(np.frombuffer(_message(value), "<f4"))
            elif number == _INT32S:
                ints += [value] if isinstance(value, int) else _varints(value)
        if location or kind not in _TYPES:
            what = "in another file" if location else f"of the ONNX data type {kind}"
            raise UnsupportedModel(self._name, f"weights {what} ({name})")
        if raw is not None:
            values = np.frombuffer(raw, _TYPES[kind])
        elif floats:
            values = np.concatenate(floats)
        else:  # a negative number is spelled as its 64-bit complement
            values = np.array([each - (1 << 64) if each >> 63 else each for each in ints]).astype(_TYPES[kind])
        if values.size != int(np.prod(shape, dtype=np.int64)):
            raise ArtifactError(f"{self._path} is truncated or damaged at {name}")
        return name, _Stored(tuple(shape), values)


def _node(message: memoryview) -> _Node:
    inputs, outputs, operator = [], [], ""
    for number, value in _fields(message):
        if number == _NODE_INPUT:
            inputs.append(bytes(_message(value)).decode())
        elif number == _NODE_OUTPUT:
            outputs.append(bytes(_message(value)).decode())
        elif number == _NODE_OPERATOR:
            operator = bytes(_message(value)).decode()
    return _Node(operator, tuple(inputs), tuple(outputs))


def _fields(message: memoryview) -> Iterator[Field]:
    """The fields of a protobuf message: (number, value). A value is a number (varints), or bytes (everything that
    has a length, and numbers of a fixed width)."""
    at, size = 0, len(message)
    while at < size:
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(message, at)
            yield number, value
            continue
        if wire not in (1, 2, 5):
            raise ValueError(f"a field of the wire type {wire}")
        length, at = (8 if wire == 1 else 4, at) if wire != 2 else _varint(message, at)
        if at + length > size:
            raise ValueError(f"field {number} ends after its message")
        yield number, message[at : at + length]
        at += length


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """The number at `at`, seven bits a byte and the lowest first, and where it ends."""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _varints(message: memoryview) -> list[int]:
    found, at = [], 0
    while at < len(message):
        value, at = _varint(message, at)
        found.append(value)
    return found


def _message(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number where a message should be")
    return value


def _number(value: int | memoryview) -> int:
    if not isinstance(value, int):
        raise ValueError("a message where a number should be")
    return value
