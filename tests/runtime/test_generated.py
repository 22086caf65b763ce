from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from runtime_models import CHECKOUT, text_model

from graphopt.errors import GraphoptError
from graphopt.runtime import tolerance, verify
from graphopt.runtime.evidence import Evidence
from graphopt.runtime.feeds import FeedOptions
from graphopt.runtime.generated import GenerationFailedError, compare_generation
from graphopt.runtime.scores import Scores, find_scores, next_tokens, token_fault
from graphopt.runtime.session import Port
from graphopt.runtime.sources import ModelSource
from graphopt.runtime.tally import Yardstick
from graphopt.runtime.worker import shared_worker

DECODER = CHECKOUT / "models" / "decoder.onnx"


def weights(model: onnx.ModelProto, **arrays: np.ndarray[Any, Any]) -> None:
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())


def small(kind: str = "float", body: str = "", tokens: str = "S") -> bytes:
    """A table of 12 tokens, one cache [B, 1, P, 4], scores over the tokens from the sum of what is cached."""
    model = onnx.ModelProto.FromString(
        text_model(
            f"(int64[B, {tokens}] input_ids, {kind}[B, 1, P, 4] past_key_0)"
            f" => ({kind}[B, {tokens}, 12] logits, {kind}[B, 1, Q, 4] present_key_0)"
            "{ e = Gather(table, input_ids) one = Constant<value_ints = [1]>() u = Unsqueeze(e, one)"
            " joined = Concat<axis = 2>(past_key_0, u)" + (body or " present_key_0 = Identity(joined)") + " "
            "two = Constant<value_ints = [2]>() mean = ReduceMean<keepdims = 0>(joined, two)"
            " seen = Add(e, mean) bent = Tanh(seen) logits = MatMul(bent, head) }"
        )
    )
    dtype = {"float": np.float32, "float16": np.float16}[kind]
    rng = np.random.default_rng(3)
    weights(model, table=rng.standard_normal((12, 4)).astype(dtype), head=rng.standard_normal((4, 12)).astype(dtype))
    return model.SerializeToString()


def generate(original: bytes, rewritten: bytes, steps: int = 6, yardstick: Yardstick | None = None) -> Any:
    """The comparison along a generation alone, without what other inputs would show."""
    sources = [ModelSource(label, data=data) for label, data in (("a", original), ("b", rewritten))]
    evidence = Evidence(*sources, shared_worker(), FeedOptions(runs=1), (), 60.0)
    evidence.run_original(None, None)
    return compare_generation(evidence, yardstick or Yardstick(), steps)


def test_a_decoder_is_compared_as_it_is_used() -> None:
    result = verify(DECODER, DECODER, runs=1)
    assert result.verdict == "equal"
    assert result.reason.endswith("and over 8 generated tokens")
    found = result.generation
    assert found is not None
    assert (found.steps, found.prompt, found.prefill, found.chunk, found.caches) == (8, 8, True, 3, 4)
    assert found.greedy
    assert found.tokens_equal
    assert found.identical
    assert len(found.tokens) == 8
    assert result.to_json()["generation"]["tokens"] == [list(step) for step in found.tokens]


def test_it_can_be_left_out() -> None:
    assert verify(DECODER, DECODER, runs=1, decode=0).generation is None
    few = verify(DECODER, DECODER, runs=1, decode=2).generation
    assert few is not None
    assert few.steps == 2


@pytest.mark.parametrize(
    "body",
    [
        " present_key_0 = Identity(past_key_0)",
        # One place further back: what is newest is overwritten by the first.
        " end = Constant<value_ints = [-1]>() far = Constant<value_ints = [10000]>() nil = Constant<value_ints = [0]>()"
        " ax = Constant<value_ints = [2]>() tail = Slice(joined, end, far, ax) rest = Slice(joined, nil, end, ax)"
        " present_key_0 = Concat<axis = 2>(tail, rest)",
    ],
    ids=["untouched", "shifted"],
)
def test_a_wrong_cache_is_different(body: str) -> None:
    found = generate(small(), small(body=body))
    assert "present_key_0" in found.fault
    assert verify(small(), small(body=body)).verdict == "different"


