"""Groups of rewrites that are wrong or slow are left out and named; all others stay. Measured by stand-ins here."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import graphopt
from graphopt.acceptance import Acceptance, Instruments, accept
from graphopt.acceptance.instruments import on_first_provider
from graphopt.errors import UsageError
from graphopt.measurements import Profile, ProfileRow
from graphopt.records import Verification
from tests.acceptance.benches import COSTS, Bench
from tests.acceptance.plugins import GOOD, SLOW, WRONG, model, operators, plugin


def outcomes(done: Acceptance) -> dict[str, str]:
    return {trial.group: trial.outcome for trial in done.report.trials}


def test_a_slow_rule_is_left_out_and_named(tmp_path: Path) -> None:
    drag = plugin(tmp_path / "slow.py", SLOW)
    done = accept(model(tmp_path / "m.onnx"), tools=Bench().tools(), load_files=[drag])
    assert done.report.outcome == "accepted"
    assert [trial.group for trial in done.dropped] == ["slow/drag"]
    assert done.dropped[0].ratio > 1.5
    assert "faster without it" in done.dropped[0].reason
    assert done.report.disable == ("slow/drag",)
    assert done.result.report.operators_after == {"Add": 1, "Softsign": 1, "Elu": 1, "Mul": 1}
    assert done.benchmark is not None
    assert done.benchmark.verdict == "faster"
    assert [name for name, outcome in outcomes(done).items() if outcome == "kept"]


def test_the_settings_give_the_same_again(tmp_path: Path) -> None:
    drag = plugin(tmp_path / "slow.py", SLOW)
    path = model(tmp_path / "m.onnx")
    done = accept(path, tools=Bench().tools(), load_files=[drag])
    again = graphopt.optimize(path, **done.settings)
    assert again.model.SerializeToString() == done.result.model.SerializeToString()


def test_of_a_pass_only_the_slow_rule_goes(tmp_path: Path) -> None:
    both = plugin(tmp_path / "both.py", SLOW + GOOD)
    path = model(tmp_path / "m.onnx", ("Softsign", "Softplus", "Softplus"))
    done = accept(path, tools=Bench().tools(), load_files=[both])
    assert outcomes(done)["both"] == "narrowed"
    assert [trial.group for trial in done.dropped] == ["both/drag"]
    assert "Log" in done.result.report.operators_after
    assert "Sin" not in done.result.report.operators_after


def test_a_slow_rule_hidden_behind_a_better_one_is_found_by_the_profile(tmp_path: Path) -> None:
    both = plugin(tmp_path / "both.py", SLOW + GOOD, rounds=1)
    path = model(tmp_path / "m.onnx", ("Softsign", "Softplus", "Softplus"))
    bench = Bench(costs={**COSTS, "Softplus": 90.0})
    rows = (
        ProfileRow("both/drag", 1.0, 12.0, 0, 0, 1, 1),
        ProfileRow("both/pays", 180.0, 9.0, 0, 0, 2, 3),
    )
    bench.profile = Profile("host", 10, 200.0, 40.0, rewrites=rows)
    done = accept(path, tools=bench.tools(), load_files=[both])
    assert outcomes(done) == {"both/drag": "left out", "both/pays": "kept", "naming/name_nodes": "kept"}
    assert "Log" in done.result.report.operators_after


def test_a_wrong_rule_is_left_out_and_named(tmp_path: Path) -> None:
    lie, drag = plugin(tmp_path / "wrong.py", WRONG), plugin(tmp_path / "slow.py", SLOW)
    done = accept(model(tmp_path / "m.onnx"), tools=Bench().tools(), load_files=[lie, drag])
    assert done.report.outcome == "accepted"
    assert {trial.group: trial.outcome for trial in done.dropped} == {"wrong/lie": "wrong", "slow/drag": "left out"}
    assert "there is a Selu" in done.dropped[0].reason
    assert done.verification is not None
    assert done.verification.equal


def test_what_stays_different_is_not_accepted(tmp_path: Path) -> None:
    bench = Bench(wrong="Add")
    done = accept(model(tmp_path / "m.onnx"), tools=bench.tools())
    assert done.report.outcome == "different"
    assert not done.dropped
    assert not bench.asked


def test_ties_leave_everything_on(tmp_path: Path) -> None:
    done = accept(model(tmp_path / "m.onnx"), tools=Bench(costs={"Identity": 0.0}).tools())
    assert done.report.outcome == "accepted"
    assert not done.dropped
    assert done.benchmark is not None
    assert done.benchmark.verdict == "no difference seen"
    assert "Identity" not in done.result.report.operators_after


def test_noise_leaves_everything_on(tmp_path: Path) -> None:
    drag = plugin(tmp_path / "slow.py", SLOW, rounds=1)
    bench = Bench(noise=0.9)
    done = accept(model(tmp_path / "m.onnx"), tools=bench.tools(), load_files=[drag])
    assert not done.dropped
    assert outcomes(done)["slow/drag"] == "kept"
    assert "not surely" in next(trial.reason for trial in done.report.trials if trial.group == "slow/drag")


@pytest.mark.parametrize("row", [("Identity", "Elu"), ("Identity", "Elu", "Neg", "Neg", "Relu", "Relu")])
def test_what_is_slower_in_all_is_kept_as_it_was(tmp_path: Path, row: tuple[str, ...]) -> None:
    path = model(tmp_path / "m.onnx", row)
    before = operators(path)

    class Perverse(Bench):
        def cost(self, path: str) -> float:
            return 10.0 if operators(path) == before else 20.0  # whatever is done is slower, by whichever part

    done = accept(path, tools=Perverse().tools())
    assert done.report.outcome == "nothing to gain"
    assert "kept as it was" in done.report.reason
    assert not done.result.report.rewrites
    assert list(done.result.report.operators_after)
    assert graphopt.optimize(path, **done.settings).model.SerializeToString() == done.result.model.SerializeToString()


def test_the_same_graph_at_run_time_is_not_timed(tmp_path: Path) -> None:
    bench = Bench()
    path = model(tmp_path / "m.onnx")
    done = accept(path, tools=bench.tools(lambda name: "original" if name == str(path) else "another"))
    assert set(outcomes(done).values()) == {"same graph"}
    assert len(bench.asked) == 1  # all of it against the original


def test_the_graph_of_the_original_needs_no_trials(tmp_path: Path) -> None:
    bench = Bench()
    done = accept(model(tmp_path / "m.onnx"), tools=bench.tools(lambda name: "one graph"))
    assert done.report.outcome == "accepted"
    assert "the same graph of the original" in done.report.reason
    assert not done.report.trials
    assert len(bench.asked) == 1


def test_the_time_limit_holds(tmp_path: Path) -> None:
    names = [
        plugin(tmp_path / f"slow{index}.py", SLOW.replace("Softsign", name))
        for index, name in enumerate(("Softsign", "Sinh", "Cosh", "Asinh", "Erf", "Tan"))
    ]
    path = model(tmp_path / "m.onnx", ("Softsign", "Sinh", "Cosh", "Asinh", "Erf", "Tan", "Identity"))
    bench = Bench()
    bench.late = 4.0  # loading takes that long, whatever it is told
    done = accept(path, max_time=40.0, tools=bench.tools(), load_files=names)
    assert done.report.out_of_time
    assert "not tried" in outcomes(done).values()
    assert bench.now <= 40.0


def test_the_search_for_a_wrong_rule_ends_with_the_time(tmp_path: Path) -> None:
    bench = Bench()

    def verify(original: str, other: str) -> Verification:
        bench.now += 20.0
        return bench.verify(original, other)

    tools = Instruments(verify, bench.measure, clock=lambda: bench.now)
    lie = plugin(tmp_path / "wrong.py", WRONG)
    path = model(tmp_path / "m.onnx", ("Elu", *["Identity"] * 30))
    done = accept(path, max_time=30.0, tools=tools, load_files=[lie])
    assert done.report.outcome == "different"
    assert done.report.out_of_time
    assert bench.now <= 80.0


def test_progress_says_what_which_and_the_best(tmp_path: Path) -> None:
    said: list[str] = []
    accept(model(tmp_path / "m.onnx"), tools=Bench().tools(), progress=said.append)
    assert any("1 of 1: without" in text and "best so far" in text and "s left" in text for text in said), said


def test_a_group_that_is_needed_stays(tmp_path: Path) -> None:
    done = accept(model(tmp_path / "m.onnx"), tools=Bench().tools(), opset=21)
    needed = [trial for trial in done.report.trials if trial.group.startswith("opset")]
    assert all(trial.outcome in ("needed", "same graph", "kept") for trial in needed)
    assert next(item.version for item in done.result.model.opset_import if item.domain == "") == 21


def test_the_signature_asked_for_is_the_reference(tmp_path: Path) -> None:
    seen: list[list[str]] = []
    bench = Bench()

    def verify(original: str, other: str) -> Verification:
        seen.append([value.name for value in onnx.load(original).graph.output])
        return bench.verify(original, other)

    tools = Instruments(verify, bench.measure, clock=lambda: bench.now)
    done = accept(model(tmp_path / "m.onnx"), tools=tools, outputs=["v1"])
    assert seen[0] == ["v1"]
    assert [value.name for value in done.result.model.graph.output] == ["v1"]


def test_no_time_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="above 0"):
        accept(model(tmp_path / "m.onnx"), max_time=0.0, tools=Bench().tools())


def test_a_model_without_rewrites_has_nothing_to_gain(tmp_path: Path) -> None:
    bench = Bench()
    done = accept(model(tmp_path / "m.onnx", ("Elu",)), tools=bench.tools())
    assert done.report.outcome == "nothing to gain"
    assert not bench.asked


def test_the_report_is_json(tmp_path: Path) -> None:
    document = accept(model(tmp_path / "m.onnx"), tools=Bench().tools()).report.to_json()
    assert (document["schema"], document["outcome"]) == ("graphopt.acceptance", "accepted")
    assert document["trials"][0]["group"]


def test_of_several_providers_the_first_is_timed() -> None:
    options = {"provider": ("cuda", "cpu"), "provider_options": {"cuda:use_tf32": "0", "cpu:x": "1"}, "seed": 3}
    assert on_first_provider(options) == {"provider": "cuda", "provider_options": {"cuda:use_tf32": "0"}, "seed": 3}
    assert on_first_provider({"provider": "cpu, cuda"})["provider"] == "cpu"
    assert on_first_provider({})["provider"] == "auto"
