"""A pass over the whole graph: LeakyRelu with slope 0 is Relu."""

from __future__ import annotations

from graphopt import Context, Graph, graph_pass


@graph_pass(
    before="(float[2] x) => (float[2] y) { y = LeakyRelu<alpha=0.0>(x) }",
    after="(float[2] x) => (float[2] y) { y = Relu(x) }",
    unless=["(float[2] x) => (float[2] y) { y = LeakyRelu<alpha=0.1>(x) }"],
    numeric="D",
)
def leaky_without_leak(graph: Graph, context: Context) -> None:
    """LeakyRelu whose slope is zero is Relu, but for infinities and NaN."""
    for node in graph.of_kind("LeakyRelu"):
        if node.param("alpha") == 0.0:
            builder = context.builder(graph)
            context.replace(node.result, builder.Relu(node.operands[0]), builder)