def test_what_goes_wrong_after_some_tokens_only_is_found() -> None:
    """No single run shows it: made inputs have other lengths."""
    late = (
        " present_key_0 = Identity(joined)"
        " length = Shape<start = 2, end = 3>(past_key_0) limit = Constant<value_ints = [17]>()"
        " over = Equal(length, limit) wrong = Cast<to = 1>(over)"
    )
    model = onnx.ModelProto.FromString(small(body=late))
    head = model.graph.node[-1]
    head.output[0] = "scores"
    model.graph.node.append(onnx.helper.make_node("Add", ["scores", "wrong"], ["logits"]))
    wrong = model.SerializeToString()
    assert verify(small(), wrong, decode=0).verdict == "equal"
    result = verify(small(), wrong)
    assert result.verdict == "different"
    assert "of a generation" in result.reason
    assert result.generation is not None
    assert result.generation.fault == result.reason


def test_a_model_that_does_not_generate_is_different() -> None:
    body = (
        " present_key_0 = Identity(joined) few = Constant<value_ints = [1, 1, 9, 4]>() same = Reshape(past_key_0, few)"
    )
    original = small()
    broken = onnx.ModelProto.FromString(small(body=body))
    broken.graph.node[-1].output[0] = "scores"
    broken.graph.node.append(onnx.helper.make_node("ReduceSum", ["same"], ["none"], keepdims=0))
    broken.graph.node.append(onnx.helper.make_node("Mul", ["none", "nothing"], ["zero"]))
    broken.graph.node.append(onnx.helper.make_node("Add", ["scores", "zero"], ["logits"]))
    weights(broken, nothing=np.zeros((), np.float32))
    with pytest.raises(GenerationFailedError, match="the rewritten model does not"):
        generate(original, broken.SerializeToString())


def test_float16_caches_and_models_that_only_step() -> None:
    assert generate(small("float16"), small("float16")).identical
    found = generate(small(tokens="1"), small(tokens="1"))
    assert not found.prefill
    assert found.greedy
    assert found.identical


def merged(scale: float = 1.0) -> bytes:
    """Two branches: the first run computes the caches of cross attention, the steps are fed with them."""
    model = onnx.ModelProto.FromString(
        text_model(
            "(float[B, E, 4] encoder_hidden_states, int64[B, S] input_ids, float[B, 1, P, 4] past_decoder_key,"
            " float[B, 1, encoder_sequence_length_out, 4] past_encoder_key, bool[1] use_cache_branch)"
            " => (float[B, S, 12] logits, float[B, 1, Q, 4] present_decoder_key, float[B, 1, F, 4] present_encoder_key)"
            "{ e = Gather(table, input_ids) one = Constant<value_ints = [1]>() u = Unsqueeze(e, one)"
            " present_decoder_key = Concat<axis = 2>(past_decoder_key, u)"
            " present_encoder_key = If(use_cache_branch) <then_branch = t () => (float[B, 1, F, 4] y)"
            " { y = Identity(past_encoder_key) },"
            " else_branch = f () => (float[B, 1, F, 4] z)"
            " { w = Unsqueeze(encoder_hidden_states, one) z = Mul(w, scale) }>"
            " two = Constant<value_ints = [2]>() a = ReduceMean<keepdims = 0>(present_decoder_key, two)"
            " b = ReduceMean<keepdims = 0>(present_encoder_key, two) c = Add(a, b) d = Add(e, c)"
            " logits = MatMul(d, head) }"
        )
    )
    rng = np.random.default_rng(4)
    table, head = rng.standard_normal((12, 4)).astype(np.float32), rng.standard_normal((4, 12)).astype(np.float32)
    weights(model, table=table, head=head, scale=np.asarray(scale, np.float32))
    return model.SerializeToString()


def test_caches_of_cross_attention_are_those_of_the_prefill() -> None:
    found = generate(merged(), merged())
    assert (found.prefill, found.caches, found.identical) == (True, 1, True)
    wrong = generate(merged(), merged(1.5))
    assert "a prefill" in wrong.fault


