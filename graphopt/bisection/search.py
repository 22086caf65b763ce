"""Finding the first bad one of a row of rewrites by halving.

Optimizing is deterministic: the same model with the same options makes the same rewrites in the same order, and
`stop_after=k` gives the model after k of them. So the model "after k rewrites" is a function of k, and a binary search
between a k that is good and one that is bad ends at two neighbours, whatever happens elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Trial = Callable[[int], str]
"""Told how many rewrites to make; says why the result is bad, or nothing if it is good."""


@dataclass(frozen=True, slots=True)
class Found:
    """Two neighbours: the model is good after `number - 1` rewrites and bad after `number`.

    Attributes:
        number: The rewrite that made the difference.
        reason: What is wrong after it.
        trials: How many models were looked at.
    """

    number: int
    reason: str
    trials: int


def first_bad(rewrites: int, is_bad: Trial, say: Callable[[str], None] = lambda text: None) -> Found | None:
    """Find a rewrite after which the model is bad though it was good before it.

    Args:
        rewrites: How many rewrites there are in all.
        is_bad: Looks at the model after so many rewrites.
        say: Told what goes on.

    Returns:
        The rewrite; number 0 if the model is bad without any; None if it is good after all of them.
    """
    say(f"after all {rewrites} rewrites")
    reason = is_bad(rewrites)
    if not reason:
        return None
    say("without any rewrite")
    before = is_bad(0)
    if before:
        return Found(0, before, 2)
    good, bad, trials = 0, rewrites, 2
    while bad - good > 1:
        middle = (good + bad) // 2
        say(f"after {middle} of {rewrites} rewrites; the first bad one is among {good + 1} to {bad}")
        found = is_bad(middle)
        trials += 1
        if found:
            bad, reason = middle, found
        else:
            good = middle
    return Found(bad, reason, trials)
