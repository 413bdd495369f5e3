"""A release's model as an ONNX graph: the arithmetic of loader.py in standard operators, for programs without Python.

Input `x`: records in their declared ranges, float32, one a row. Output `scores`: one a label, as `loader.py` gives
them up to rounding.
"""

from __future__ import annotations

import math
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from l2dp.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor

    from l2dp.store.loader import Model

OPSET = 17
FORMAT = 8
"""The version of ONNX's own format that came with that set of operators: older programs read it too."""


def onnx_bytes(tensors: dict[str, Tensor], about: dict[str, Any]) -> bytes:
    """The graph of a release, from its tensors and its release.json.

    Guarantee
    ---------
    A function of what the release holds anyway (post-processing).
    """
    try:
        import onnx
    except ImportError as error:
        raise BadInput("--onnx needs the package onnx; pip install 'l2dp[onnx]'") from error
    options = about["options"]
    if about["learner"] != "private-replay":
        raise BadInput(f"the model of {about['learner']} has no ONNX form here; release it without --onnx")
    if options.get("features", "pixels") != "pixels" or options.get("project", "none").lower() != "none":
        raise BadInput("a model over a feature map has no ONNX form here; release it without --onnx")
    from l2dp.store.loader import Model

    model = Model(tensors, about)
    shape = about["schema"]["shape"]
    graph = _Graph(onnx)
    (_student if model.network is not None else _experts)(graph, model, _features(graph, model))
    made = onnx.helper.make_model(
        onnx.helper.make_graph(
            graph.nodes,
            "release",
            [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["records", *shape])],
            [onnx.helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, ["records", len(model.labels)])],
            graph.constants,
        ),
        producer_name="l2dp",
        producer_version=version("l2dp"),
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=FORMAT,
    )
    onnx.checker.check_model(made, full_check=True)
    return bytes(made.SerializeToString())


class _Graph:
    """Nodes one after the other; every call gives the name of its result."""

    def __init__(self, onnx: Any) -> None:
        self._onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, values: Any) -> str:
        array = np.ascontiguousarray(values)
        name = f"constant {len(self.constants)}"
        self.constants.append(self._onnx.numpy_helper.from_array(array, name))
        return name

    def __call__(self, operator: str, *inputs: Any, out: str | None = None, **attributes: Any) -> str:
        """One node; inputs that are no names become constants."""
        name = out or f"{operator} {len(self.nodes)}"
        names = [one if isinstance(one, str) else self.constant(one) for one in inputs]
        self.nodes.append(self._onnx.helper.make_node(operator, names, [name], **attributes))
        return name

    def unit(self, rows: str) -> str:
        norms = self("ReduceL2", rows, axes=[1], keepdims=1)
        return self("Div", rows, self("Max", norms, np.float32(1e-9)))

    def cast(self, values: str, kind: str) -> str:
        return self("Cast", values, to=getattr(self._onnx.TensorProto, kind))


def _features(graph: _Graph, model: Model) -> str:
    low, high = (side.double().numpy() for side in (model.low, model.high))
    rows = graph.cast(graph("Flatten", "x", axis=1), "DOUBLE")
    return graph.unit(graph.cast(graph("Div", graph("Sub", rows, low), high - low), "FLOAT"))


def _student(graph: _Graph, model: Model, features: str) -> None:
    assert model.network is not None
    weights = list(model.network.parameters())
    rows = graph("Mul", features, np.float32(math.sqrt(model.width) / 3))
    for place in range(0, len(weights), 2):
        last = place == len(weights) - 2
        weight, bias = (weights[at].detach().numpy() for at in (place, place + 1))
        rows = graph("Gemm", rows, weight, bias, transB=1, out="scores" if last else None)
        if not last:
            rows = graph("Relu", rows)


def _experts(graph: _Graph, model: Model, features: str) -> None:
    from l2dp.store.loader import FAR

    labels = len(model.labels)
    near = graph("Sub", graph("MatMul", features, model.directions.numpy()), model.offsets.numpy())
    # The best of each label's own means: gathered side by side, with a column of -inf where a label has fewer.
    nowhere = len(model.own)
    places = [np.flatnonzero(model.own.numpy() == label) for label in range(labels)]
    most = max(map(len, places))
    side = np.full((labels, most), nowhere)
    for label, found in enumerate(places):
        side[label, : len(found)] = found
    wide = graph("Pad", near, np.array([0, 0, 0, 1]), np.float32(-np.inf))
    best = graph("ReduceMax", graph("Gather", wide, side, axis=1), axes=[2], keepdims=0)
    least = graph("Sub", graph("ReduceMin", near, axes=[1], keepdims=1), np.float32(1))
    heads = model.heads
    best = graph("Where", graph("IsInf", best), least, best, out=None if heads else "scores")
    if not heads:
        return
    task = graph("Gather", model.owners.numpy(), graph("ArgMax", near, axis=1, keepdims=0))
    inside = graph.unit(graph("Sub", features, graph("Gather", model.centres.numpy(), task)))
    answers = [_heads(graph, inside, [None if up else head for head, up in _pairs(model)], task)]
    if bool(model.lifted.any()):
        lifted = graph("Relu", graph("MatMul", inside, model.lift.numpy()))
        lifted = graph.unit(graph("Sub", lifted, np.float32(1 / math.sqrt(2 * math.pi))))
        answers.append(_heads(graph, lifted, [head if up else None for head, up in _pairs(model)], task))
    parts = [answer for answer in answers if answer is not None]
    inner = parts[0] if len(parts) == 1 else graph("Add", *parts)
    padding = np.where(model.places.numpy() == labels, np.float32(-np.inf), np.float32(0))
    inner = graph("LogSoftmax", graph("Add", inner, graph("Gather", padding, task)), axis=1)
    outer = graph("Sub", graph("LogSoftmax", best, axis=1), np.float32(FAR))
    outer = graph("Pad", outer, np.array([0, 0, 0, 1]), np.float32(0))
    scores = graph("ScatterElements", outer, graph("Gather", model.places.numpy(), task), inner, axis=1)
    graph("Slice", scores, np.array([0]), np.array([labels]), np.array([1]), out="scores")


def _pairs(model: Model) -> list[tuple[np.ndarray, bool]]:
    return [(head.numpy(), bool(up)) for head, up in zip(model.heads, model.lifted, strict=True)]


def _heads(graph: _Graph, rows: str, heads: list[np.ndarray | None], task: str) -> str | None:
    """Every row through the head of its task; a task without one here adds nothing."""
    there = [head for head in heads if head is not None]
    if not there:
        return None
    stack = np.stack([np.zeros_like(there[0]) if head is None else head for head in heads])
    answers = graph("MatMul", graph("Unsqueeze", rows, np.array([1])), graph("Gather", stack, task))
    return graph("Squeeze", answers, np.array([1]))
