"""Two models that the runtime makes the same graph of have the same digest, and others have not."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from graphopt.runtime.sameness import digest_of_file, graph_digest

HEAD = '<ir_version: 9, opset_import: ["": 20]> g (float[N,3] x) => (float[N,3] y)'


def model(text: str) -> bytes:
    return onnx.parser.parse_model(f"{HEAD}{text}").SerializeToString()


PLAIN = model("<float[3] w = {1.0, 2.0, 3.0}> { a = Mul(x, w) y = Tanh(a) }")


@pytest.mark.parametrize(
    "other",
    [
        "<float[3] v = {1.0, 2.0, 3.0}> { q = Mul(x, v) y = Tanh(q) }",
        "<float[3] w = {1.0, 2.0, 3.0}> { i = Identity(x) a = Mul(i, w) y = Tanh(a) }",
        "<float[3] w = {1.0, 2.0, 3.0}> { [n] a = Mul(x, w) [t] y = Tanh(a) }",
    ],
)
def test_what_the_runtime_removes_and_names_do_not_count(other: str) -> None:
    assert graph_digest(PLAIN) == graph_digest(model(other)) != ""


@pytest.mark.parametrize(
    "other",
    [
        "<float[3] w = {1.0, 2.0, 4.0}> { a = Mul(x, w) y = Tanh(a) }",
        "<float[1,3] w = {1.0, 2.0, 3.0}> { a = Mul(x, w) y = Tanh(a) }",
        "<float[3] w = {1.0, 2.0, 3.0}> { a = Mul(w, x) y = Tanh(a) }",
        "<float[3] w = {1.0, 2.0, 3.0}> { a = Mul(x, w) y = Sigmoid(a) }",
        "<float[3] w = {1.0, 2.0, 3.0}> { a = Mul(x, w) b = Tanh(a) y = Tanh(b) }",
        "<float[3] w = {1.0, 2.0, 3.0}> { unread = Sin(x) a = Mul(x, w) y = Tanh(a) }",
    ],
)
def test_what_is_run_counts(other: str) -> None:
    assert graph_digest(PLAIN) != graph_digest(model(other)) != ""


def test_bodies_count_and_their_names_do_not(tmp_path: Path) -> None:
    def branch(inner: str, operator: str) -> str:
        text = f"""{HEAD} {{ c = Constant<value_int = 1>() d = Cast<to = 9>(c)
            y = If(d) <then_branch = t () => (float[N,3] {inner}) {{ {inner} = {operator}(x) }},
                       else_branch = e () => (float[N,3] z) {{ z = Neg(x) }}> }}"""
        path = tmp_path / "m.onnx"
        onnx.save(onnx.parser.parse_model(text), path)
        return digest_of_file(str(path))

    assert branch("p", "Sin") == branch("q", "Sin")
    assert branch("p", "Sin") != branch("p", "Cos")


def test_what_does_not_load_is_not_known() -> None:
    assert graph_digest(model("{ y = Nonsense(x) }")) == ""
    assert graph_digest(b"no model") == ""
