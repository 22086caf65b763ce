"""Fusions on CUDA; those that only CUDA runs are judged on the CPU too, by what is documented of their operators."""

from __future__ import annotations

from dataclasses import replace

import pytest
from stand_ins import STAND_IN_OPSET, with_stand_ins

from graphopt.onnxio import to_proto
from graphopt.pipeline import Pass, load_registry
from graphopt.pipeline.passes import Item
from graphopt.rewrite import NumericClass
from graphopt.runtime import judge
from graphopt.runtime.session import CUDA, starts
from graphopt.testing.checks import apply, check_item, check_variant, example_model
from graphopt.testing.feeds import feeds_of
from graphopt.testing.variants import variants

MODULES = ("fusion.diffusion", "fusion.group_normalization")
CASES = [
    pytest.param(owner, item, id=f"{owner.name}/{item.name}")
    for owner in load_registry().passes.values()
    if owner.name in MODULES
    for item in owner.items
]


@pytest.mark.parametrize(("owner", "item"), CASES)
def test_results_are_right_by_what_the_operators_are_documented_to_compute(owner: Pass, item: Item) -> None:
    example = example_model(item, item.examples.before)
    judged = 0
    for name, model in [("the example", example), *variants(example)]:
        graph, fired = apply(owner, item, model)
        result = to_proto(graph)
        opset = max(item.version for item in model.opset_import if item.domain == "")
        if not fired or opset < STAND_IN_OPSET:
            continue
        feeds, numeric = feeds_of(model, {}, item.examples.largest), item.numeric.value
        if item.numeric is NumericClass.DOMAIN:  # of which nothing is promised but shapes: ordinary numbers hold
            feeds, numeric = feeds[:1], "R"
        verdict = judge(with_stand_ins(model), with_stand_ins(result), numeric, feeds)
        assert verdict.ok, f"{name}: {verdict.reason}"
        judged += verdict.feeds > 0
    assert judged


@pytest.mark.gpu
@pytest.mark.parametrize(("owner", "item"), CASES)
def test_results_are_right_on_cuda(owner: Pass, item: Item) -> None:
    if not starts(CUDA):
        pytest.skip("the CUDA provider does not start here")
    reports = list(check_item(owner, item))
    assert [f"{report.name}: {report.reason}" for report in reports if not report.ok] == []
    assert [f"{report.name}: {report.not_judged}" for report in reports if report.fired and report.not_judged] == []


BOTH = [
    pytest.param(owner, item, id=f"{owner.name}/{item.name}")
    for owner in load_registry().passes.values()
    if {"ort-cpu", "ort-cuda"} <= set(owner.targets)
    for item in owner.items
]


@pytest.mark.gpu
@pytest.mark.parametrize(("owner", "item"), BOTH)
def test_what_the_cpu_runs_too_is_right_on_cuda(owner: Pass, item: Item) -> None:
    if not starts(CUDA):
        pytest.skip("the CUDA provider does not start here")
    there = replace(owner, targets=("ort-cuda",))
    example = example_model(item, item.examples.before)
    models = [("the example", example)]
    if "GroupQueryAttention" not in item.examples.before:  # given other lengths than its own, it reads past its memory
        models += variants(example)
    reports = [check_variant(there, item, name, model) for name, model in models]
    assert [f"{report.name}: {report.reason}" for report in reports if not report.ok] == []
