"""`graphopt doctor`."""

from __future__ import annotations

from graphopt.cli import options
from graphopt.cli.output import progress, show, show_json

NAME = "doctor"


def command(json: options.Json = False) -> int:
    """Check the installation: versions, providers that really run, what to mend and how."""
    from graphopt.report import doctor_text
    from graphopt.runtime import doctor

    with progress("looking", quiet=json):
        report = doctor()
    if json:
        show_json(report.to_json())
    else:
        show(doctor_text(report))
    return 0 if report.healthy else 1
