"""Every rule of the built-in passes, tested by its own examples and their variants."""

from __future__ import annotations

from graphopt.testing import rule_tests

test_examples = rule_tests()
