"""Measure which float operators give a number the same bits wherever it stands; write the table of them.

A kernel that handles eight numbers at a time and the rest of the array one by one may round the two differently. Then
`Slice(Log(x))` and `Log(Slice(x))` differ, and a rewrite from one to the other is not exact. For each elementwise
operator and element type this runs ONNX Runtime's CPU provider (one thread, runtime optimizer off, pre-packing off) on
many numbers in arrays of every length from 1 to 67 and some longer, at every place and memory offset, and in every way
operands broadcast, and compares bits with the same numbers amid a long array. NaN counts as equal to NaN.

    python benchmarks/make_position_table.py            # measure here, replace the table
    python benchmarks/make_position_table.py --merge    # measure here, keep what is dependent in the table already

Float16 is not measured: its bits depend on the neighbours. Most operators have no float16 kernel on the CPU and are
computed in float32 between inserted casts, also with the runtime's optimizer off; casts that meet are dropped, and a
node that has a kernel but stands alone between two such operators is computed in float32 too.

The second form is for another machine or runtime version: kernels differ by CPU, so the table is the union. Takes
minutes. An operator that has no kernel, or is not listed below, counts as dependent.
"""

from __future__ import annotations

import argparse
import platform
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state as state

TABLE = Path(__file__).resolve().parents[1] / "graphopt" / "analysis" / "position_table.py"

# Found dependent elsewhere, on CPUs and runtime versions that differ from those measured here.
KNOWN_DEPENDENT = ("Asin", "Atan", "Cos", "Log", "Mish", "Sin", "Softplus")

DTYPES = {
    "FLOAT": (TensorProto.FLOAT, np.float32),
    "DOUBLE": (TensorProto.DOUBLE, np.float64),
}
LENGTHS = [*range(1, 68), 127, 255, 257, 1000, 4097]

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Case:
    """One operator with one set of attributes; `arity` operands of the element type."""

    op_type: str
    arity: int = 1
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 21
    domain: str = ""
    scalars: tuple[float, ...] = ()
    """Further operands that are scalars (the limits of Clip)."""
    condition: bool = False
    """True if a bool operand comes first (Where)."""
    exponent: int | None = None
    """The element type of operand 1, if it is not that of operand 0."""


def unary(names: str, **rest: Any) -> list[Case]:
    """A case for each of the names."""
    return [Case(name, **rest) for name in names.split()]


CASES = [
    *unary("Abs Acos Acosh Asin Asinh Atan Atanh Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid HardSwish"),
    *unary("Identity IsInf IsNaN LeakyRelu Log Mish Neg Reciprocal Relu Round Selu Sigmoid Sign Sin Sinh Shrink"),
    *unary("Softplus Softsign Sqrt Tan Tanh ThresholdedRelu"),
    *unary("Swish", opset=24),
    *unary("Celu Elu LeakyRelu ThresholdedRelu", attributes={"alpha": 0.3}),
    Case("Selu", attributes={"alpha": 1.5, "gamma": 1.1}),
    Case("HardSigmoid", attributes={"alpha": 1 / 6, "beta": 0.5}),
    Case("Gelu", attributes={"approximate": "tanh"}),
    Case("Shrink", attributes={"lambd": 0.3, "bias": 0.1}),
    *unary("Gelu QuickGelu FastGelu", domain="com.microsoft"),
    *[
        Case("Cast", attributes={"to": to})
        for to in (
            TensorProto.FLOAT,
            TensorProto.DOUBLE,
            TensorProto.FLOAT16,
            TensorProto.BFLOAT16,
            TensorProto.INT8,
            TensorProto.UINT8,
            TensorProto.INT16,
            TensorProto.INT32,
            TensorProto.INT64,
            TensorProto.BOOL,
            TensorProto.FLOAT8E4M3FN,
            TensorProto.FLOAT8E5M2,
        )
    ],
    *unary("Clip", scalars=(-0.5, 0.75)),
    *unary("Clip", opset=10, attributes={"min": -0.5, "max": 0.75}),
    *unary("Add Div Equal Greater GreaterOrEqual Less LessOrEqual Mul Pow PRelu Sub Max Mean Min Sum", arity=2),
    *unary("Max Mean Min Sum", arity=3),
    Case("Mod", arity=2, attributes={"fmod": 1}),
    Case("Pow", arity=2, exponent=TensorProto.INT64),
    Case("Pow", arity=2, exponent=TensorProto.FLOAT),
    Case("Where", arity=2, condition=True),
    Case("BiasGelu", arity=2, domain="com.microsoft"),
]


