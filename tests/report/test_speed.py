from __future__ import annotations

from dataclasses import replace

from rich.console import Console, RenderableType

from graphopt.measurements import Benchmark, Comparison, LatencySide, Placement, Profile, ProfileRow, Sweep
from graphopt.report import benchmark_text, profile_text, sweep_text

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
PLACED = Placement(12, 3, {CUDA: 9, CPU: 3}, {"Shape": 2, "Gather": 1}, {"MatMul": 9})
SIDE = LatencySide("a.onnx", 1.5, 2.0, 3.0, 120, 5, 0.25, 4_000_000, 5_000_000, 7.25, 6_000_000, {}, PLACED)
DECODE = Comparison("decode", "tokens/s", 100.0, 150.0, "faster", 1.5, 1.4, 1.6, "16 steps after 8 tokens, batch 1")
RESULT = Benchmark(
    "faster", "1.5 times as fast", 1.5, 1.4, 1.6, 0.99, SIDE, replace(SIDE, label="b.onnx"), CUDA, "1.31.1", 1,
    comparisons=(DECODE,),
)  # fmt: skip


def printed(text: RenderableType, width: int = 100) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(text)
    return captured.get()


def test_both_sides_stand_side_by_side() -> None:
    text = printed(benchmark_text(RESULT))
    rows = {line.split("  ")[0].strip(): line for line in text.splitlines()}
    assert "a.onnx" in text
    assert rows["first run"].count("7.250 ms") == 2
    assert rows["device memory"].count("6.0 MB") == 2
    assert rows["copies to and from host"].count("3") == 2
    assert rows["nodes on CUDA"].count("9") == 2
    assert rows["operators left to the CPU"].count("Shape 2, Gather 1") == 2
    assert "decode, tokens/s" in text
    assert "16 steps after 8 tokens, batch 1" in text
    assert "1 thread" in text


def test_narrow_terminals_keep_figures_whole() -> None:
    lines = printed(benchmark_text(RESULT), 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert any("1.400 to 1.600" in line and "faster" in line for line in lines)


def test_missing_figures_have_their_reason() -> None:
    side = replace(SIDE, device_bytes=None, unknown={"device_bytes": "nothing tells"})
    assert "device memory: not known, nothing tells" in printed(benchmark_text(replace(RESULT, rewritten=side)))
    on_cpu = replace(RESULT, provider=CPU, original=side, rewritten=side)
    assert "not known" not in printed(benchmark_text(on_cpu))


def test_a_point_that_was_not_measured_says_why() -> None:
    failed = Benchmark("not measured", "run failed: no kernel", dims={"batch": 8})
    text = printed(sweep_text(Sweep((replace(RESULT, dims={"batch": 1}), failed))))
    row = next(line for line in text.splitlines() if line.split()[:1] == ["8"])
    assert "not measured" in row
    assert "?" in row


def test_rows_beyond_the_first_are_added_up() -> None:
    rows = tuple(ProfileRow(f"Op{n}", 1.0, 0.5, 0.05, 0.05, 2, 1) for n in range(20))
    profile = Profile("host", 5, 20.0, 10.0, rows, nodes=(ProfileRow("x (Op1)", 1.0, 0.0, 0.05, 0.0, 1, 0),))
    text = printed(profile_text(profile))
    rest = next(line for line in text.splitlines() if line.startswith("10 more"))
    assert rest.split("shows all")[1].split() == ["10.000", "ms", "50.0%", "20", "5.000", "ms", "50.0%", "10"]
    assert "x (Op1)" not in text
    assert "x (Op1)" in printed(profile_text(profile, verbose=1))
    assert "Op19" in printed(profile_text(profile, verbose=1))
