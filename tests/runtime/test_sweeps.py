from __future__ import annotations

import pytest
from runtime_models import linear

from graphopt.errors import FeedError, UsageError
from graphopt.runtime import sweep
from graphopt.runtime.sweeps import points_of


def test_points_are_the_cross_product_in_order() -> None:
    points = points_of({"a": (1, 8), "b": (3, 4)})
    assert points == [{"a": 1, "b": 3}, {"a": 1, "b": 4}, {"a": 8, "b": 3}, {"a": 8, "b": 4}]
    with pytest.raises(UsageError, match="fewer sizes"):
        points_of({"a": range(100), "b": range(100)})


def test_each_point_is_a_comparison_of_its_own() -> None:
    told: list[str] = []
    result = sweep(linear(), linear(), sweep={"N": (1, 4)}, threads=1, max_time=2.0, memory=False, progress=told.append)
    assert told == ["1/2 N 1", "2/2 N 4"]
    assert [point.dims for point in result.points] == [{"N": 1}, {"N": 4}]
    assert [point.sizes["x"] for point in result.points] == ["float32[1,16]", "float32[4,16]"]
    assert all(point.low <= point.ratio <= point.high for point in result.points)
    assert result.points[1].original is not None
    assert result.points[1].original.placement is None
    document = result.to_json()
    assert document["schema"] == "graphopt.benchmark-sweep"
    assert len(document["points"][0]["original"]["samples"]) >= 3


def test_a_dim_that_no_input_has_is_named_with_the_flag_typed() -> None:
    with pytest.raises(FeedError, match="--sweep names 'batch'"):
        sweep(linear(), linear(), sweep={"batch": (1,)}, max_time=1.0)