def buffered(place: str = "past_seq_len") -> bytes:
    """A cache of fixed length, into which the new token is written at the place it has."""
    model = onnx.ModelProto.FromString(
        text_model(
            "(int64[1, 1] input_ids, float[1, 1, 16, 4] past_key, int64[1] past_seq_len)"
            " => (float[1, 1, 12] logits, float[1, 1, 16, 4] present_key)"
            "{ e = Gather(table, input_ids) flat = Constant<value_ints = [1, 4]>() row = Reshape(e, flat)"
            " long = Constant<value_ints = [16, 4]>() lines = Reshape(past_key, long)"
            " end = Constant<value_ints = [1, 1]>()"
            f" at = Reshape({place}, end) written = ScatterND(lines, at, row)"
            " whole = Constant<value_ints = [1, 1, 16, 4]>() present_key = Reshape(written, whole)"
            " two = Constant<value_ints = [2]>() m = ReduceMean<keepdims = 0>(present_key, two) s = Add(e, m)"
            " logits = MatMul(s, head) }"
        )
    )
    rng = np.random.default_rng(5)
    table, head = rng.standard_normal((12, 4)).astype(np.float32), rng.standard_normal((4, 12)).astype(np.float32)
    weights(model, table=table, head=head, zero=np.zeros(1, np.int64))
    return model.SerializeToString()


def test_caches_that_keep_their_length_are_fed_back_too() -> None:
    found = generate(buffered(), buffered(), steps=4)
    assert (found.prefill, found.steps, found.greedy, found.identical) == (False, 4, True, True), found
    assert "at token 1" in generate(buffered(), buffered("zero"), steps=4).fault


def test_why_a_generation_was_not_compared() -> None:
    fixed = text_model(
        "(float[1, 1, 2, 4] past_key, float[1, 1, 1, 4] x) => (float[1, 1, 3, 4] present_key)"
        "{ present_key = Concat<axis = 2>(past_key, x) }"
    )
    result = verify(fixed, fixed)
    assert result.verdict == "equal"
    assert result.generation is None
    assert any("the length of the past is fixed" in note for note in result.notes)


def test_random_numbers_in_a_decoder_are_not_compared() -> None:
    def noisy() -> bytes:
        model = onnx.ModelProto.FromString(small())
        model.graph.node.append(onnx.helper.make_node("RandomUniformLike", ["e"], ["dice"]))
        model.graph.output.append(onnx.helper.make_tensor_value_info("dice", onnx.TensorProto.FLOAT, ["B", "S", 4]))
        return model.SerializeToString()

    found = generate(noisy(), noisy())
    assert not found.fault


def test_other_tokens_are_excused_at_ties_only() -> None:
    one, other = np.asarray([[1.0, 2.0, 1.999]]), np.asarray([[1.0, 1.999, 2.0]])
    assert token_fault(one, one, 0.0) == (0, "")
    assert token_fault(one, other, 0.01) == (1, "")
    ties, wrong = token_fault(one, other, 1e-5)
    assert ties == 0
    assert "token 2 in place of 1" in wrong
    assert token_fault(np.full((1, 3), np.nan), np.full((1, 3), np.nan), 0.0) == (0, "")
    assert token_fault(one, np.asarray([[np.nan, 2.0, 1.0]]), 0.01)[1]


def test_scores_are_known_by_the_size_of_the_table() -> None:
    ports = (Port("hidden", "tensor(float)", ("B", "S", 4)), Port("out", "tensor(float16)", ("B", "S", 12)))
    assert find_scores(ports, set(), 12) == Scores("out", 12)
    assert find_scores(ports, {"out"}, 12) is None
    assert find_scores(ports, set(), 0) is None
    padded = (Port("logits", "tensor(float)", ("B", "S", 16)),)
    assert find_scores(padded, set(), 12) == Scores("logits", 12)
    scores = np.zeros((1, 2, 16), np.float32)
    scores[0, 1, 3], scores[0, 1, 14] = 1.0, 2.0
    tokens = next_tokens({"logits": scores}, Scores("logits", 12))
    assert tokens is not None
    assert tokens.tolist() == [3]
    assert next_tokens({"logits": []}, Scores("logits", 12)) is None


def test_at_level_exact_only_the_same_bits_will_do() -> None:
    model = onnx.ModelProto.FromString(small())
    for item in model.graph.initializer:
        if item.name == "head":
            item.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(item) * np.float32(1 + 2**-22), "head"))
    off = model.SerializeToString()
    assert generate(small(), off, yardstick=Yardstick(exact=True)).fault
    assert not generate(small(), off).fault
    assert not generate(small(), off, yardstick=Yardstick(rtol=1e-3)).fault


