"""What the benchmark scripts count and conclude, on made-up numbers and small models."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import onnx.parser
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


def load(name: str) -> ModuleType:
    """Import a script that lies beside its own modules and is not part of a package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        return importlib.import_module(name)


common = load("common")
architectures = load("architectures")
fusions = load("runtime_fusions")
noise = load("exporter_noise")
features = load("rival_features")


def entry(nodes: int, verdict: str = "equal", foreign: tuple[str, ...] = ()) -> dict[str, object]:
    """What one tool left of a model."""
    return {
        "nodes": nodes,
        "problem": "",
        "verdict": verdict,
        "signature": [],
        "checker": None,
        "foreign": list(foreign),
        "reason": "",
    }


# --- what is written


def test_a_result_has_one_row_on_a_line(tmp_path: Path) -> None:
    rows = [{"model": "a", "ratio": 1.23456789}, {"model": "b", "ratio": float("nan"), "nodes": [123456, 7]}]
    document = {"schema": 1, "rows": rows, "by": {"one": {"x": 0.5}, "two": 3}, "names": ["…", "b"], "none": []}
    common.write_json(tmp_path / "made.json", document)
    text = (tmp_path / "made.json").read_text(encoding="utf-8")
    assert json.loads(text) == document | {
        "rows": [{"model": "a", "ratio": 1.235}, {"model": "b", "ratio": None, "nodes": [123456, 7]}]
    }
    assert '\n{"model":"a","ratio":1.235},\n' in text
    assert len(text.splitlines()) == 13


def test_a_cell_tells_what_is_not_right() -> None:
    right = entry(12) | {"seconds": 0.5}
    assert architectures.kept(right) == [12, 0.5]
    assert architectures.kept(right, timed=False) == 12
    changed = right | {"signature": ["output y: float[N] became float[2]"]}
    assert architectures.kept(changed, timed=False) == [12, "equal", "signature"]
    wrong = right | {"verdict": "different", "reason": "output y differs"}
    assert architectures.kept(wrong) == [12, 0.5, "different", "output y differs"]
    assert architectures.kept({"nodes": None, "seconds": None, "problem": "time limit"}) == "time limit"
    row = {"model": "m.onnx", "nodes": 20, "group": architectures.OTHERS, "own": {"graphopt": right}, "rivals": {}}
    assert len(architectures.written(row)) == len(architectures.COLUMNS)
    assert architectures.written(row)[:5] == ["m", 20, False, [12, 0.5], None]


def test_a_model_keeps_its_fusions_that_are_fewer() -> None:
    sides = {"before": {"nodes": 9, "copies": 0, "operators": {}}, "after": {"nodes": 5, "copies": 0, "operators": {}}}
    (fusion,) = fusions.fewer({"com.microsoft::NewFusion": 1}, {})
    document = {"model": "m.onnx", **sides, "fewer": [fusions.asdict(fusion)], "problem": ""}
    assert fusions.written(document) == {"model": "m", "nodes": [9, 5], "fewer": [["NewFusion", 1, 0, 0, 0, True]]}
    failed = {"model": "m.onnx", "before": {"problem": "no"}, "after": {}, "fewer": [], "problem": ""}
    assert fusions.written(failed) == {"model": "m", "problem": "no"}


# --- architectures


def test_a_wrong_result_is_no_rival() -> None:
    rivals = {"onnxsim": entry(10, "different"), "onnxslim": entry(12), "onnxscript": entry(11, foreign=("other",))}
    assert architectures.best_rival(rivals) == ("onnxscript", 11)
    failed = {"onnxsim": {"nodes": None, "problem": "time limit"}}
    assert architectures.best_rival(failed) is None


def attention(between: str) -> onnx.GraphProto:
    """Two products with something in between."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[N,4,8] q, float[N,8,4] k, float[N,4,8] v) => (float[N,4,8] y)
        {{ s = MatMul(q, k)  {between}  y = MatMul(p, v) }}"""
    return onnx.parser.parse_model(text).graph


def test_attention_is_softmax_between_products() -> None:
    assert architectures.has_attention(attention("t = Add(s, s)  p = Softmax<axis=-1>(t)"))
    assert not architectures.has_attention(attention("p = Sigmoid(s)"))


def test_a_model_over_its_limit_or_its_rival_is_told() -> None:
    row = {
        "model": "swinv2.ts.onnx",
        "nodes": 1199,
        "group": architectures.TRANSFORMERS,
        "own": {"graphopt": entry(400)},
        "rivals": {"onnxslim": entry(387)},
        "best": ("onnxslim", 387),
    }
    means = {architectures.TRANSFORMERS: {"graphopt": {"models": 1, "to_best_rival": 400 / 387}}}
    told = architectures.failures([row], ["graphopt"], means)
    assert len(told) == 3
    assert "onnxslim 387" in told[0]
    assert "the limit is 387" in told[1]
    assert "the goal is" in told[2]


# --- runtime fusions


def test_a_stronger_fusion_counts_for_a_weaker_one() -> None:
    before = {"LayerNormalization": 4, "com.microsoft::Gelu": 2}
    after = {"com.microsoft::SkipLayerNormalization": 4, "com.microsoft::BiasGelu": 2}
    assert list(fusions.fewer(before, after)) == []


def test_a_fusion_whose_parts_stay_is_lost() -> None:
    before = {"com.microsoft::BiasGelu": 2, "Erf": 0}
    (row,) = fusions.fewer(before, {"com.microsoft::BiasGelu": 1, "Erf": 1, "Add": 1})
    assert (row.operator, row.before, row.after, row.lost) == ("BiasGelu", 2, 1, True)
    (weaker,) = fusions.fewer(before, {"com.microsoft::BiasGelu": 1, "com.microsoft::Gelu": 1})
    assert weaker.lost


def test_a_fusion_that_went_with_its_parts_is_not_lost() -> None:
    before = {"com.microsoft::FusedMatMul": 4, "Transpose": 3}
    (row,) = fusions.fewer(before, {"com.microsoft::FusedMatMul": 2, "Transpose": 2})
    assert not row.lost


def test_a_gemm_counts_where_the_runtime_made_it() -> None:
    before, after = {"Gemm": 4}, {"MatMul": 4, "Add": 4}
    (row,) = fusions.fewer(before, after)
    assert row.lost
    assert list(fusions.fewer(before, after, written={"Gemm": 4})) == []


def test_an_unknown_operator_of_the_runtime_may_not_get_lost() -> None:
    (row,) = fusions.fewer({"com.microsoft::NewFusion": 1}, {"Add": 1})
    assert row.lost


# --- exporter noise


def test_shapes_follow_from_named_sizes(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[batch,3] x, float[batch,other] z) => (float[batch,3] y) { y = Identity(x) }"""
    model = onnx.parser.parse_model(text)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "past_sequence + sequence"
    onnx.save(model, tmp_path / "m.onnx")
    sizes = {"batch": 1, "sequence": 2, "past_sequence": 5}
    assert noise.input_shapes(tmp_path / "m.onnx", sizes) == {"x": (1, 7)}


def test_both_forms_are_wanted_where_they_are_compared() -> None:
    assert noise.wanted_files(["gpt2", "t5_encoder"]) == [
        "gpt2.ts.onnx",
        "t5_encoder.ts.onnx",
        "t5_encoder.dynamo.onnx",
    ]


# --- features of others


def test_every_case_is_a_valid_model() -> None:
    cases = features.read_cases()
    assert len(cases) > 50
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        onnx.checker.check_model(case.model())
