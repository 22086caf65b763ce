from __future__ import annotations

import time
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from runtime_models import shared_folder, text_model

from graphopt import optimize
from graphopt.runtime import benchmark
from graphopt.runtime.decoding import cache_pairs, plan_generation
from graphopt.runtime.feeds import FeedMaker, FeedOptions
from graphopt.runtime.generation import Generation, generator
from graphopt.runtime.session import AS_USERS, Port, Session, SessionInfo
from graphopt.runtime.sources import ModelSource
from graphopt.runtime.structure import read_structure


def decoder(names: tuple[str, str] = ("past_key_values.0.key", "present.0.key"), tokens: str = "S") -> bytes:
    """Ids are embedded and appended to the cache; the mask's length must be that of the cache after it."""
    past, present = names
    model = onnx.ModelProto.FromString(
        text_model(
            f"(int64[B, {tokens}] input_ids, float[B, T] attention_mask, float[B, 2, P, 4] past)"
            " => (float[B, 2, S2, 4] out, float[B, 2, Q, 4] present)"
            "{ e = Gather(table, input_ids) axes = Constant<value_ints = [1]>() u = Unsqueeze(e, axes)"
            " n = Concat<axis = 1>(u, u) present = Concat<axis = 2>(past, n)"
            " m_axes = Constant<value_ints = [1, 3]>() m = Unsqueeze(attention_mask, m_axes)"
            " masked = Mul(present, m) s = ReduceSum<keepdims = 1>(masked, rows) out = Add(s, u) }"
        )
    )
    table = np.arange(40, dtype=np.float32).reshape(10, 4)
    model.graph.initializer.extend(
        [numpy_helper.from_array(table, "table"), numpy_helper.from_array(np.asarray([2], np.int64), "rows")]
    )
    for item, old, new in ((model.graph.input[2], "past", past), (model.graph.output[1], "present", present)):
        item.name = new
        for node in model.graph.node:
            node.input[:] = [new if name == old else name for name in node.input]
            node.output[:] = [new if name == old else name for name in node.output]
    return model.SerializeToString()


def plan(model: bytes, steps: int = 5, dims: dict[str, int] | None = None) -> Generation | str:
    session = Session(model, AS_USERS.but(threads=1))
    roles = read_structure(ModelSource("m", data=model), session.info).roles

    def maker(chosen: object) -> FeedMaker:
        return FeedMaker(session.info.inputs, FeedOptions(dict(chosen)), roles=roles, typical=True)  # type: ignore[call-overload]

    return plan_generation(session.info, maker, dims or {}, session.run, steps)


@pytest.mark.parametrize(
    ("past", "present"),
    [
        ("past_key_values.0.key", "present.0.key"),
        ("past_0_key", "present_0_key"),
        ("pasts", "presents"),
        ("in_cache_0", "out_cache_0"),
        ("past_key_0", "present_key_0"),
    ],
)
def test_pairs_are_found_by_name(past: str, present: str) -> None:
    info = SessionInfo(
        (Port("input_ids", "tensor(int64)", ("B", "S")), Port(past, "tensor(float)", ("B", 2, "P", 4))),
        (Port("logits", "tensor(float)", ("B", "S", 9)), Port(present, "tensor(float)", ("B", 2, "Q", 4))),
        ("CPUExecutionProvider",),
    )
    assert [(one.name, other.name) for one, other in cache_pairs(info)] == [(past, present)]


def test_other_models_are_no_decoders() -> None:
    info = SessionInfo((Port("x", "tensor(float)", (1, 2, 3)),), (Port("y", "tensor(float)", (1, 2, 3)),), ())
    assert cache_pairs(info) == ()


def test_linked_lengths_are_solved_and_masks_are_ones() -> None:
    found = plan(decoder(), dims={"S": 6})
    assert isinstance(found, Generation), found
    assert found.pairs == (("past_key_values.0.key", "present.0.key"),)
    assert found.prompt == 6
    assert found.prefill is not None
    assert found.prefill["past_key_values.0.key"].shape == (1, 2, 0, 4)
    assert found.prefill["attention_mask"].tolist() == [[1.0] * 6]
    assert [step["attention_mask"].shape for step in found.steps] == [(1, 7 + step) for step in range(5)]
    assert all("past_key_values.0.key" not in step for step in found.steps)