class Probe:
    """A session of one operator."""

    def __init__(self, case: Case, dtype: str) -> None:
        element, self.numpy = DTYPES[dtype]
        self.case = case
        second = case.exponent if case.exponent is not None else element
        types = [TensorProto.BOOL] * case.condition + [element] + [second] * (case.arity - 1)
        self.names = [f"x{index}" for index in range(len(types))]
        node = helper.make_node(
            case.op_type,
            self.names + [f"s{index}" for index in range(len(case.scalars))],
            ["y"],
            domain=case.domain,
            **case.attributes,
        )
        nodes, result = [node], "y"
        if case.attributes.get("to") in (TensorProto.BFLOAT16, TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2):
            nodes.append(helper.make_node("Cast", ["y"], ["z"], to=TensorProto.FLOAT))  # numpy has no such type
            result = "z"
        scalars = [np.array(value, self.numpy) for value in case.scalars]
        graph = helper.make_graph(
            nodes,
            "probe",
            [helper.make_tensor_value_info(name, kind, None) for name, kind in zip(self.names, types, strict=True)],
            [helper.make_empty_tensor_value_info(result)],
            [
                helper.make_tensor(f"s{index}", element, (), value.tobytes(), raw=True)
                for index, value in enumerate(scalars)
            ],
        )
        opsets = [helper.make_opsetid("", case.opset), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.log_severity_level = 4
        self.session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self.element_types: list[Any] = [np.bool_] * case.condition + [self.numpy]
        self.element_types += [helper.tensor_dtype_to_np_dtype(second)] * (case.arity - 1)

    def run(self, arrays: list[Array]) -> Array:
        """The result for these operands."""
        result: Array = self.session.run(None, dict(zip(self.names, arrays, strict=True)))[0]
        return result

    def amid_a_long_array(self, arrays: list[Array]) -> Array:
        """The result with all operands brought to one shape and standing at the front of a long flat array."""
        full = np.broadcast_arrays(*arrays)
        flat = [array.reshape(-1) for array in full]
        length = -(-flat[0].size // 64) * 64 + 64
        result = self.run([np.resize(array, length) for array in flat])
        return result[: flat[0].size].reshape(full[0].shape)


def difference(left: Array, right: Array) -> int:
    """0 for the same bits (NaN equals NaN), 1 if only signs of zeros differ, 2 otherwise."""
    if left.dtype.kind != "f":
        return 0 if np.array_equal(left, right) else 2
    word = np.dtype(f"u{left.dtype.itemsize}")
    equal = np.ascontiguousarray(left).view(word) == np.ascontiguousarray(right).view(word)
    equal |= np.isnan(left) & np.isnan(right)
    return 0 if equal.all() else 1 if (equal | (left == right)).all() else 2


def numbers(kind: np.dtype[Any], count: int, random: np.random.Generator) -> Array:
    """Numbers of every sort: specials, near 0 and 1, large, integers, and random bits."""
    if kind == np.bool_:
        return random.integers(0, 2, count).astype(np.bool_)
    if kind.kind in "iu":
        return random.integers(-3, 6, count).astype(kind)
    info = np.finfo(kind)
    special = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3.0, np.inf, -np.inf, np.nan, info.tiny, -info.tiny, info.max, info.eps]
    word = np.dtype(f"u{kind.itemsize}")
    special += [float(info.tiny) / 8, -float(info.tiny) / 2]
    part = count // 6
    with np.errstate(all="ignore"):
        pieces = [
            random.choice(special, part),  # so many that zeros of both signs and NaN meet as operands
            random.normal(size=part),
            random.uniform(-1, 1, part),
            random.normal(size=part) * 10.0 ** random.uniform(-3, 4, part),
            random.integers(-40, 41, part),
            random.integers(0, np.iinfo(word).max, part, word, endpoint=True).view(kind),
        ]
        whole = np.concatenate([piece.astype(kind) for piece in pieces])
    # No arithmetic gives a signaling NaN, and kernels do not agree on what to do with one.
    quiet = np.isnan(whole)
    whole.view(word)[quiet] |= word.type(1 << (info.nmant - 1))
    return random.permutation(np.resize(whole, count))


def at_offset(array: Array, offset: int) -> Array:
    """The same array, `offset` elements past an aligned address."""
    room = np.empty(array.size + offset, array.dtype)
    room[offset:] = array.reshape(-1)
    return room[offset:].reshape(array.shape)


def places(pools: list[Array], random: np.random.Generator) -> Iterator[list[Array]]:
    """Operands of one shape: every length at many places, many numbers in short arrays, some shapes of higher rank."""
    size = pools[0].size
    for length in LENGTHS:
        for turn in range(48 if length < 68 else 12):
            starts = [int(start) for start in random.integers(0, size - length, len(pools))]
            pieces = [pool[start : start + length] for pool, start in zip(pools, starts, strict=True)]
            yield [at_offset(piece, turn % 17) for piece in pieces]
    for length, limit in ((1, 4096), (3, size), (7, size), (15, size), (31, size)):
        for start in range(0, min(size, limit) - length, length):
            yield [pool[start : start + length] for pool in pools]
    for shape in ((3, 5), (7, 1), (2, 3, 4), (1, 9, 1, 5), (64, 65), (13, 33)):
        count = int(np.prod(shape))
        yield [pool[:count].reshape(shape) for pool in pools]


FORMS = [
    ((), (0,)),
    ((0,), ()),
    ((-1,), (0,)),
    ((0,), (-1,)),
    ((1, 0), (0,)),
    ((0,), (1, 0)),
    ((1, 0), (1, -1)),
    ((1, -1), (1, 0)),
    ((1, -1), (-1, 0)),
    ((-1, 0), (1, -1)),
    ((2, 1, 0), (1, -1)),
    ((2, -1, 0), (1, 0)),
    ((1, -1), (2, 1, 0)),
    ((2, 1, 0), (2, -1, 0)),
    ((2, 1, 0), ()),
    ((1, 0), (1, 0)),
]
"""Shapes that broadcast: 0, 1, 2 stand for three sizes, -1 for 1."""


def forms(pools: list[Array], random: np.random.Generator) -> Iterator[list[Array]]:
    """Operands that broadcast against each other in every way."""
    for length in (*range(1, 36), 63, 64, 65, 130):
        for pair in FORMS:
            sizes = (length, int(random.integers(2, 6)), int(random.integers(1, 4)))
            for _ in range(4):
                chosen = [pair[index % 2] for index in range(len(pools))]
                if len(pools) > 2:
                    chosen = [chosen[index] for index in random.permutation(len(pools))]
                shapes = [tuple(1 if place < 0 else sizes[place] for place in shape) for shape in chosen]
                counts = [int(np.prod(shape)) for shape in shapes]
                starts = [int(random.integers(0, pools[0].size - count)) for count in counts]
                yield [
                    pool[start : start + count].reshape(shape)
                    for pool, start, count, shape in zip(pools, starts, counts, shapes, strict=True)
                ]


def worst_difference(probe: Probe, layouts: Iterator[list[Array]]) -> int:
    """How far any layout is from the bits that the same numbers have amid a long array, see `difference`."""
    waiting: list[tuple[list[Array], Array]] = []
    worst = 0
    for arrays in layouts:
        try:
            waiting.append((arrays, probe.run(arrays)))
        except (state.Fail, state.InvalidArgument, state.RuntimeException):
            if probe.case.op_type not in ("PRelu", "BiasGelu"):
                raise  # only these do not broadcast in every way
            continue
        if len(waiting) == 256:
            worst = max(worst, _confirm(probe, waiting))
            waiting.clear()
            if worst == 2:
                break
    return max(worst, _confirm(probe, waiting))


def _confirm(probe: Probe, found: list[tuple[list[Array], Array]]) -> int:
    if not found:
        return 0
    full = [np.broadcast_arrays(*arrays) for arrays, _ in found]
    together = [np.concatenate([arrays[place].reshape(-1) for arrays in full]) for place in range(len(full[0]))]
    expected = probe.amid_a_long_array(together)
    return difference(np.concatenate([result.reshape(-1) for _, result in found]), expected)


Key = tuple[str, str, str]
"""Domain, operator, element type."""
Finding = tuple[int, int]
"""The worst difference at other places, and in other forms of broadcasting."""


def measure(case: Case, dtype: str, count: int) -> Finding | None:
    """What was found for one case; None if the provider cannot run it."""
    try:
        probe = Probe(case, dtype)
        random = np.random.default_rng(20240607)
        pools = [numbers(np.dtype(kind), count, random) for kind in probe.element_types]
        probe.run([pool[:64] for pool in pools])
    except Exception as error:  # no kernel, unknown operator, an opset that is too new
        print(f"{case.op_type:20} {dtype:8} not run: {str(error).splitlines()[0][:90]}")
        return None
    at_places = worst_difference(probe, places(pools, random))
    return at_places, worst_difference(probe, forms(pools, random)) if len(pools) > 1 else 0


def measure_all(count: int, only: Callable[[Case], bool]) -> dict[Key, Finding]:
    """The worst of the cases of each operator and element type."""
    results: dict[Key, Finding] = {}
    for case in filter(only, CASES):
        for dtype in DTYPES:
            found = measure(case, dtype, count)
            key = (case.domain, case.op_type, dtype)
            if found is not None:
                results[key] = _worse(found, results.get(key, (0, 0)))
                print(f"{case.op_type:20} {dtype:8} {found} {case.attributes or ''}", flush=True)
    return {key: (2, 2) if key[1] in KNOWN_DEPENDENT else found for key, found in results.items()}


def _worse(left: Finding, right: Finding) -> Finding:
    return max(left[0], right[0]), max(left[1], right[1])


def machine() -> str:
    """Runtime version and what of the CPU decides which kernels run."""
    flags: list[str] = []
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        listed = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.M)
        wanted = re.compile(r"(avx|avx2|fma|f16c|avx512\w+|amx\w+|asimd\w*|sve\w*)$")
        flags = sorted(word for word in (listed[1].split() if listed else ()) if wanted.match(word))
    except OSError:
        pass
    return f"ONNX Runtime {onnxruntime.__version__}, {platform.machine()}: {' '.join(flags) or 'features unknown'}"


