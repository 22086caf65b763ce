"""The table of position-independent operators: what it says, and that it still holds for the runtime at hand."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from graphopt.analysis import position_table as table
from graphopt.analysis.position import is_position_independent
from graphopt.tensors import DType

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "make_position_table.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    if not SCRIPT.exists():
        pytest.skip("the script that measures is not beside the tests")
    spec = importlib.util.spec_from_file_location("make_position_table", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_what_is_known_to_depend_on_the_place() -> None:
    for op_type in ("Log", "Sin", "Cos", "Softplus", "Mish", "Asin", "Atan"):
        for dtype in (DType.FLOAT, DType.DOUBLE, DType.FLOAT16):
            assert not is_position_independent(op_type, dtype)


def test_what_moving_data_must_be_able_to_pass() -> None:
    for op_type in ("Add", "Sub", "Mul", "Div", "Relu", "Neg", "Abs", "Sqrt", "Exp", "Erf", "Tanh", "Sigmoid", "PRelu"):
        assert is_position_independent(op_type, DType.FLOAT)


def test_powers_depend_on_the_form_of_the_exponent() -> None:
    assert not is_position_independent("Pow", DType.FLOAT)
    assert is_position_independent("Pow", DType.FLOAT, same_form=True)
    assert not is_position_independent("Pow", DType.INT64)


def test_zeros_of_both_signs_compare_equal() -> None:
    for op_type in ("Max", "Min"):
        assert not is_position_independent(op_type, DType.FLOAT)
        assert is_position_independent(op_type, DType.FLOAT, signed_zeros=False)
    assert not is_position_independent("Where", DType.FLOAT)
    assert is_position_independent("Where", DType.FLOAT, same_form=True)
    assert is_position_independent("Where", DType.FLOAT, signed_zeros=False)
    assert not is_position_independent("Log", DType.FLOAT, signed_zeros=False)


def test_float16_depends_on_its_neighbours() -> None:
    for op_type in ("Add", "Relu", "Identity", "Max"):
        assert not is_position_independent(op_type, DType.FLOAT16, same_form=True, signed_zeros=False)


def test_what_is_not_measured_counts_as_dependent() -> None:
    assert not is_position_independent("Add", DType.BFLOAT16)
    assert not is_position_independent("Add", None)
    assert not is_position_independent("Add", DType.STRING)
    assert not is_position_independent("Softmax", DType.FLOAT)
    assert not is_position_independent("MatMul", DType.INT64)
    assert not is_position_independent("Add", DType.FLOAT, "odd.domain")


def test_integers_are_exact_anywhere() -> None:
    assert is_position_independent("Add", DType.INT64)
    assert is_position_independent("Mul", DType.INT8, "ai.onnx")
    assert is_position_independent("Not", DType.BOOL)


def test_every_entry_is_in_one_set() -> None:
    sets = (table.INDEPENDENT, table.FORM_DEPENDENT, table.DEPENDENT)
    assert sum(map(len, sets)) == len(frozenset().union(*sets))
    assert {dtype for _, _, dtype in frozenset().union(*sets)} <= {dtype.name for dtype in DType}
    assert table.SIGN_OF_ZERO_ONLY <= table.FORM_DEPENDENT | table.DEPENDENT
    assert all(line.startswith("ONNX Runtime ") for line in table.MEASURED_ON)


@pytest.mark.parametrize(
    ("op_type", "arity"),
    [
        *[(name, 1) for name in ("Exp", "Erf", "Tanh", "Sigmoid", "Sqrt", "Gelu", "Reciprocal", "Relu", "LeakyRelu")],
        *[(name, 2) for name in ("Add", "Mul", "Div", "PRelu")],
    ],
)
def test_independent_operators_still_are(script: ModuleType, op_type: str, arity: int) -> None:
    assert is_position_independent(op_type, DType.FLOAT)
    probe = script.Probe(script.Case(op_type, arity), "FLOAT")
    random = np.random.default_rng(0)
    pools = [script.numbers(np.dtype(np.float32), 4500, random) for _ in range(arity)]
    assert script.worst_difference(probe, script.places(pools, random)) == 0
    if arity == 2:
        assert script.worst_difference(probe, script.forms(pools, random)) == 0


def test_the_measurement_finds_what_is_dependent(script: ModuleType) -> None:
    """A check of the checker: the same array, with the last element of every length rounded otherwise."""
    probe = script.Probe(script.Case("Exp"), "FLOAT")
    run = probe.run

    def tampered(arrays: list[np.ndarray]) -> np.ndarray:
        result = run(arrays)
        if result.shape == (13,):
            result[-1] = np.nextafter(result[-1], np.float32(0))
        return result

    probe.run = tampered
    random = np.random.default_rng(0)
    pools = [script.numbers(np.dtype(np.float32), 4500, random)]
    assert script.worst_difference(probe, script.places(pools, random)) == 2
