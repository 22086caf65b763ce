"""Targets: what each may emit, the tables they ask, and the tables against the runtime that is here."""

from __future__ import annotations

import pytest

import graphopt
from graphopt.errors import UsageError
from graphopt.onnxio import parse_text
from graphopt.runtime.kernels import kernels_of
from graphopt.runtime.session import CPU, CUDA, runtime, starts
from graphopt.targets import MICROSOFT, PORTABLE, TARGETS, newer_than_known, target_named
from graphopt.tensors import DType

QUICK_GELU = "(float[2,3] x) => (float[2,3] y) <float c = {1.702}> { z = Mul(x, c)  s = Sigmoid(z)  y = Mul(x, s) }"


def test_a_portable_model_gets_no_operator_of_the_runtimes_own() -> None:
    assert not PORTABLE.runs("QuickGelu", DType.FLOAT)
    result = graphopt.optimize(parse_text(QUICK_GELU, {"": 17}))
    assert {node.domain for node in result.graph.nodes()} == {""}


@pytest.mark.parametrize("target", ["ort-cpu", "ort-cuda"])
def test_a_target_of_the_runtime_gets_them_with_their_import(target: str) -> None:
    result = graphopt.optimize(parse_text(QUICK_GELU, {"": 17}), target=target)
    assert [(node.domain, node.op_type) for node in result.graph.nodes()] == [(MICROSOFT, "QuickGelu")]
    assert {item.domain: item.version for item in result.model.opset_import} == {"": 17, MICROSOFT: 1}


def test_a_kernel_of_one_provider_is_not_taken_for_one_of_the_other() -> None:
    cpu, cuda = target_named("ort-cpu"), target_named("ort-cuda")
    assert cuda.runs("GroupNorm", DType.FLOAT16)
    assert not cpu.runs("GroupNorm", DType.FLOAT16)
    assert cpu.runs("GroupQueryAttention", DType.FLOAT)
    assert not cuda.runs("GroupQueryAttention", DType.FLOAT)
    assert not cuda.runs("QuickGelu", None)


def test_an_older_version_has_fewer_kernels() -> None:
    old, new = target_named("ort-cpu", "1.20"), target_named("ort-cpu")
    assert old.version == "1.20"
    assert not old.runs("RMSNormalization", DType.FLOAT, "")
    assert new.runs("RMSNormalization", DType.FLOAT, "")
    assert target_named("ort-cpu", "1.23.9").version == "1.23"


@pytest.mark.parametrize(
    ("name", "version", "words"),
    [
        ("tpu", None, "choose one of portable, ort-cpu, ort-cuda"),
        ("portable", "1.20", "--target"),
        ("ort-cpu", "new", "a version like 1.22"),
        ("ort-cpu", "1.2", "the oldest known is"),
        ("ort-cuda", "1.26", r"known: 1\.31.*Leave --ort-version away .*--target ort-cpu"),
    ],
)
def test_what_is_not_known_is_said(name: str, version: str | None, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        target_named(name, version)


@pytest.mark.parametrize("version", ["2", "1.99", "1.99.1"])
def test_a_newer_version_than_known_is_told(version: str) -> None:
    newest = target_named("ort-cpu").version
    assert target_named("ort-cpu", version).version == newest
    result = graphopt.optimize(parse_text(QUICK_GELU, {"": 17}), target="ort-cpu", ort_version=version)
    assert f"ONNX Runtime {version} is newer than the newest known for ort-cpu, {newest}" in result.report.notes[0]
    rules = ["fusion.activations"]
    for item in graphopt.explain(parse_text(QUICK_GELU, {"": 17}), rules, target="ort-cpu", ort_version=version):
        assert "is newer than the newest known" in item.notes[0]


@pytest.mark.parametrize("name", ["ort-cpu", "ort-cuda"])
def test_a_known_version_is_no_news(name: str) -> None:
    newest = target_named(name).version
    assert not newer_than_known(name, newest)
    assert not newer_than_known(name, f"{newest}.7")
    assert not newer_than_known("ort-cpu", "1.25")
    assert not newer_than_known("portable", None)


@pytest.mark.parametrize("provider", [CPU, pytest.param(CUDA, marks=pytest.mark.gpu)])
def test_the_table_says_what_the_provider_says(provider: str) -> None:
    version = ".".join(runtime().__version__.split(".")[:2])
    name = {CPU: "ort-cpu", CUDA: "ort-cuda"}[provider]
    assert name in TARGETS
    if not starts(provider):
        pytest.skip(f"{provider} does not start here")
    target = target_named(name)
    if target.version != version:
        pytest.skip(f"the newest table is of ONNX Runtime {target.version}, and {version} is installed")
    asked = {key: frozenset(dtypes) for key, dtypes in kernels_of(provider).items()}
    assert {key: frozenset(dtype.text for dtype in dtypes) for key, dtypes in target.kernels.items()} == asked