TEMPLATE = '''"""Which elementwise operators give a number the same bits anywhere, on ONNX Runtime's CPU provider.

Generated by benchmarks/make_position_table.py; do not edit, remake it with that, with --merge on another machine or
runtime. Measured with one thread, runtime optimizer off and pre-packing off, on:

{machines}

Also counted as dependent: {known}, found so elsewhere. Float16 is not
in the table: the provider computes most of it in float32 and rounds only where the neighbours make it, so the bits
depend on the graph around.
"""

from __future__ import annotations

from typing import Final

MEASURED_ON: Final = (
{measured}
)

INDEPENDENT: Final[frozenset[tuple[str, str, str]]] = frozenset(
    {{
{independent}
    }}
)
"""(domain, operator, element type it computes with): the same bits at every place, length, and way to broadcast."""

FORM_DEPENDENT: Final[frozenset[tuple[str, str, str]]] = frozenset(
    {{
{form}
    }}
)
"""The same bits at every place and length, but not where an operand is a scalar or vector instead of a whole tensor."""

DEPENDENT: Final[frozenset[tuple[str, str, str]]] = frozenset(
    {{
{dependent}
    }}
)
"""Other bits at another place or length. So may be everything that stands in no set: it was not measured."""

SIGN_OF_ZERO_ONLY: Final[frozenset[tuple[str, str, str]]] = frozenset(
    {{
{zero}
    }}
)
"""Those of the two sets above where nothing differs but the sign of zeros."""
'''


