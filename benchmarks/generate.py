"""Generate a model of any size with the mix of waste that exporters leave: seeded, the same bytes every time.

    python benchmarks/generate.py 10000 OUT.onnx [--seed 0]

The graph is a long residual chain on `[batch, 8, 16]`. Each block is drawn from a weighted list: plain work (Relu, Add,
Mul, Tanh, MatMul), and work that need not be there (Transposes that cancel or merge, Identity and Cast that change
nothing, constants to fold, equal expressions, shape arithmetic before a Reshape, nodes nobody uses).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

CHANNELS, WIDTH = 8, 16


class Chain:
    """A growing graph; `x` is the name of the current value, `[batch, 8, 16]`."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.RandomState(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.declared: list[onnx.ValueInfoProto] = []
        self.x = "x"
        self.kept = ["x"]
        self.weights = [self.floats(WIDTH, WIDTH, scale=WIDTH**-0.5) for _ in range(4)]
        self.vectors = [self.floats(WIDTH) for _ in range(8)]
        self.index = {number: self.constant(np.array(number, np.int64)) for number in (0, 1)}
        self.axes = self.constant(np.array([0], np.int64))
        self.flat = self.constant(np.array([CHANNELS * WIDTH], np.int64))
        self.tail = self.constant(np.array([CHANNELS, WIDTH], np.int64))

    def constant(self, array: npt.NDArray[np.generic]) -> str:
        """Add an initializer."""
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def floats(self, *shape: int, scale: float = 0.1) -> str:
        """Add an initializer of normal numbers."""
        return self.constant((scale * self.random.standard_normal(shape)).astype(np.float32))

    def node(self, op_type: str, *operands: str, **attributes: Any) -> str:
        """Add a node; return the name of its result."""
        name = f"n{len(self.nodes)}"
        result = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(operands), [result], name=name, **attributes))
        return result

    def reshape(self, x: str, shape: str, declared: list[str | int | None]) -> str:
        """Add a Reshape and declare its result's shape, as exporters do.

        Without it ONNX Runtime's memory planner sees thousands of values of unknown size and takes minutes to load
        the model, whoever optimized it.
        """
        y = self.node("Reshape", x, shape)
        self.declared.append(helper.make_tensor_value_info(y, TensorProto.FLOAT, declared))
        return y

    def pick(self, names: list[str]) -> str:
        """Pick one of some names."""
        return names[self.random.randint(len(names))]


def relu(c: Chain) -> None:
    """Add a bias and a Relu."""
    c.x = c.node("Relu", c.node("Add", c.x, c.pick(c.vectors)))


def gate(c: Chain) -> None:
    """Scale by a bounded function of the value itself."""
    c.x = c.node("Mul", c.x, c.node("Sigmoid", c.x))


def projection(c: Chain) -> None:
    """Multiply by a weight and stay bounded."""
    c.x = c.node("Tanh", c.node("MatMul", c.x, c.pick(c.weights)))


def shortcut(c: Chain) -> None:
    """Add an earlier value."""
    c.x = c.node("Tanh", c.node("Add", c.x, c.pick(c.kept[-6:])))
    c.kept.append(c.x)


def cancelling_transposes(c: Chain) -> None:
    """Transpose there and back around an elementwise node."""
    there = c.node("Transpose", c.x, perm=[0, 2, 1])
    c.x = c.node("Transpose", c.node("Relu", there), perm=[0, 2, 1])


def merging_transposes(c: Chain) -> None:
    """Three transposes that are one, and the one back."""
    y = c.node("Transpose", c.node("Transpose", c.x, perm=[1, 0, 2]), perm=[1, 2, 0])
    c.x = c.node("Transpose", c.node("Sigmoid", y), perm=[0, 2, 1])


def identities(c: Chain) -> None:
    """Nodes that change nothing."""
    c.x = c.node("Identity", c.node("Cast", c.node("Identity", c.x), to=TensorProto.FLOAT))


def constants(c: Chain) -> None:
    """Compute a bias from constants."""
    product = c.node("Mul", c.pick(c.vectors), c.pick(c.vectors))
    c.x = c.node("Add", c.x, c.node("Tanh", c.node("Add", product, c.floats(WIDTH))))


def duplicates(c: Chain) -> None:
    """Compute the same thing twice and use both."""
    weight = c.pick(c.weights)
    first, second = (c.node("Tanh", c.node("MatMul", c.x, weight)) for _ in range(2))
    c.x = c.node("Mul", first, second)


def shape_arithmetic(c: Chain) -> None:
    """Flatten and unflatten with sizes that are read at run time."""

    def batch() -> str:
        return c.node("Unsqueeze", c.node("Gather", c.node("Shape", c.x), c.index[0], axis=0), c.axes)

    flat = c.reshape(c.x, c.node("Concat", batch(), c.flat, axis=0), ["batch", CHANNELS * WIDTH])
    c.x = c.reshape(flat, c.node("Concat", batch(), c.tail, axis=0), ["batch", CHANNELS, WIDTH])


def dead(c: Chain) -> None:
    """Compute something that nobody uses."""
    c.node("Exp", c.node("Neg", c.x))


# Each block with the nodes it adds and how often it is drawn.
BLOCKS: tuple[tuple[Callable[[Chain], None], int, int], ...] = (
    (relu, 2, 6),
    (gate, 2, 2),
    (projection, 2, 4),
    (shortcut, 2, 3),
    (cancelling_transposes, 3, 2),
    (merging_transposes, 4, 1),
    (identities, 3, 2),
    (constants, 4, 2),
    (duplicates, 5, 1),
    (shape_arithmetic, 10, 1),
    (dead, 2, 1),
)


def generate(nodes: int, seed: int = 0) -> onnx.ModelProto:
    """Generate a model with exactly that many nodes.

    Args:
        nodes: How many nodes; at least 1.
        seed: Another seed is another graph.
    """
    if nodes < 1:
        raise ValueError(f"a model of {nodes} nodes cannot be generated: ask for 1 or more")
    chain = Chain(seed)
    weights = np.array([weight for _, _, weight in BLOCKS], np.float64)
    cumulative = np.cumsum(weights / weights.sum())
    while len(chain.nodes) < nodes - 1:
        block, size, _ = BLOCKS[int(np.searchsorted(cumulative, chain.random.random_sample(), side="right"))]
        if size <= nodes - 1 - len(chain.nodes):
            block(chain)
        else:
            chain.x = chain.node("Relu", chain.x)
    chain.nodes.append(helper.make_node("Tanh", [chain.x], ["y"], name=f"n{len(chain.nodes)}"))
    shape: list[str | int | None] = ["batch", CHANNELS, WIDTH]
    graph = helper.make_graph(
        chain.nodes,
        f"generated_{nodes}",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        chain.initializers,
        value_info=chain.declared,
    )
    opset = helper.make_opsetid("", 17)
    return helper.make_model(
        graph, opset_imports=[opset], ir_version=8, producer_name="graphopt benchmarks/generate.py"
    )


def main() -> None:
    """Write one generated model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nodes", type=int)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    onnx.save(generate(options.nodes, options.seed), options.out)
    print(f"{options.out}: {options.nodes} nodes, {options.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
