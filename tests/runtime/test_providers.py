from __future__ import annotations

import pytest
from runtime_models import linear

from graphopt.errors import ProviderOptionError, UsageError
from graphopt.runtime import benchmark, verify
from graphopt.runtime.providers import checked_options, options_of, provider_names, require_options_here
from graphopt.runtime.remote import starts_here
from graphopt.runtime.session import CPU, CUDA
from graphopt.runtime.worker import Worker


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("cpu", (CPU,)),
        ("cuda,cpu", (CUDA, CPU)),
        (["cuda", "cpu", "CPUExecutionProvider"], (CUDA, CPU)),
        ("CUDAExecutionProvider", (CUDA,)),
        ("Auto", ("auto",)),
        ("openvino", ("OpenVINOExecutionProvider",)),
        (["trt", "coreml"], ("TensorrtExecutionProvider", "CoreMLExecutionProvider")),
    ],
)
def test_names(asked: str | list[str], found: tuple[str, ...]) -> None:
    assert provider_names(asked) == found


@pytest.mark.parametrize(("asked", "near"), [("cdua", "cuda"), ("CUDAExecutionProvidr", CUDA), ("opnvino", "openvino")])
def test_an_unknown_name_tells_the_nearest(asked: str, near: str) -> None:
    with pytest.raises(UsageError, match="no provider") as error:
        provider_names(asked)
    assert near.lower() in str(error.value).lower()
    with pytest.raises(UsageError, match="is named"):
        provider_names(" , ")


def test_options_go_to_the_provider_they_name() -> None:
    found, notes = options_of({"cuda:use_tf32": "0", "cpu:x": "1"}, [CUDA, CPU], [CUDA, CPU])
    assert found == {CUDA: {"use_tf32": "0"}, CPU: {"x": "1"}}
    assert not notes
    assert options_of({"use_tf32": "0"}, [CUDA], [CUDA])[0] == {CUDA: {"use_tf32": "0"}}
    with pytest.raises(UsageError, match="which"):
        options_of({"use_tf32": "0"}, [CUDA, CPU], [CUDA, CPU])
    with pytest.raises(UsageError, match="not asked for"):
        options_of({"cuda:use_tf32": "0"}, [CPU], [CPU])


def test_options_of_cuda_are_left_aside_where_auto_falls_back() -> None:
    for key in ("use_tf32", "cuda:use_tf32"):
        found, notes = options_of({key: "0"}, [CPU], ["auto"])
        assert found == {CPU: {}}
        assert key in notes[0]


def test_a_refused_option_is_an_error_that_names_it(worker: Worker) -> None:
    require_options_here(CPU, {})
    with pytest.raises(ProviderOptionError, match="nonsense=1"):
        worker.call(require_options_here, CPU, {"nonsense": "1"})
    for call in (verify, benchmark):
        with pytest.raises(UsageError, match="nonsense"):
            call(linear(), linear(), provider="cpu", provider_options={"nonsense": "1"}, worker=worker)
    with pytest.raises(UsageError, match="not asked for"):
        checked_options(worker, "cpu", CPU, {"cuda:use_tf32": "0"})


def test_without_a_gpu_auto_falls_back_to_the_cpu_and_says_so(worker: Worker) -> None:
    if worker.call(starts_here, "cuda"):
        pytest.skip("CUDA really starts here")
    result = verify(linear(), linear(), worker=worker)
    assert result.verdict == "equal"
    assert result.provider == CPU
    assert any("ran on the CPU" in note for note in result.notes)
    named = verify(linear(), linear(), provider="cuda", worker=worker)
    assert named.verdict == "not verified"
    assert CUDA in named.reason


def test_several_providers_have_a_part_each_and_the_worst_verdict(worker: Worker) -> None:
    asked = ["cpu", "QNNExecutionProvider"]
    result = verify(linear(), linear(), provider=asked, worker=worker)
    assert result.verdict == "not verified"
    assert [part.verdict for part in result.parts] == ["equal", "not verified"]
    assert [part.provider_asked for part in result.parts] == asked
    assert "QNN" in result.reason
    wrong = verify(linear(), linear(factor=1.001), provider=asked, worker=worker)
    assert wrong.verdict == "different"
    assert wrong.reason.startswith("on cpu:")
    assert len(wrong.to_json()["parts"]) == 2
    once = verify(linear(), linear(), provider="auto,cpu", level="exact", worker=worker)
    assert once.verdict == "equal"
    assert not once.parts


@pytest.mark.gpu
def test_several_providers_on_one_set_of_feeds(cuda: str, worker: Worker) -> None:
    result = verify(linear(), linear(), provider=[cuda, "cpu"], worker=worker)
    assert result.verdict == "equal"
    one, other = result.parts
    assert (one.provider, other.provider) == (CUDA, CPU)
    assert [feed.label for feed in one.feeds] == [feed.label for feed in other.feeds]


@pytest.mark.gpu
def test_options_of_cuda(cuda: str, worker: Worker) -> None:
    result = verify(linear(), linear(), provider=cuda, provider_options={"use_tf32": "0"}, worker=worker)
    assert result.verdict == "equal"
    assert result.provider_options == {"use_tf32": "0"}
    assert not any("TF32" in floor.name for floor in result.floors)
    for options in ({"nonsense": "1"}, {"use_tf32": "banana"}):
        with pytest.raises(ProviderOptionError, match=next(iter(options))):
            verify(linear(), linear(), provider=cuda, provider_options=options, worker=worker)
