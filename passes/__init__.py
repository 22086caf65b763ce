"""graphopt's built-in passes: its first plugin, found through the entry point any other package uses.

A module here is a pass; every rule and graph pass in it carries an example that is its documentation and its test.
"""

from __future__ import annotations

GRAPHOPT_PASSES = True
"""Tells graphopt that this folder, found beside it, holds its own passes."""

ORDER: tuple[str, ...] = (
    "pruning",  # first: nothing later should look at what nobody reads
    "functions",  # before anything that looks at operators: it sees none in a call
    "constant_folding",  # constants and shapes known early let every later pattern match
    "shapes",  # what only a run knows: fewer nodes for it, before these stand between others
    "shape_readers",  # what the plan of all shapes leaves: those that are returned
    "single_numbers",  # and sizes that no plan knows
    "lookups",  # before the ranges they count with are shared
    "expansions",  # what an operator stretches anyway is not stretched before it
    "identities",  # what does nothing goes before expressions are compared
    "trivial_arithmetic",  # the same for arithmetic that changes nothing
    "common_subexpressions",  # equal values become one, so that patterns see one user where there were two
    "branches",  # equal expressions on two sides show once each side holds none twice
    "loops",  # what no iteration changes shows once equal values are one
    "lowering",  # what the opset asked for does not have goes before the rest is converted
    "opset",  # conversion, once little is left to convert and what parameters can be known is known
    "modern_operators",  # in exporters' own spelling, before anything changes it
    "modern_attention",  # likewise, around the same products
    "casts",  # types settle before shapes do
    "fills",  # and numbers that are cast alone before they fill a tensor
    "broadcasting",  # what need not be expanded goes before views are moved
    "sequences",  # parts taken out of sequences are slices of tensors
    "slicing",  # parts of parts
    "concatenation",  # and parts put together
    "splitting",  # and parts that stay apart
    "overwriting",  # and parts that are written over everything
    "padding",  # slices that are negative pads, pads that layers make by themselves
    "caches",  # what is put behind parts of a stack, while the stack is made by views
    "stacking",  # new axes that parts get one by one, before views are looked at
    "views",  # views of views become one before transposes look for a way past them
    "twin_views",  # and what is computed of tensors that are viewed anyway
    "viewed_products",  # then products of two of them
    "neutral_elements",  # algebra on what is left: operands that change nothing go first
    "absorbing_elements",  # results that do not depend on an operand
    "involutions",  # then operators that undo or repeat one another
    "clipping",  # limits that meet
    "variadic",  # sums and extremes of many
    "reductions",  # and reductions
    "comparisons",  # truth values and choices, now that their operands are plain
    "truth_factors",  # choices that are written as products
    "idle_masks",  # tests that always hold
    "constant_chains",  # constants that meet become one
    "meeting_scales",  # and scales that meet through views and products
    "hoisting",  # what every part goes through goes once over the whole; before transposes look for a way
    "projection_scales",  # scales of attention, while queries and keys have layers of their own
    "parallel_layers",  # layers that read the same value, while each part still goes its own way
    "split_heads",  # heads are made of the whole; before transposes move away from each other
    "twin_parts",  # and what two parts go through alike
    "movements",  # whole regions at once, when there is no simpler way
    "layout",  # transposes move once everything else stands still
    "batch_normalization",  # weights change once nothing moves between a layer and what scales it
    "layer_scales",  # then plain factors, which normalizations leave behind
    "layer_biases",  # and what is added to the scaled layer
    "viewed_layers",  # the same for what views stand before
    "projections",  # layers that follow one another, now that nothing stands between
    "normalization_scales",  # and what no layer took
    "rotation_signs",  # late: it changes what rotary embeddings are known by
    "fusion.normalizations",  # for the targets of ONNX Runtime, once all others have settled
    "fusion.embedding",  # the first normalization with all that it adds, before it takes a part of that
    "fusion.residual_normalization",  # what normalizations add by themselves, once they are one operator
    "fusion.activations",  # likewise, around the same layers
    "fusion.biased_activations",  # what activations add by themselves, once they are one operator
    "fusion.group_normalization",  # with the SiLU behind it, once that is one operator
    "fusion.diffusion",  # wider patterns around activations that are one operator; sums that no normalization took
    "fusion.rotary",  # before attention, which takes queries and keys from before their heads are moved
    "fusion.grouped_attention",  # decoders that share keys and values, before these are repeated for another operator
    "fusion.grouped_operands",  # what it computes by itself, once it is there and equal tables are one value
    "fusion.attention",  # what no operator for decoders took
    "fusion.parallel_products",  # what no attention has put together
    "fusion.products",  # what no attention took: these are known by plain products
    "fusion.hidden_sums",  # after all that look for an Add
    "counters",  # late: lookups know the counters they count with by their sums and products
    "naming",  # last: only what is left needs a name
)
"""The order in which the passes run, each with its reason."""
