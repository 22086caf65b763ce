from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from runtime_models import text_model

from graphopt.errors import (
    FeedRefusedError,
    KernelMissingError,
    ModelRefusedError,
    ProviderMissingError,
    RunFailedError,
)
from graphopt.runtime import evaluate_model, evaluate_models
from graphopt.runtime.remote import RemoteSession
from graphopt.runtime.session import CPU, JUDGE, Session, problem, resolve_provider, starts
from graphopt.runtime.sources import ModelSource
from graphopt.runtime.worker import Worker


def test_providers_are_what_really_starts() -> None:
    assert resolve_provider("cpu") == CPU
    assert resolve_provider("auto") in (CPU, "CUDAExecutionProvider")
    assert starts(CPU)
    with pytest.raises(ProviderMissingError, match="no provider is called"):
        resolve_provider("no-such-thing")


@pytest.mark.gpu
def test_cuda_runs(cuda: str, worker: Worker) -> None:
    source = ModelSource("m", data=text_model("(float[4] x) => (float[4] y) { y = Relu(x) }"))
    with RemoteSession(source, JUDGE.but(provider="CUDAExecutionProvider"), worker=worker) as session:
        assert session.info.provider == "CUDAExecutionProvider"
        assert session.run({"x": np.array([-1, 0, 1, 2], np.float32)})["y"].tolist() == [0, 0, 1, 2]


def test_dtypes_that_numpy_lacks_go_in_and_out() -> None:
    model = text_model(
        "(bfloat16[2] x, int4[3] w) => (bfloat16[2] a, float8e4m3fn[2] b, int4[3] c, float[2] d)"
        "{ d = Cast<to=1>(x) a = Cast<to=16>(d) b = Cast<to=17>(d) e = Cast<to=1>(w) c = Cast<to=22>(e) }"
    )
    x = np.array([1.0, 2.5], ml_dtypes.bfloat16)
    w = np.array([-8, 7, 3], np.int8).astype(ml_dtypes.int4)
    result = Session(model, JUDGE).run({"x": x, "w": w})
    assert result["a"].dtype == x.dtype
    assert result["a"].tolist() == x.tolist()
    assert result["b"].dtype == np.dtype(ml_dtypes.float8_e4m3fn)
    assert result["c"].astype(int).tolist() == [-8, 7, 3]
    assert result["d"].tolist() == [1.0, 2.5]


def test_strings_sequences_and_optionals() -> None:
    model = text_model(
        "(string[N] s, seq(float[N]) q, optional(float[N]) o) => (string[N] t, seq(float[N]) r, bool h)"
        "{ t = Identity(s) r = Identity(q) h = OptionalHasElement(o) }"
    )
    result = Session(model, JUDGE).run({"s": np.array([b"a", "é"], object), "q": [np.ones(2, np.float32)], "o": None})
    assert result["t"].tolist() == ["a", "é"]
    assert result["r"][0].tolist() == [1.0, 1.0]
    assert not result["h"]


def test_failures_have_their_own_types() -> None:
    with pytest.raises(KernelMissingError, match="Add"):
        Session(text_model("(bfloat16[2] x) => (bfloat16[2] y) { y = Add(x, x) }"), JUDGE)
    with pytest.raises(ModelRefusedError, match="Foo"):
        Session(text_model("(float[2] x) => (float[2] y) { y = Foo(x) }"), JUDGE)
    with pytest.raises(ModelRefusedError):
        Session(b"no model", JUDGE)
    division = Session(text_model("(int64[1] x, int64[1] z) => (int64[1] y) { y = Div(x, z) }"), JUDGE)
    with pytest.raises(RunFailedError, match="division by zero"):
        division.run({"x": np.ones(1, np.int64), "z": np.zeros(1, np.int64)})
    with pytest.raises(FeedRefusedError):
        division.run({"x": np.ones(2, np.int64), "z": np.ones(1, np.int64)})
    with pytest.raises(FeedRefusedError):
        division.run({"x": np.ones(1, np.int64)})


def test_a_remote_session_survives_its_worker() -> None:
    source = ModelSource("m", data=text_model("(float[N] x) => (float[N] y) { y = Neg(x) }"))
    with Worker() as worker, RemoteSession(source, JUDGE, worker=worker) as session:
        feed = {"x": np.ones(3, np.float32)}
        assert session.run(feed)["y"].tolist() == [-1, -1, -1]
        worker.close()
        assert session.run(feed)["y"].tolist() == [-1, -1, -1]


def test_evaluation_in_process_and_in_the_worker(worker: Worker) -> None:
    model = text_model("() => (float[2] y) { a = Constant<value = float[2] {1, 2}>() y = Neg(a) }")
    assert evaluate_model(model, {})["y"].tolist() == [-1, -2]
    assert evaluate_model(model, {}, in_worker=True, worker=worker)["y"].tolist() == [-1, -2]
    bad = text_model("() => (bfloat16[1] y) { a = Constant<value = bfloat16[1] {16256}>() y = Add(a, a) }")
    good, refused = evaluate_models([(model, {}), (bad, {})])
    assert isinstance(good, dict)
    assert isinstance(refused, KernelMissingError)


def test_bits_do_not_depend_on_where_a_feed_lies_in_memory() -> None:
    text = "(double[4] x) => (double[1] y) { y = ReduceMean<axes = [0], keepdims = 1>(x) }"
    session = Session(text_model(text, opset=17), JUDGE)
    numbers = [1.764052345967664, 0.4001572083672233, 0.9787379841057392, 2.240893199201458]
    found = set()
    for start in range(8):
        feed = np.zeros(16)[start : start + 4]
        feed[:] = numbers
        found.add(np.asarray(session.run({"x": feed})["y"]).tobytes())
    assert len(found) == 1


@pytest.mark.parametrize(
    "text",
    [
        "/onnxruntime_src/onnxruntime/core/providers/cpu/tensor/reshape_helper.h:46 "
        "onnxruntime::ReshapeHelper::ReshapeHelper(const onnxruntime::TensorShape&, bool) "
        "input_shape_size == size was false. It cannot be reshaped",
        r"D:\a\_work\1\s\onnxruntime\core\framework\arena.cc:376 onnxruntime::Arena::Allocate It cannot be reshaped",
        "/onnxruntime_src/include/onnxruntime/core/kernel.h:42 const T* onnxruntime::Kernel::Input(int) const "
        "[with T = onnxruntime::Tensor] It cannot be reshaped",
    ],
)
def test_places_in_the_runtimes_source_are_left_out(text: str) -> None:
    assert str(problem(RuntimeError(text), loading=False)) == "It cannot be reshaped"
