from __future__ import annotations

import math
from dataclasses import replace

import pytest
from rich.console import Console

from graphopt.recipes import DeviceStamp, ModelStamp, Recipe, RunSettings, TrialRecord, Tuning
from graphopt.report import tuning_text
from graphopt.report.tuning import change_text

CUDA = "CUDAExecutionProvider"
BOTH = {"fuse_conv_bias": "1", "prefer_nhwc": "1"}
TRIALS = (
    TrialRecord(BOTH, {}, "faster", "1.741 times as fast", 5e-4, "y", 5.6, 1.741, 1.73, 1.75, kept=True),
    TrialRecord({"fuse_conv_bias": "1"}, {}, "refused", "output 'y' has NaN where the original is finite", math.inf),
    TrialRecord(
        {**BOTH, "cudnn_conv_algo_search": "HEURISTIC"},
        BOTH,
        "slower",
        "0.83 times as fast at a first look",
        5e-4,
        "y",
        6.7,
        0.83,
        0.83,
        0.83,
    ),
    TrialRecord({**BOTH, "session.x": "1"}, BOTH, "not tried", "no time was left"),
)
RECIPE = Recipe(
    ModelStamp("resnet50.onnx", "ab"),
    ModelStamp("resnet50.onnx", "ab"),
    RunSettings.of(CUDA, BOTH),
    DeviceStamp("NVIDIA H200", "580.1", "13.0", "1.31.1"),
    {"x": "float32[64,3,224,224]"},
    ("timed: x float32[64,3,224,224]",),
    9.74,
    5.6,
    1.741,
    1.73,
    1.75,
    error=5e-4,
    max_error={"y": 1.6e-3},
    trials=TRIALS,
)
TUNING = Tuning(RECIPE, "resnet50.recipe.json", floor={"y": 5.3e-4}, tf32_floor={"y": 4e-4}, trials=TRIALS, seconds=150)


def lines(tuning: Tuning, width: int = 80, verbose: int = 0) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(tuning_text(tuning, verbose=verbose))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_the_recipe_and_every_candidate_are_told() -> None:
    text = "\n".join(lines(TUNING, 120))
    assert "faster: 9.740 → 5.600 ms, 1.741 times as fast, 99% interval 1.730 to 1.750" in text
    assert "NVIDIA H200, driver 580.1, CUDA 13.0" in text
    assert "the runtime's defaults 5.3e-04 (TF32 alone 4.0e-04), allowed 1.6e-03" in text
    assert "3 candidates, 1 refused" in text


def test_a_row_fits_a_terminal_of_80_columns() -> None:
    rows = lines(TUNING)
    [row] = [line for line in rows if line.startswith("+ cudnn_conv_algo_search=HEURISTIC")]
    assert row.split() == ["+", "cudnn_conv_algo_search=HEURISTIC", "5.0e-04", "6.700", "0.830", "slower"]
    assert any("1.741 ± 0.011" in line and line.endswith("kept") for line in rows)
    assert any("NaN" in line and line.endswith("refused") for line in rows)


def test_reasons_of_refusals_stand_below() -> None:
    rows = lines(TUNING, 120)
    at = rows.index("refused")
    assert rows[at + 1].split("  ")[1:] == ["fuse_conv_bias=1", "output 'y' has NaN where the original is finite"]
    assert "no time was left" not in "\n".join(rows)
    assert "no time was left" in "\n".join(lines(TUNING, 120, verbose=1))


def test_nothing_found_is_said() -> None:
    assert "nothing stays within the allowed error" in lines(replace(TUNING, recipe=None))[0]
    default = replace(RECIPE, settings=RunSettings(CUDA), ratio=1.0)
    assert "nothing is faster than the runtime's defaults" in lines(replace(TUNING, recipe=default))[0]


@pytest.mark.parametrize(
    ("settings", "against", "text"),
    [
        (BOTH, {}, "  fuse_conv_bias=1, prefer_nhwc=1"),
        (BOTH, {"prefer_nhwc": "1"}, "+ fuse_conv_bias=1"),
        ({"prefer_nhwc": "1"}, BOTH, "- fuse_conv_bias=1"),
        ({"session.intra_op.allow_spinning": "0"}, {}, "  intra_op.allow_spinning=0"),
        ({}, {}, "the runtime's defaults"),
    ],
)
def test_a_candidate_is_what_it_changes(settings: dict[str, str], against: dict[str, str], text: str) -> None:
    assert change_text(settings, against) == text
