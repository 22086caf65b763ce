"""Bodies that return what they were given: the runtime wants an Identity where it would hand out memory of its own."""

from __future__ import annotations

import numpy as np
import pytest
from pass_runs import assert_equal, floats, model_of, run

import graphopt
from graphopt.onnxio import to_proto
from passes import identities, pruning

SCANS = {
    "element": "o = Add(s, i)  q = Identity(i)",
    "state": "o = Add(s, i)  q = Identity(s)",
    "reshaped": "o = Add(s, i)  h = Shape(i)  q = Reshape(i, h)",
    "kept state": "o = Identity(s)  q = Identity(i)",
}


@pytest.mark.parametrize("body", SCANS.values(), ids=SCANS)
def test_a_scan(body: str) -> None:
    model = model_of(
        f"""g (float[3,2] a, float[2] z) => (float[2] r, float[3,2] y) {{
            r, y = Scan<num_scan_inputs = 1,
                body = b (float[2] s, float[2] i) => (float[2] o, float[2] q) {{ {body} }}>(z, a) }}"""
    )
    feeds = [{"a": floats(3, 2, seed=seed), "z": floats(2, seed=seed)} for seed in range(3)]
    assert_equal(model, to_proto(graphopt.optimize(model, level="exact", strict=True).graph), feeds)


@pytest.mark.parametrize(
    "body",
    ["co = Identity(c)  o = Neg(s)  p = Identity(n)", "co = Identity(c)  o = Identity(s)  p = Identity(n)"],
)
def test_the_counter_of_a_loop(body: str) -> None:
    model = model_of(
        f"""g (float[2] x) => (float[2] r, int64[3] y) <int64 m = {{3}}> {{
            r, y = Loop(m, "", x)
                <body = b (int64 n, bool c, float[2] s) => (bool co, float[2] o, int64 p) {{ {body} }}>
        }}"""
    )
    assert_equal(model, to_proto(graphopt.optimize(model, level="exact", strict=True).graph), [{"x": floats(2)}])


def test_what_a_file_returns_directly_stays_as_read() -> None:
    model = model_of(
        """g (float[3,2] a, float[2] z) => (float[2] r, float[3,2] y) {
            r, y = Scan<num_scan_inputs = 1,
                body = b (float[2] s, float[2] i) => (float[2] o, float[2] i) { o = Add(s, i) }>(z, a) }"""
    )
    assert run(model, identities).graph.node[0].attribute == model.graph.node[0].attribute


def test_a_loop_of_one_trip_whose_condition_is_also_a_result() -> None:
    model = model_of(
        """g (bool c) => (bool y) <int64 m = {1}> {
            y = Loop(m, "", c)
                <body = b (int64 i, bool ci, bool s) => (bool co, bool r) { r = Not(s)  co = Identity(r) }>
        }"""
    )
    for value in (True, False):
        assert_equal(model, run(model, pruning), [{"c": np.array(value)}])