def write(results: dict[Key, Finding], machines: list[str]) -> None:
    """Write the table."""

    def rows(wanted: Callable[[Finding], bool]) -> str:
        listed = sorted(key for key, found in results.items() if wanted(found))
        return "\n".join(f'        ("{domain}", "{name}", "{dtype}"),' for domain, name, dtype in listed)

    TABLE.write_text(
        TEMPLATE.format(
            machines="\n".join(f"* {_wrapped(line)}" for line in machines),
            known=", ".join(KNOWN_DEPENDENT),
            measured="\n".join(f'    "{line.split(":")[0]}",' for line in machines),
            independent=rows(lambda found: found == (0, 0)),
            form=rows(lambda found: found[0] == 0 < found[1]),
            dependent=rows(lambda found: found[0] > 0),
            zero=rows(lambda found: max(found) == 1),
        ),
        encoding="utf-8",
    )


def _wrapped(line: str) -> str:
    return "\n  ".join(textwrap.wrap(line, 116))


def merge(results: dict[Key, Finding]) -> tuple[dict[Key, Finding], list[str]]:
    """What the table holds joined with what was measured now: the worse of the two."""
    names: dict[str, Any] = {}
    text = TABLE.read_text(encoding="utf-8")
    exec(compile(text, str(TABLE), "exec"), names)
    joined = dict(results)
    for name, finding in (("INDEPENDENT", (0, 0)), ("FORM_DEPENDENT", (0, 1)), ("DEPENDENT", (1, 1))):
        for key in names[name]:
            worst = max(finding) and (1 if key in names["SIGN_OF_ZERO_ONLY"] else 2)
            known = (min(finding[0], worst) and worst, worst)
            joined[key] = _worse(known, joined.get(key, (0, 0)))
    head = text.split("runtime optimizer off and pre-packing off, on:")[1].split("Also counted")[0]
    machines = [re.sub(r"\s+", " ", part).strip() for part in head.split("\n* ")]
    return joined, [line for line in machines if line]


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--merge", action="store_true", help="keep what is dependent in the table already")
    parser.add_argument("--count", type=int, default=1 << 15, help="how many numbers")
    parser.add_argument("--only", default="", help="measure these operators and write nothing")
    arguments = parser.parse_args()
    only = set(arguments.only.split())
    results = measure_all(arguments.count, lambda case: not only or case.op_type in only)
    if only:
        return 0
    machines = [machine()]
    if arguments.merge and TABLE.exists():
        results, before = merge(results)
        machines = [*before, *(line for line in machines if line not in before)]
    write(results, machines)
    print(f"wrote {TABLE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