def test_what_a_step_gives_is_fed_to_the_next() -> None:
    model = decoder()
    found = plan(model, dims={"S": 3, "B": 2})
    assert isinstance(found, Generation), found
    assert found.batch == 2
    times = generator(Session(model, AS_USERS.but(threads=1)), found)()  # a wrong past would not fit the mask
    assert len(times["decode"]) == 5
    assert len(times["prefill"]) >= 1


def test_a_model_of_one_token_at_a_time_only_steps() -> None:
    found = plan(decoder(tokens="1"), dims={"P": 4})
    assert isinstance(found, Generation), found
    assert found.prefill is None
    assert found.start["past_key_values.0.key"].shape == (1, 2, 4, 4)
    times = generator(Session(decoder(tokens="1"), AS_USERS.but(threads=1)), found)()
    assert list(times) == ["decode"]


def test_bench_times_prefill_and_decode_apart() -> None:
    result = benchmark(decoder(), decoder(), threads=1, max_time=2.0, decode=4, memory=False, placement=False)
    assert [item.name for item in result.comparisons] == ["prefill", "decode"], result.notes
    prefill, step = result.comparisons
    assert prefill.unit == "ms"
    assert step.unit == "tokens/s"
    assert step.original == pytest.approx(
        1 / np.median(np.concatenate([np.asarray(session) for session in step.samples[0]])), rel=1e-6
    )
    without = benchmark(decoder(), decoder(), threads=1, max_time=1.0, decode=0, memory=False, placement=False)
    assert without.comparisons == ()


@pytest.mark.parametrize("name", ["gpt2_past_torch16.onnx"])
def test_shared_decoders(name: str) -> None:
    folder = shared_folder()
    path = Path(folder or "", name)
    if not path.is_file():
        pytest.skip("the shared models are not here")
    result = benchmark(path, path, threads=1, max_time=2.0, memory=False, placement=False)
    assert [item.name for item in result.comparisons] == ["decode"], result.notes


SHARED = (
    ("gpt2_megatron_layer.onnx", 8),
    ("gpt2_past_torch16.onnx", 4),
    ("onnxruntime_testdata.zip!testdata/transform/fusion/gpt2_past_one_layer.onnx", 4),
    ("onnxruntime_testdata.zip!testdata/dmmha_self_attn.onnx", 8),
    ("onnxruntime_testdata.zip!testdata/dmmha_inside_mha_self_attn.onnx", 8),
    (
        "onnxruntime_testdata.zip!python/transformers/test_data/models/gpt2_attention_add_opt_skiplayernorm.onnx",
        8,
    ),
)


@pytest.mark.parametrize(("name", "steps"), SHARED, ids=[name.rpartition("/")[2] for name, _ in SHARED])
def test_shared_decoders_are_verified_without_data(name: str, steps: int, tmp_path: Path) -> None:
    archive, _, member = name.partition("!")
    path = Path(shared_folder() or "", archive)
    if not path.is_file():
        pytest.skip("the shared models are not here")
    if member:
        path = Path(zipfile.ZipFile(path).extract(member, tmp_path))
    result = optimize(path, verify=True)
    found = result.verification
    assert found is not None
    assert found.verdict == "equal", found.reason
    assert found.generation is not None, found.notes
    assert found.generation.steps == steps


def test_bench_feeds_the_steps_of_a_merged_decoder_with_what_the_prefill_gave() -> None:
    from test_generated import merged

    result = benchmark(merged(), merged(), threads=1, max_time=1.0, decode=3, memory=False, placement=False)
    assert [item.name for item in result.comparisons] == ["prefill", "decode"], result.notes


def test_many_steps_end_with_the_time() -> None:
    started = time.monotonic()
    result = benchmark(decoder(), decoder(), threads=1, max_time=1.0, decode=4096, memory=False, placement=False)
    assert time.monotonic() - started < 20
    assert any("of 4096 steps were timed" in note for note in result.notes)
    detail = next(item.detail for item in result.comparisons if item.name == "decode")
    assert 16 <= int(detail.split()[0]) < 4096
