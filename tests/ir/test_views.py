from __future__ import annotations

import io
import json

import networkx as nx
import pytest
from ir_graphs import add, empty, find, floats, nested

from graphopt.errors import EditError

MUTATIONS = {
    "add_node": lambda view, node: view.add_node(node),
    "add_nodes_from": lambda view, node: view.add_nodes_from([node]),
    "remove_node": lambda view, node: view.remove_node(node),
    "remove_nodes_from": lambda view, node: view.remove_nodes_from([node]),
    "add_edge": lambda view, node: view.add_edge(node, node),
    "add_edges_from": lambda view, node: view.add_edges_from([(node, node)]),
    "add_weighted_edges_from": lambda view, node: view.add_weighted_edges_from([(node, node, 1)]),
    "remove_edge": lambda view, node: view.remove_edge(node, node),
    "remove_edges_from": lambda view, node: view.remove_edges_from([(node, node)]),
    "clear": lambda view, node: view.clear(),
    "clear_edges": lambda view, node: view.clear_edges(),
    "update": lambda view, node: view.update([(node, node)]),
    "relabel": lambda view, node: nx.relabel_nodes(view, {node: 1}, copy=False),
    "contract": lambda view, node: nx.contracted_nodes(view, node, node, copy=False),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_view_names_the_edits_to_use(mutation: str) -> None:
    graph = nested()
    node = graph.nodes()[0]
    edges = graph.nx.number_of_edges()
    with pytest.raises(EditError, match="use the edits of Graph: insert, erase, set_operand"):
        MUTATIONS[mutation](graph.nx, node)
    assert graph.nx.number_of_edges() == edges


def test_every_method_that_networkx_itself_calls_a_change_is_refused() -> None:
    from networkx.classes.function import frozen

    graph = nested()
    changes = [name for name, item in vars(nx.freeze(nx.MultiDiGraph())).items() if item is frozen]
    assert {"add_node", "clear", "remove_edge"} <= set(changes)
    for name in changes:
        with pytest.raises(EditError):
            getattr(graph.nx, name)()


def test_the_view_is_live_and_any_algorithm_runs() -> None:
    graph = empty()
    x = floats(graph)
    view = graph.nx
    y = add(graph, "Relu", x)
    graph.set_outputs([add(graph, "Neg", y)])
    assert y.producer in view
    assert nx.is_directed_acyclic_graph(view)
    assert [node.op_type for node in nx.descendants(view, y.producer) if node.op_type] == ["Neg"]
    assert nx.dag_longest_path_length(view) == 3
    assert view.subgraph([x.producer, y.producer]).number_of_edges() == 1
    assert nx.immediate_dominators(view, x.producer)[graph.return_node].op_type == "Neg"
    reverse = view.reverse(copy=False)
    assert reverse.has_edge(y.producer, x.producer)


def test_a_copy_of_the_view_is_the_users_own() -> None:
    graph = nested()
    copy = graph.nx.copy()
    copy.remove_node(graph.nodes()[0])
    assert len(copy) == len(graph.nx) - 1


def test_the_plain_copy_describes_nodes_and_edges() -> None:
    graph = nested()
    copy = graph.to_networkx()
    relu, owner = find(graph, "a").producer, find(graph, "b").producer
    assert copy.nodes[relu.serial] == {
        "kind": "operator", "op": "Relu", "domain": "", "name": "a", "scope": "main", "dtype": "", "shape": "",
    }  # fmt: skip
    x = find(graph, "x").producer
    assert copy.nodes[x.serial]["shape"] == "2"
    assert copy.nodes[x.serial]["dtype"] == "float"
    assert copy.number_of_edges() == graph.use_count
    between = copy.get_edge_data(relu.serial, owner.serial).values()
    assert sorted((edge["value"], edge["operand"]) for edge in between) == [("a", 0), ("a", 0), ("a", 1)]


def test_the_plain_copy_can_be_written() -> None:
    copy = nested().to_networkx()
    buffer = io.BytesIO()
    nx.write_graphml(copy, buffer)
    assert len(nx.read_graphml(io.BytesIO(buffer.getvalue()), node_type=int, force_multigraph=True)) == len(copy)
    document = json.loads(json.dumps(nx.node_link_data(copy, edges="edges")))
    assert nx.node_link_graph(document, edges="edges").number_of_edges() == copy.number_of_edges()
    assert len(list(nx.generate_gml(copy))) > len(copy)


def test_the_plain_copy_can_be_matched_by_operator() -> None:
    copy = nested().to_networkx()
    wanted: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    wanted.add_node("first", op="F")
    wanted.add_node("then", op="Add")
    wanted.add_edge("first", "then")
    matcher = nx.isomorphism.MultiDiGraphMatcher(copy, wanted, node_match=lambda left, right: left["op"] == right["op"])
    assert [sorted(found.values()) for found in matcher.subgraph_isomorphisms_iter()] == [["first", "then"]]


def test_symbolic_dims_show_as_text() -> None:
    from onnx import parser

    from graphopt.onnxio import load

    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[batch, 3] x, float[] u, float s) => (y) { y = Relu(x) }'
    )
    shapes = [data["shape"] for _, data in load(model).to_networkx().nodes(data=True) if data["kind"] == "input"]
    assert shapes == ["batch,3", "", ""]
