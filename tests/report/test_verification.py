"""The verdict as people read it."""

from __future__ import annotations

from rich.console import Console, RenderableType

from graphopt.records import NoiseFloor, OutputDiff, Verification
from graphopt.report import verification_text


def text_of(renderable: RenderableType, width: int = 100) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def verification(**changes: object) -> Verification:
    fields: dict[str, object] = {
        "verdict": "equal",
        "reason": "within the measured noise",
        "provider": "CUDAExecutionProvider",
        "provider_asked": "cuda",
        "runtime": "1.31.1",
        "outputs": (
            OutputDiff(
                "y", "equal", "within 3 times the measured noise", error=1e-7, error_as_users_run=4e-4, tolerance=6e-7,
                tolerance_as_users_run=1.5e-3, floor_sessions=0.0, floor_tf32=5e-4,
            ),
        ),
        "floors": (NoiseFloor("in another session", 0.0, "y"), NoiseFloor("by TF32", 5e-4, "y")),
    }  # fmt: skip
    return Verification(**{**fields, **changes})  # type: ignore[arg-type]


def test_both_floors_are_printed() -> None:
    text = text_of(verification_text(verification()))
    assert "0 in another session, 5.0e-04 by TF32" in text
    assert "TF32" not in text.split("output", 2)[2]  # columns for them are for -v
    assert "1.5e-03" in text
    detailed = text_of(verification_text(verification(), verbose=1))
    assert "sessions" in detailed
    assert max(map(len, detailed.splitlines())) <= 100


def test_each_provider_has_its_part() -> None:
    parts = (
        verification(),
        Verification("not verified", "QNN does not start", provider_asked="QNNExecutionProvider"),
    )
    whole = verification(verdict="not verified", reason="on QNNExecutionProvider: QNN does not start", parts=parts)
    lines = text_of(verification_text(whole)).splitlines()
    assert lines[0].split() == ["verdict", "not", "verified"]
    assert "cuda" in lines
    assert "QNNExecutionProvider" in lines
    assert any("verdict  equal on CUDA" in line for line in lines)


def test_inner_values_adversarial_feeds_options_and_commands_are_told() -> None:
    inner = (OutputDiff("h", "different", "3 of 8 elements", error=1e-5, tolerance=1e-7), OutputDiff("g", "equal"))
    result = verification(
        verdict="different",
        inner=inner,
        adversarial=Verification("different", "output 'y' differs at adversarial: NaN"),
        provider_options={"use_tf32": "0"},
        against="run {model} {inputs} {outputs}",
    )
    text = text_of(verification_text(result))
    assert "2 inner values compared, 1 of them off" in text
    assert "different: output 'y' differs at adversarial: NaN" in text
    assert "use_tf32=0" in text
    assert "run {model} {inputs} {outputs}" in text
    assert "3 of 8 elements" in text
    document = result.to_json()
    assert document["floors"][1]["unit"] == "share of the output's largest value"
    assert document["adversarial"]["verdict"] == "different"