def test_errors_of_the_original_are_no_fault_of_the_other() -> None:
    with pytest.raises(GraphoptError):
        generate(b"", small())


def grouped(past: str = "past_sequence_length", mask: bool = False, kind: str = "float", scale: float = 1.0) -> bytes:
    """One layer of the runtime's own attention, whose caches grow or lie in a buffer, as they are fed."""
    given = (
        "int64[B, total_sequence_length] attention_mask" if mask else "int32[B] seqlens_k, int32 total_sequence_length"
    )
    lengths = (
        " n = ReduceSum<keepdims = 0>(attention_mask, one) m = Sub(n, unit) seqlens_k = Cast<to = 6>(m)"
        " shape = Shape<start = 1, end = 2>(attention_mask) flat = Squeeze(shape)"
        " total_sequence_length = Cast<to = 6>(flat)"
        if mask
        else ""
    )
    model = onnx.ModelProto.FromString(
        text_model(
            f"(int64[B, S] input_ids, {given},"
            f" {kind}[B, 1, {past}, 8] past_key_0, {kind}[B, 1, {past}, 8] past_value_0)"
            f" => ({kind}[B, S, 20] logits, {kind}[B, 1, T, 8] present_key_0, {kind}[B, 1, T, 8] present_value_0)"
            f"{{ e = Gather(table, input_ids) q = MatMul(e, wq) k = MatMul(e, wk) v = MatMul(e, wv) {lengths}"
            " a, present_key_0, present_value_0 = com.microsoft.GroupQueryAttention<num_heads = 2, kv_num_heads = 1>"
            "(q, k, v, past_key_0, past_value_0, seqlens_k, total_sequence_length)"
            " r = Add(a, e) logits = MatMul(r, head) }",
            extra=', "com.microsoft": 1',
        )
    )
    rng = np.random.default_rng(6)
    dtype = {"float": np.float32, "float16": np.float16}[kind]
    shapes = {"table": (20, 16), "wq": (16, 16), "wk": (16, 8), "wv": (16, 8), "head": (16, 20)}
    made = {name: (rng.standard_normal(shape) / 4).astype(dtype) for name, shape in shapes.items()}
    made["wv"] = (made["wv"] * scale).astype(dtype)
    weights(model, **made, one=np.asarray([1], np.int64), unit=np.asarray(1, np.int64))
    return model.SerializeToString()


@pytest.mark.parametrize(
    "options",
    [{}, {"mask": True}, {"past": "24"}, {"past": "24", "mask": True}, {"past": "max_length"}, {"kind": "float16"}],
    ids=str,
)
def test_attention_of_the_runtime_with_lengths_as_inputs(options: dict[str, Any]) -> None:
    found = generate(grouped(**options), grouped(**options))
    assert (found.prefill, found.steps, found.greedy, found.identical) == (True, 6, True, True)
    assert generate(grouped(**options), grouped(**options, scale=1.1)).fault


def test_an_error_no_larger_than_the_original_s_own_is_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no room at all for noise, what is as near to a run in float64 is still right."""
    model = onnx.ModelProto.FromString(small())
    place = next(number for number, node in enumerate(model.graph.node) if node.op_type == "ReduceMean")
    del model.graph.node[place]
    length = onnx.helper.make_node("Shape", ["joined"], ["length"], start=2, end=3)
    number = onnx.helper.make_node("CastLike", ["length", "joined"], ["number"])
    total = onnx.helper.make_node("ReduceSum", ["joined", "two"], ["total"], keepdims=0)
    share = onnx.helper.make_node("Reciprocal", ["number"], ["share"])
    for node in (onnx.helper.make_node("Mul", ["total", "share"], ["mean"]), share, total, number, length):
        model.graph.node.insert(place, node)
    other = model.SerializeToString()
    plain = generate(small(), other)
    assert not plain.fault
    assert not plain.identical
    monkeypatch.setattr(tolerance, "FACTOR", 0.0)
    excused = generate(small(), other)
    assert not excused.fault
    assert any("as close to a float64 run" in output.reason for output in excused.outputs)
    model.graph.initializer[1].CopyFrom(
        numpy_helper.from_array(numpy_helper.to_array(model.graph.initializer[1]) * np.float32(1 + 1e-5), "head")
    )
    assert generate(small(), model.SerializeToString()).fault
