from __future__ import annotations

import pytest
from tuning_models import linear

from graphopt.errors import RecipeError, UsageError
from graphopt.recipes import SESSION_ATTRIBUTES, RunSettings
from graphopt.runtime.recipe import apply_settings
from graphopt.runtime.session import CPU, CUDA, Session, SessionSettings
from graphopt.tuning.candidates import Block, Machine, blocks, closer, parse_change

OFTEN = ("Conv", "Gelu", "com.microsoft::MultiHeadAttention", "com.microsoft::SkipLayerNormalization")


def names(space: list[Block]) -> set[str]:
    return {name for block in space for change in block.changes for name in change}


def test_layout_and_bias_are_one_block_tried_in_all_forms() -> None:
    space = blocks(CUDA, {"Conv": 3}, Machine())
    block = next(block for block in space if "prefer_nhwc" in names([block]))
    assert len(block.changes) == 3
    assert {frozenset(change) for change in block.changes} == {
        frozenset({"prefer_nhwc"}),
        frozenset({"fuse_conv_bias"}),
        frozenset({"prefer_nhwc", "fuse_conv_bias"}),
    }


def test_what_the_model_has_no_use_for_is_left_out() -> None:
    assert not names(blocks(CUDA, {"MatMul": 1}, Machine())) & {"prefer_nhwc", "cudnn_conv_algo_search", "sdpa_kernel"}
    assert "cudnn_conv1d_pad_to_nc1d" not in names(blocks(CUDA, {"Conv": 1}, Machine()))
    assert "cudnn_conv1d_pad_to_nc1d" in names(blocks(CUDA, {"Conv": 1}, Machine(), has_conv1d=True))
    assert "sdpa_kernel" in names(blocks(CUDA, dict.fromkeys(OFTEN, 1), Machine()))


def test_races_are_never_tried_unasked() -> None:
    for provider in (CPU, CUDA):
        assert "do_copy_in_default_stream" not in names(blocks(provider, dict.fromkeys(OFTEN, 1), Machine(8, 4)))
    wanted = parse_change("do_copy_in_default_stream=0")
    assert blocks(CUDA, {}, Machine(), wanted=[wanted])[0].changes == (wanted,)


@pytest.mark.parametrize(
    ("machine", "counts"),
    [
        (Machine(1, 1), set()),
        (Machine(2, 2), {"1"}),
        (Machine(16, 8), {"1", "4", "16"}),
        (Machine(4, 64), {"1"}),
    ],
)
def test_threads_are_those_that_make_sense_and_are_not_the_default(machine: Machine, counts: set[str]) -> None:
    space = blocks(CPU, {}, machine)
    found = {
        change["intra_op_num_threads"]
        for block in space
        for change in block.changes
        if len(change) == 1 and "intra_op_num_threads" in change
    }
    assert counts <= found
    if machine.physical <= machine.cores:
        assert str(machine.physical) not in found


def test_a_container_with_fewer_cores_than_the_machine_tries_its_own_number() -> None:
    assert {"intra_op_num_threads": "4"} in [
        change for block in blocks(CPU, {}, Machine(4, 64)) for change in block.changes
    ]


def test_bfloat16_products_are_for_arm_alone() -> None:
    name = "mlas.enable_gemm_fastmath_arm64_bfloat16"
    assert name in names(blocks(CPU, {}, Machine(4, 4, arm=True)))
    assert name not in names(blocks(CPU, {}, Machine(4, 4)))


@pytest.mark.parametrize(
    "change",
    [
        change
        for block in [*blocks(CPU, dict.fromkeys(OFTEN, 1), Machine(2, 2)), *closer(CPU)]
        for change in block.changes
    ],
    ids=str,
)
def test_the_runtime_takes_every_candidate_of_the_cpu(change: dict[str, str]) -> None:
    base = SessionSettings(optimize="all")
    settings = apply_settings(base, RunSettings.of(CPU, change))
    session = Session(linear(), settings)
    for name, value in RunSettings.of(CPU, change).session.items():
        held = getattr(session.raw.get_session_options(), name)
        assert (held.name if isinstance(value, str) else held) == value


def test_settings_are_read_as_they_are_typed() -> None:
    assert parse_change("prefer_nhwc=1, fuse_conv_bias=1") == {"prefer_nhwc": "1", "fuse_conv_bias": "1"}
    for wrong in ("prefer_nhwc", "=1", "a=", "model=portable", "intra_op_num_threads=many"):
        with pytest.raises(UsageError):
            parse_change(wrong)


def test_settings_go_where_the_runtime_takes_them() -> None:
    flat = {"enable_mem_pattern": "0", "intra_op_num_threads": "2", "session.x": "1", "prefer_nhwc": "1", "model": "m"}
    settings = RunSettings.of(CUDA, flat)
    assert settings.session == {"enable_mem_pattern": False, "intra_op_num_threads": 2}
    assert (settings.entries, settings.provider_options) == ({"session.x": "1"}, {"prefer_nhwc": "1"})
    assert settings.flat() == {name: value for name, value in flat.items() if name != "model"}
    with pytest.raises(RecipeError):
        RunSettings.of(CUDA, {"intra_op_num_threads": "many"})
    assert all(kind in (bool, int, str) for kind in SESSION_ATTRIBUTES.values())
