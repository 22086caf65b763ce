"""Tests made from the examples of rules and graph passes, for the built-in ones and for anybody's.

In a suite of your own, one line runs everything for the passes of a package or file:

    test_rules = rule_tests("my_package")            # or rule_tests("path/to/my_pass.py")

`pytest -p graphopt.testing.plugin --graphopt-rules my_passes/` needs not even that, and
`graphopt passes my_pass --load my_pass.py --test` does the same from the command line.
"""

from __future__ import annotations

from graphopt.testing.checks import CheckReport, check_item, opset_of
from graphopt.testing.pytest_support import rule_tests
from graphopt.testing.structure import same_structure, structure

__all__ = ["CheckReport", "check_item", "opset_of", "rule_tests", "same_structure", "structure"]
