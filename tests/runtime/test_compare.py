from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from graphopt.runtime.compare import compare, same_bits, ulps
from graphopt.runtime.values import ELEMENT_TYPES, pack, unpack


def test_nan_equals_nan_and_infinities_have_signs() -> None:
    special = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    assert compare(special, special.copy()).identical
    payload = special.copy()
    payload.view(np.uint32)[0] |= 1
    assert compare(special, payload).identical
    assert not same_bits(special, payload)
    assert compare(special, np.array([np.nan, -np.inf, -np.inf, 1.0], np.float32)).error == math.inf
    assert compare(special, np.array([0.0, np.inf, -np.inf, 1.0], np.float32)).error == math.inf


def test_error_is_relative_to_the_scale_of_the_output() -> None:
    difference = compare(np.array([100.0, 0.0]), np.array([100.0, 0.1]))
    assert difference.error == pytest.approx(1e-3)
    assert difference.mismatched == 1
    assert not difference.identical


def test_zeros_of_two_signs_are_not_the_same_bits_but_no_error() -> None:
    difference = compare(np.zeros(2, np.float32), -np.zeros(2, np.float32))
    assert not difference.identical
    assert difference.error == 0.0


def test_kinds_shapes_and_dtypes() -> None:
    array = np.zeros((2, 3), np.float32)
    assert "shape" in compare(array, array[:1]).mismatch
    assert "dtype" in compare(array, array.astype(np.float64)).mismatch
    assert compare([array], [array, array]).mismatch
    assert compare([array, array], [array, array]).identical
    assert compare({"a": 1.0}, {"a": 1.0}).identical
    assert compare({"a": 1.0}, {"b": 1.0}).mismatch
    assert compare(None, None).identical
    assert compare(None, array).mismatch
    words = np.array(["a", "b"], dtype=object)
    assert compare(words, words.copy()).identical
    assert not compare(words, words[::-1]).identical
    assert not compare(np.array([1, 2]), np.array([1, 3])).floating


def test_ulps() -> None:
    one = np.array([1.0, -1.0, 0.0, 1.0, np.nan], np.float32)
    two = np.array([np.nextafter(np.float32(1), np.float32(2)), -1.0, -0.0, np.nan, np.nan], np.float32)
    assert ulps(one, two).tolist() == [1.0, 0.0, 0.0, math.inf, 0.0]
    assert ulps(np.array([-1e-45], np.float32), np.array([1e-45], np.float32)).tolist() == [2.0]
    assert ulps(np.array([1.0]), np.array([np.nextafter(1.0, 2.0)])).tolist() == [1.0]
    half = np.array([1.0], ml_dtypes.bfloat16)
    assert ulps(half, np.array([1.0078125], ml_dtypes.bfloat16)).tolist() == [1.0]


@pytest.mark.parametrize("name", [name for name, (_, code) in ELEMENT_TYPES.items() if code >= 16])
def test_elements_that_numpy_lacks_are_packed_and_unpacked(name: str) -> None:
    dtype, _ = ELEMENT_TYPES[name]
    array = np.array([1, 0, 1, 0, 1], np.float32).astype(dtype).reshape(5, 1)
    back = unpack(pack(array, name), name, (5, 1))
    assert back.dtype == dtype
    assert np.array_equal(back.astype(np.float32), array.astype(np.float32), equal_nan=True)


def test_negative_sub_byte_integers() -> None:
    array = np.array([-8, 7, -1], np.int8).astype(ml_dtypes.int4)
    assert unpack(pack(array, "int4"), "int4", (3,)).astype(int).tolist() == [-8, 7, -1]
