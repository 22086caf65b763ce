"""Values inside both models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from runtime_models import conv_bn, linear, text_model

from graphopt import optimize
from graphopt.onnxio import load
from graphopt.runtime import verify
from graphopt.runtime.inside import changed_constants, choose
from graphopt.runtime.worker import Worker

HIDDEN = 64
FACTOR = 1e-5


def deep(layers: int = 12, change: Callable[[dict[str, np.ndarray]], None] | None = None) -> bytes:
    """Layers with a residual and a normalization; the last gives one number a row, so that little is left of it."""
    rng = np.random.default_rng(1)
    weights: dict[str, np.ndarray] = {"gain": np.ones(HIDDEN, np.float32), "shift": np.zeros(HIDDEN, np.float32)}
    lines, name = [], "x"
    for layer in range(layers):
        for part in ("up", "down"):
            values = rng.standard_normal((HIDDEN, HIDDEN)) / np.sqrt(HIDDEN)
            weights[f"{part}{layer}"] = values.astype(np.float32)
        lines.append(
            f"u{layer} = MatMul({name}, up{layer}) t{layer} = Tanh(u{layer}) d{layer} = MatMul(t{layer}, down{layer})"
            f" s{layer} = Add({name}, d{layer}) n{layer} = LayerNormalization(s{layer}, gain, shift)"
        )
        name = f"n{layer}"
    weights["last"] = (rng.standard_normal((HIDDEN, 1)) / 8).astype(np.float32)
    text = f"(float[N, {HIDDEN}] x) => (float[N, 1] y) {{ {' '.join(lines)} y = MatMul({name}, last) }}"
    model = onnx.ModelProto.FromString(text_model(text))
    if change is not None:
        change(weights)
    model.graph.initializer.extend(numpy_helper.from_array(array, key) for key, array in weights.items())
    return model.SerializeToString()


def whole(weights: dict[str, np.ndarray]) -> None:
    weights["up5"] *= np.float32(1.001)


def block(weights: dict[str, np.ndarray]) -> None:
    weights["up5"][8:12, 16:32] *= np.float32(1.001)


def element(weights: dict[str, np.ndarray]) -> None:
    typical = np.argmin(np.abs(np.abs(weights["up2"]) - 1 / np.sqrt(HIDDEN)))
    weights["up2"].reshape(-1)[typical] *= np.float32(1.001)


@pytest.mark.parametrize("change", [whole, block, element])
def test_a_weight_that_is_off_by_a_thousandth_is_seen_in_twelve_layers(
    change: Callable[[dict[str, np.ndarray]], None], worker: Worker
) -> None:
    result = verify(deep(), deep(change=change), provider="cpu", worker=worker)
    assert result.verdict == "different"


def test_what_the_output_hides_is_seen_inside(worker: Worker) -> None:
    def change(weights: dict[str, np.ndarray]) -> None:
        weights["up2"][3, 5] *= np.float32(1.0003)

    result = verify(deep(), deep(change=change), provider="cpu", worker=worker)
    assert result.verdict == "different"
    assert "'u2' inside the model" in result.reason
    assert all(output.verdict == "equal" for output in result.outputs)
    off = {item.name: item for item in result.inner if item.verdict == "different"}
    assert off["u2"].tolerance is not None
    assert off["u2"].error > 2 * off["u2"].tolerance


def test_an_optimized_model_is_equal_inside_too(worker: Worker) -> None:
    for original in (conv_bn(), deep(4)):
        proto = onnx.ModelProto.FromString(original)
        result = verify(original, optimize(proto).model, provider="cpu", worker=worker)
        assert result.verdict == "equal", result.reason
    folded = verify(conv_bn(), conv_bn(folded=True), provider="cpu", worker=worker)
    assert folded.verdict == "equal"
    assert folded.inner
    assert all(item.verdict == "equal" for item in folded.inner)


def test_a_name_that_means_another_thing_is_no_fault(worker: Worker) -> None:
    text = "(float[N, 16] x, float[16, 32] a, float[32, 4] b) => (float[N, 4] y) {{ h = MatMul(x, a) r = Relu(h) {} }}"

    def model(scale: float) -> bytes:
        proto = onnx.ModelProto.FromString(text_model(text.format("y = MatMul(r, b)")))
        del proto.graph.input[1:]
        rng = np.random.default_rng(0)
        first = (rng.standard_normal((16, 32)) * scale).astype(np.float32)
        second = (rng.standard_normal((32, 4)) / scale).astype(np.float32)
        proto.graph.initializer.extend([numpy_helper.from_array(first, "a"), numpy_helper.from_array(second, "b")])
        return proto.SerializeToString()

    for scale in (3.0, 1.003):  # weights equalized over two layers: the values between them change, and nothing else
        result = verify(model(1.0), model(scale), provider="cpu", worker=worker)
        assert result.verdict == "equal", result.reason


def test_a_value_that_matters_to_no_output_is_no_fault(worker: Worker) -> None:
    text = (
        "(float[N, 8] x) => (float[N, 8] y) {{ c = Constant<value = float {{{}}}>() z = Constant<value = float {{0}}>()"
        " h = Mul(x, c) a = Abs(h) m = Mul(a, z) e = Exp(x) y = Add(e, m) }}"
    )
    result = verify(text_model(text.format("1")), text_model(text.format("1.001")), provider="cpu", worker=worker)
    assert result.verdict == "not verified"
    assert "no output at any feed depends on what differs" in result.reason


def test_an_operator_alone_shows_what_noise_before_it_hides(worker: Worker) -> None:
    """The rewritten model has rounding of its own in front, and one element wrong in the last weight."""

    def model(before: str, factor: float) -> bytes:
        def change(weights: dict[str, np.ndarray]) -> None:
            weights["last"][7] *= np.float32(factor)

        proto = onnx.ModelProto.FromString(deep(8, change))
        front = onnx.ModelProto.FromString(
            text_model(f"(float[N, {HIDDEN}] x) => (float[N, {HIDDEN}] z) {{ {before} }}")
        )
        for node in proto.graph.node:
            node.input[:] = ["z" if name == "x" else name for name in node.input]
        layers = list(proto.graph.node)
        del proto.graph.node[:]
        proto.graph.node.extend([*front.graph.node, *layers])
        return proto.SerializeToString()

    twice = "a = Constant<value = float {0.3}>() b = Constant<value = float {0.7}>() m = Mul(x, a) z = Mul(m, b)"
    once = "a = Constant<value = float {0.21}>() z = Mul(x, a)"
    assert verify(model(twice, 1), model(once, 1), provider="cpu", worker=worker).verdict == "equal"
    result = verify(model(twice, 1), model(once, 1 + FACTOR), provider="cpu", worker=worker)
    assert result.verdict == "different"
    assert "the weight 'last' is wrong" in result.reason


def test_changed_weights_are_where_to_look() -> None:
    left, right = load(deep()), load(deep(change=element))
    suspects = changed_constants(left, right)
    assert {value.name: same for value, same in suspects.items()} == {"up2": True}
    names = choose(left, right, suspects)
    assert "u2" in names
    assert 8 < len(names) <= 16
    assert not changed_constants(left, load(deep()))


def test_a_change_that_no_feed_reads_is_not_verified(worker: Worker) -> None:
    def table(factor: float) -> bytes:
        proto = onnx.ModelProto.FromString(
            text_model("(int64[N] x, float[1000, 4] t) => (float[N, 4] y) { g = Gather(t, x) y = Neg(g) }")
        )
        del proto.graph.input[1:]
        rows = np.random.default_rng(0).standard_normal((1000, 4)).astype(np.float32)
        rows[517] *= np.float32(factor)
        proto.graph.initializer.append(numpy_helper.from_array(rows, "t"))
        return proto.SerializeToString()

    result = verify(table(1), table(1.001), provider="cpu", ranges={"x": (0, 9)}, worker=worker)
    assert result.verdict == "not verified"
    assert "'t' has other bytes" in result.reason
    assert verify(table(1), table(1.001), provider="cpu", worker=worker).verdict == "different"


def test_with_weights_in_a_file(tmp_path: Path, worker: Worker) -> None:
    paths = []
    for name, data in (("one", deep()), ("two", deep(change=element))):
        path = tmp_path / name / "model.onnx"
        path.parent.mkdir()
        proto = onnx.ModelProto.FromString(data)
        onnx.save(proto, path, save_as_external_data=True, location="model.data", size_threshold=0)
        paths.append(path)
    result = verify(*paths, provider="cpu", worker=worker)
    assert result.verdict == "different"
    assert not any("not compared" in note for note in result.notes)


def test_a_tolerance_of_the_users_is_for_outputs(worker: Worker) -> None:
    result = verify(linear(), linear(factor=1.001), rtol=0.01, provider="cpu", worker=worker)
    assert result.verdict == "equal"
    assert not result.inner


@pytest.mark.gpu
def test_the_same_on_cuda(cuda: str, worker: Worker) -> None:
    assert verify(deep(), deep(change=element), provider=cuda, worker=worker).verdict == "different"
    optimized = optimize(onnx.ModelProto.FromString(conv_bn())).model
    result = verify(conv_bn(), optimized, provider=cuda, worker=worker)
    assert result.verdict == "equal", result.reason
