"""Writes the C code of a mapping: the loop nest, a buffer for each operand and level, and byte counters.

The code is C11 and holds no text of the model: names are made from the level and the operand. A site is one
file with a function `run`. The driver reads the operands from files, calls `run` for each product of the
batch, and writes the output and the counters.

Cores run one after the other within a step. Counters add up all cores. A tile that several cores read from
outside at the same time counts once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from explorer.base.errors import Misuse
from explorer.engine.mapping.cost import build_nest, find_epilogue_level
from explorer.engine.mapping.nest import AXES, OPERAND_AXES, Nest, Operand, find_reduction_level
from explorer.facts.mapping import MemoryMachine, SiteMapping

C_TYPES = {
    "float32": "float",
    "float64": "double",
    "int8": "int8_t",
    "uint8": "uint8_t",
    "int16": "int16_t",
    "uint16": "uint16_t",
    "int32": "int32_t",
    "int64": "int64_t",
}
"""Types of C by number type."""

HALVES = {
    "float16": """  const uint32_t sign = (uint32_t)(code & 0x8000u) << 16;
  const uint32_t exponent = code >> 10 & 31, fraction = code & 1023;
  if (!exponent) return (sign ? -0x1p-24f : 0x1p-24f) * (float)fraction;
  const uint32_t bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13;""",
    "bfloat16": "  const uint32_t bits = (uint32_t)code << 16;",
}
"""C code that computes the `bits` of the float with the value of a 16-bit `code`, by number type.

C11 has no type for these operands. Every one of their values is a float, so the conversion does not round.
"""

COUNTERS = (
    *("A loads", "B loads", "C loads", "C stores", "A reads", "B reads", "C reads", "C writes"),
    *("bias reads", "residual reads"),
)
"""Counters of a level, in bytes: what it loads and stores, and what it reads and writes outside.

The C code refers to a counter by its index.
"""

_MAKES_FLOATS = ("scale", "offset", "quantize", "requantize")
"""Steps that compute with floats, also after a sum of integers."""

_RANGES = {
    "int8_t": ("-128", "127"),
    "uint8_t": ("0", "255"),
    "int16_t": ("-32768", "32767"),
    "uint16_t": ("0", "65535"),
}
"""Ranges of the types to which an epilogue quantizes."""

_SIZE_NAMES = {0: "M", 1: "K", 2: "N"}
"""Names of the sizes in the C code, by axis."""


class EmittedSite(NamedTuple):
    """Code of a site.

    Attributes:
        source: Text of the C file.
        levels: Number of levels, each with the counters of `COUNTERS`.
    """

    source: str
    levels: int


class EpilogueStep(NamedTuple):
    """Operator of an epilogue, applied to a finished sum.

    | kind | value |
    |---|---|
    | 'bias' | sum + bias of the column |
    | 'scale' | as a float, times `low`, or times the scale of the column if `low` is 0 |
    | 'offset' | float + offset of the column |
    | 'residual' | float + residual of the element |
    | 'relu' | max(value, 0) |
    | 'clip' | min(max(value, `low`), `high`) |
    | 'quantize' | float / `low`, rounded half to even, + `high`, limited to the output's type |
    | 'requantize' | like 'quantize', but sum x `low` |

    Attributes:
        kind: Kind of the step.
        low: First number of the step.
        high: Second number of the step.
    """

    kind: str
    low: float = 0.0
    high: float = 0.0


def emit_site(
    mapping: SiteMapping,
    machine: MemoryMachine,
    *,
    right_dtype: str | None = None,
    steps: tuple[EpilogueStep, ...] = (),
) -> EmittedSite:
    """Writes the C code of a mapping.

    Args:
        mapping: The mapping.
        machine: The machine, for its memories and what they hold.
        right_dtype: Number type of B, or None for the number type of A.
        steps: Operators of the epilogue.

    Raises:
        Misuse: The mapping does not match the machine, or C has no type for a number type.
    """
    return EmittedSite(
        _Emitter(mapping, machine, right_dtype or mapping.dtype, steps).write_source(), len(mapping.levels)
    )


def _get_operand_type(dtype: str, site: str) -> str:
    """Returns the type in which the code stores an operand."""
    return "uint16_t" if dtype in HALVES else _get_c_type(dtype, site)


def _get_c_type(dtype: str, site: str) -> str:
    if dtype not in C_TYPES:
        raise Misuse(f"C code cannot be written for {dtype}", where=site, hint=f"types: {', '.join(C_TYPES)}")
    return C_TYPES[dtype]


class _Emitter:
    """Writes the code of one site.

    Attributes:
        finishing: Level that applies the epilogue, or -1; see `find_epilogue_level`.
        last: Level of the array.
        adding: Level at which the sums of cores that divide K are added, or None.
        instances: Number of instances of each level over all cores.
    """

    def __init__(
        self, mapping: SiteMapping, machine: MemoryMachine, right_dtype: str, steps: tuple[EpilogueStep, ...]
    ) -> None:
        self.nest: Nest = build_nest(mapping, machine)
        self.steps = steps
        sums = _get_c_type(mapping.accumulator, mapping.site)
        self.has_float_sums = sums in ("float", "double")
        self.has_doubles = sums == "double"
        self.epilogue = mapping.epilogue
        self.types = {
            "A": _get_operand_type(mapping.dtype, mapping.site),
            "B": _get_operand_type(right_dtype, mapping.site),
            "C": sums,
            "O": _get_c_type(mapping.epilogue.output or mapping.accumulator, mapping.site),
        }
        self.halves = {"left": mapping.dtype, "right": right_dtype}
        self.finishing = find_epilogue_level(self.nest)
        self.last = len(self.nest.levels) - 1
        self.adding = find_reduction_level(self.nest)
        self.instances = self.nest.count_instances()

    # -- names and sizes

    def find_outer_level(self, operand: Operand, level: int) -> int:
        """Returns the next outer level that holds the operand, or -1 for the outermost memory."""
        return max((index for index in self.nest.list_holders(operand) if index < level), default=-1)

    def list_inner_levels(self, operand: Operand, level: int) -> list[int]:
        return [index for index in self.nest.list_holders(operand) if index > level]

    # -- source

    def write_source(self) -> str:
        return "\n".join([*self.write_head(), *self.write_flushes(), *self.write_run()]) + "\n"

    def write_head(self) -> Iterator[str]:
        """Writes types, buffers, counters and the functions that convert and finish numbers."""
        M, K, N = self.nest.size
        yield "#include <math.h>"
        yield "#include <stdint.h>"
        yield "#include <string.h>"
        yield "#define MIN(a, b) ((a) < (b) ? (a) : (b))"
        yield "#define MAX(a, b) ((a) > (b) ? (a) : (b))"
        yield f"enum {{ M = {M}, K = {K}, N = {N}, LEVELS = {self.last + 1} }};"
        yield f"typedef {self.types['A']} a_t;"
        yield f"typedef {self.types['B']} b_t;"
        yield f"typedef {self.types['C']} sum_t;"
        yield f"typedef {self.types['O']} out_t;"
        yield f"typedef {'double' if self.has_doubles else 'float'} real_t;"
        yield f"/* bytes of each level: {', '.join(COUNTERS)} */"
        yield f"static uint64_t moved[LEVELS][{len(COUNTERS)}];"
        yield "uint64_t *counters(void) { return &moved[0][0]; }"
        yield "const int levels = LEVELS;"
        yield "const int size_a = sizeof(a_t), size_b = sizeof(b_t), size_out = sizeof(out_t);"
        yield "const int size_sum = sizeof(sum_t), size_real = sizeof(real_t);"
        yield f"const int counter_count = {len(COUNTERS)};"
        yield "const long size_m = M, size_k = K, size_n = N;"
        yield "static const sum_t *bias; /* of each column */"
        yield "static const real_t *scale, *offset; /* of each column */"
        yield "static const real_t *residual; /* of each element */"
        yield "/* sums that are not finished when they leave the first level */"
        yield "static sum_t sums[(size_t)M * N];"
        yield "typedef struct { long row, column, rows, columns, k_end; } tile_t;"
        for level in range(self.last + 1):
            count = self.instances[level]
            for operand in self.nest.holds[level]:
                rows, columns = self.nest.get_buffer_size(operand, level)  # type: ignore[arg-type]
                kind = {"A": "a_t", "B": "b_t", "C": "sum_t"}[operand]
                yield f"static {kind} {operand}{level}[{count}][{rows * columns}];"
                yield f"static tile_t {operand}{level}_held[{count}];"
                if operand == "C":
                    if level < self.finishing:
                        yield f"static out_t O{level}[{count}][{rows * columns}];"
                    if self.adding is None or level != self.adding:
                        owners = 1
                        if self.adding is not None and level > self.adding:
                            owners = self.instances[self.adding]
                        yield f"static uint32_t seen{level}[{owners}][(size_t)M * N];"
        if self.adding is not None:
            yield f"static uint32_t visit[{self.instances[self.adding]}];"
            yield "static uint8_t added[(size_t)M * N];"
        for name, dtype in self.halves.items():
            if dtype in HALVES:
                yield f"static inline float {name}(uint16_t code) {{"
                yield HALVES[dtype]
                yield "  float value;"
                yield "  memcpy(&value, &bits, sizeof value);"
                yield "  return value;"
                yield "}"
        yield from self.write_finish()

    def write_finish(self) -> Iterator[str]:
        """Writes the function that turns a finished sum into an output."""
        yield "static out_t finish(sum_t sum, long m, long n) {"
        yield "  (void)m; (void)n;"
        yield "  sum_t value = sum;"
        name = "value"
        for step in self.steps:
            yield from self.write_step(step, name)
            if step.kind in _MAKES_FLOATS and name == "value":
                name = "real"
        yield f"  return (out_t){name};"
        yield "}"

    def write_step(self, step: EpilogueStep, name: str) -> Iterator[str]:
        """Writes one operator of the epilogue, on the sum `value` or on the float `real`."""
        if step.kind in _MAKES_FLOATS and name == "value":
            yield "  real_t real = (real_t)value;"
            name = "real"
        low, high = self.format_number(step.low), self.format_number(step.high)
        if step.kind == "bias":
            yield f"  {name} += bias[n];"
        elif step.kind == "scale":
            yield f"  real *= {low if step.low else 'scale[n]'};"
        elif step.kind == "offset":
            yield "  real += offset[n];"
        elif step.kind == "residual":
            yield f"  {name} += residual[m * N + n];"
        elif step.kind == "relu":
            yield f"  {name} = MAX({name}, 0);"
        elif step.kind == "clip" and name == "value" and not self.has_float_sums:
            # a float would round large sums
            first, last = (int(max(min(limit, 2.0**62), -(2.0**62))) for limit in (step.low, step.high))
            yield f"  {name} = (sum_t)MIN(MAX((int64_t){name}, {first}LL), {last}LL);"
        elif step.kind == "clip":
            yield f"  {name} = MIN(MAX({name}, {low}), {high});"
        else:
            rounding = "nearbyint" if self.has_doubles else "nearbyintf"
            operator = "/" if step.kind == "quantize" else "*"
            yield f"  real = {rounding}(real {operator} {low}) + {high};"
            least, most = _RANGES[self.types["O"]]
            yield f"  real = MIN(MAX(real, {least}), {most});"

    def format_number(self, value: float) -> str:
        """Writes a constant so that C reads the same number, in the type of the epilogue's floats."""
        if math.isinf(value):
            return "-INFINITY" if value < 0 else "INFINITY"
        return float(value).hex() + ("" if self.has_doubles else "f")

    def write_flushes(self) -> Iterator[str]:
        """Writes a function for each level that sends a tile of sums outside, innermost tiles first."""
        for level in reversed(self.nest.list_holders("C")):
            yield from self.write_flush(level)

    def write_flush(self, level: int) -> Iterator[str]:
        """Writes the function that sends the tile of sums of a level to the outer level or the output."""
        outer = self.find_outer_level("C", level)
        _, columns = self.nest.get_buffer_size("C", level)
        finishes = level <= self.finishing
        yield f"static void flush{level}(int id, int first, out_t *output) {{"
        yield f"  tile_t *held = &C{level}_held[id];"
        yield "  if (held->row < 0) return;"
        for inner in self.list_inner_levels("C", level)[:1]:
            each = self.instances[inner] // self.instances[level]
            firsts = self.write_first_cores_test(inner, level)
            yield f"  for (int i = 0; i < {each}; i++) flush{inner}(id * {each} + i, {firsts}, output);"
        yield "  const int finished = held->k_end == K;" if finishes else "  const int finished = 0;"
        yield "  (void)finished; (void)output; (void)first;"
        yield "  for (long x = 0; x < held->rows; x++) {"
        yield f"    sum_t *from = &C{level}[id][x * {columns}];"
        if outer < 0:
            position = "(held->row + x) * N + held->column"
            target, output = f"&sums[{position}]", f"&output[{position}]"
        else:
            parent = f"id / {self.instances[level] // self.instances[outer]}"
            _, width = self.nest.get_buffer_size("C", outer)
            origin = f"C{outer}_held[{parent}]"
            position = f"(held->row + x - {origin}.row) * {width} + held->column - {origin}.column"
            target = f"&C{outer}[{parent}][{position}]"
            output = f"&O{outer}[{parent}][{position}]" if outer < self.finishing else ""
        if level == self.adding:
            yield f"    sum_t *to = {target};"
            yield "    for (long y = 0; y < held->columns; y++) to[y] += from[y];"
            if outer < 0:
                position = "(held->row + x) * N + held->column"
                yield "    for (long y = 0; y < held->columns; y++)"
                yield f"      output[{position} + y] = finish(to[y], held->row + x, held->column + y);"
        elif finishes and level == self.finishing:
            yield "    if (finished) {"
            yield f"      out_t *to = {output};"
            yield "      for (long y = 0; y < held->columns; y++)"
            yield "        to[y] = finish(from[y], held->row + x, held->column + y);"
            yield f"    }} else memcpy({target}, from, sizeof(sum_t) * held->columns);"
        elif finishes:
            finished = f"&O{level}[id][x * {columns}]"
            yield f"    if (finished) memcpy({output}, {finished}, sizeof(out_t) * held->columns);"
            yield f"    else memcpy({target}, from, sizeof(sum_t) * held->columns);"
        else:
            yield f"    memcpy({target}, from, sizeof(sum_t) * held->columns);"
        yield "  }"
        yield "  const size_t size = finished ? sizeof(out_t) : sizeof(sum_t);"
        yield "  const uint64_t bytes = (uint64_t)held->rows * held->columns * size;"
        yield f"  moved[{level}][3] += bytes;"
        if level == self.adding:
            yield "  if (first) {"
            yield f"    moved[{level}][7] += bytes;"
            yield "    uint8_t *was = &added[held->row * N + held->column];"
            yield f"    if (*was) moved[{level}][6] += bytes;"
            yield "    *was = 1;"
            yield "  }"
        else:
            yield f"  moved[{level}][7] += bytes;"
        if finishes and level == self.finishing:
            yield from self.write_epilogue_counters(level)
        yield "  held->row = -1;"
        yield "}"

    def write_epilogue_counters(self, level: int) -> Iterator[str]:
        """Writes the counters of the bias and the residual, which are read when a tile is finished."""
        step = self.nest.levels[level]
        if self.epilogue.bias_bytes:
            # a level that keeps the whole of C finishes the rows of one tile after the other
            times = f"((held->rows + {step.tile[0] - 1}) / {step.tile[0]})" if "C" in step.keep else "1"
            size = f"{times} * held->columns * {self.epilogue.bias_bytes}"
            yield f"  if (finished) moved[{level}][8] += (uint64_t){size};"
        if self.epilogue.residual_bytes:
            size = f"held->rows * held->columns * {self.epilogue.residual_bytes}"
            yield f"  if (finished) moved[{level}][9] += (uint64_t){size};"

    def write_first_cores_test(self, inner: int, level: int) -> str:
        """Writes a test whether core `i` inside an instance of a level is the first along K."""
        terms = []
        below = 1
        for index in range(inner, level, -1):
            m, k, n = self.nest.levels[index].split
            if k > 1:
                terms.append(f"(i / {below * n}) % {k} == 0")
            below *= m * k * n
        return " && ".join(terms) or "1"

    def write_run(self) -> Iterator[str]:
        """Writes the function `run`: the loops of all levels, with loads, products and the final stores."""
        yield "void run(const a_t *A, const b_t *B, out_t *output, const sum_t *biases, const real_t *scales,"
        yield "         const real_t *offsets, const real_t *residuals, long zero_a, long zero_b) {"
        yield "  bias = biases; scale = scales; offset = offsets; residual = residuals;"
        yield "  memset(sums, 0, sizeof sums);"
        for level in range(self.last + 1):
            for operand in self.nest.holds[level]:
                count = self.instances[level]
                yield f"  for (int i = 0; i < {count}; i++) {operand}{level}_held[i].row = -1;"
                if operand == "C" and (self.adding is None or level != self.adding):
                    yield f"  memset(seen{level}, 0, sizeof seen{level});"
        if self.adding is not None:
            yield "  memset(visit, 0, sizeof visit);"
            yield "  memset(added, 0, sizeof added);"
        depth = 1
        for level, step in enumerate(self.nest.levels):
            for axis in step.order:
                number = AXES.index(axis)
                chunk = step.tile[number] * step.split[number]
                low = "0" if level == 0 else f"{axis}{level - 1}"
                high = _SIZE_NAMES[number] if level == 0 else f"{axis}{level - 1} + l{axis}{level - 1}"
                name = f"g{axis}{level}"
                yield f"{'  ' * depth}for (long {name} = {low}; {name} < {high}; {name} += {chunk}) {{"
                depth += 1
            for axis, count in zip(AXES, step.split, strict=True):
                number = AXES.index(axis)
                tile = step.tile[number]
                high = _SIZE_NAMES[number] if level == 0 else f"{axis}{level - 1} + l{axis}{level - 1}"
                if count > 1:
                    core, start = f"c{axis}{level}", f"{axis}{level}"
                    yield f"{'  ' * depth}for (int {core} = 0; {core} < {count}; {core}++) {{"
                    depth += 1
                    yield f"{'  ' * depth}const long {start} = g{start} + (long){core} * {tile};"
                    yield f"{'  ' * depth}if ({start} >= {high}) continue;"
                else:
                    yield f"{'  ' * depth}const long {axis}{level} = g{axis}{level};"
                yield f"{'  ' * depth}const long l{axis}{level} = MIN({tile}, {high} - {axis}{level});"
            yield f"{'  ' * depth}const int id{level} = {self.write_instance_index(level)};"
            for line in self.write_loads(level):
                yield "  " * depth + line
        for line in self.write_product():
            yield "  " * depth + line
        while depth > 1:
            depth -= 1
            yield "  " * depth + "}"
        outermost = self.nest.list_holders("C")[0]
        firsts = self.write_first_cores_test(outermost, -1)
        count = self.instances[outermost]
        yield f"  for (int i = 0; i < {count}; i++) flush{outermost}(i, {firsts}, output);"
        yield "}"

    def write_instance_index(self, level: int) -> str:
        """Writes the index of the current core among all instances of a level."""
        index = "0" if level == 0 else f"id{level - 1}"
        for axis, count in zip(AXES, self.nest.levels[level].split, strict=True):
            if count > 1:
                index = f"({index}) * {count} + c{axis}{level}"
        return index

    def write_loads(self, level: int) -> Iterator[str]:
        """Writes the loads of the tiles that changed."""
        for operand in OPERAND_AXES:
            if operand in self.nest.holds[level]:
                yield from self.write_load(operand, level)

    def write_load(self, operand: Operand, level: int) -> Iterator[str]:
        """Writes the load of an operand's tile at a level, which happens only if the tile changed."""
        row, column = (AXES[axis] for axis in OPERAND_AXES[operand])
        keeps = operand in self.nest.levels[level].keep
        record = f"{operand}{level}_held[id{level}]"
        bounds = (f"{row}{level}", f"{column}{level}", f"l{row}{level}", f"l{column}{level}")
        if keeps:
            big = (_SIZE_NAMES[axis] for axis in OPERAND_AXES[operand])
            bounds = ("0", "0", *big)  # type: ignore[assignment]
        changed = (
            f"{record}.row < 0"
            if keeps
            else f"{record}.row != {bounds[0]} || {record}.column != {bounds[1]} || "
            f"{record}.rows != {bounds[2]} || {record}.columns != {bounds[3]}"
        )
        yield f"if ({changed}) {{"
        if operand == "C":
            yield f"  flush{level}(id{level}, {self.write_first_test(operand, level)}, output);"
        else:
            for inner in self.list_inner_levels(operand, level):
                each = self.instances[inner] // self.instances[level]
                tiles = f"{operand}{inner}_held[id{level} * {each} + i]"
                yield f"  for (int i = 0; i < {each}; i++) {tiles}.row = -1;"
        yield f"  {record} = (tile_t){{{', '.join(bounds)}, 0}};"
        _, width = self.nest.get_buffer_size(operand, level)
        outer = self.find_outer_level(operand, level)
        matrix = {"A": "A", "B": "B", "C": "sums"}[operand]
        if outer < 0:
            source = f"{matrix}[({bounds[0]} + x) * {_SIZE_NAMES[OPERAND_AXES[operand][1]]} + {bounds[1]}]"
        else:
            _, outer_width = self.nest.get_buffer_size(operand, outer)
            origin = f"{operand}{outer}_held[id{outer}]"
            source = (
                f"{operand}{outer}[id{outer}][({bounds[0]} - {origin}.row + x) * {outer_width} + "
                f"{bounds[1]} - {origin}.column]"
            )
        kind = {"A": "a_t", "B": "b_t", "C": "sum_t"}[operand]
        number = "ABC".index(operand)
        size = f"(uint64_t){bounds[2]} * {bounds[3]} * sizeof({kind})"
        copy = [
            f"for (long x = 0; x < {bounds[2]}; x++)",
            f"  memcpy(&{operand}{level}[id{level}][x * {width}], &{source}, sizeof({kind}) * {bounds[3]});",
            f"moved[{level}][{number}] += {size};",
        ]
        outside_counter = f"moved[{level}][{4 + number}] += {size};"
        if operand != "C":
            copy.append(f"if ({self.write_first_test(operand, level)}) {outside_counter}")
            for line in copy:
                yield "  " + line
        elif level == self.adding:
            yield f"  memset(C{level}[id{level}], 0, sizeof C{level}[id{level}]);"
            yield f"  visit[id{level}]++;"
        else:
            if self.adding is not None and level > self.adding:
                owner, current_visit = f"id{self.adding}", f"visit[id{self.adding}]"
            else:
                owner, current_visit = "0", "1"
            yield f"  uint32_t *was = &seen{level}[{owner}][{bounds[0]} * N + {bounds[1]}];"
            yield f"  if (*was == {current_visit}) {{"
            for line in [*copy, outside_counter]:
                yield "    " + line
            yield "  } else {"
            yield f"    memset(C{level}[id{level}], 0, sizeof C{level}[id{level}]);"
            yield f"    *was = {current_visit};"
            yield "  }"
        yield "}"
        if operand == "C":
            yield f"{record}.k_end = k{level} + lk{level};"

    def write_first_test(self, operand: Operand, level: int) -> str:
        """Writes a test whether the core is the first of the cores that need the same tile from outside."""
        axis = AXES[3 - sum(OPERAND_AXES[operand])]
        outer = self.find_outer_level(operand, level)
        tests = [
            f"c{axis}{index} == 0"
            for index in range(outer + 1, level + 1)
            if self.nest.levels[index].split[AXES.index(axis)] > 1
        ]
        return " && ".join(tests) or "1"

    def write_product(self) -> Iterator[str]:
        """Writes the loops that multiply the tiles of the array."""
        level = self.last
        (_, a_width) = self.nest.get_buffer_size("A", level)
        (_, b_width) = self.nest.get_buffer_size("B", level)
        _, c_width = self.nest.get_buffer_size("C", level)
        yield f"for (long x = 0; x < lm{level}; x++)"
        yield f"  for (long z = 0; z < lk{level}; z++) {{"
        left = self.write_element("left", f"A{level}[id{level}][x * {a_width} + z]")
        right = self.write_element("right", f"B{level}[id{level}][z * {b_width} + y]")
        yield f"    const sum_t a = {left} - (sum_t)zero_a;"
        yield f"    for (long y = 0; y < ln{level}; y++)"
        yield (f"      C{level}[id{level}][x * {c_width} + y] += a * ({right} - (sum_t)zero_b);")
        yield "  }"

    def write_element(self, name: str, element: str) -> str:
        """Writes the value of an element of an operand in the type of the sums."""
        return f"(sum_t){name}({element})" if self.halves[name] in HALVES else f"(sum_t){element}"


DRIVER = """#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* usage: driver BATCH ZERO_A ZERO_B A B BIAS SCALE OFFSET RESIDUAL OUTPUT COUNTERS
   The files hold the operands of all products. '-' stands for an operand that is not used. */
extern const int levels, counter_count, size_a, size_b, size_out, size_sum, size_real;
extern const long size_m, size_k, size_n;
extern uint64_t *counters(void);
extern void run(const void *, const void *, void *, const void *, const void *, const void *, const void *,
                long, long);

static char *content(const char *path) {
  if (!strcmp(path, "-")) return NULL;
  FILE *file = fopen(path, "rb");
  if (!file) { perror(path); exit(2); }
  fseek(file, 0, SEEK_END);
  long length = ftell(file);
  rewind(file);
  char *bytes = malloc(length ? length : 1);
  if (!bytes || fread(bytes, 1, length, file) != (size_t)length) { perror(path); exit(2); }
  fclose(file);
  return bytes;
}

static char *part(char *bytes, long index, size_t length) { return bytes ? bytes + index * length : NULL; }

int main(int count, char **words) {
  if (count != 12) { fprintf(stderr, "driver: 11 words are needed\\n"); return 2; }
  long batch = atol(words[1]), zero_a = atol(words[2]), zero_b = atol(words[3]);
  char *a = content(words[4]), *b = content(words[5]), *bias = content(words[6]);
  char *scale = content(words[7]), *offset = content(words[8]), *residual = content(words[9]);
  size_t elements = (size_t)size_m * size_n, length = elements * size_out;
  char *output = calloc(batch, length ? length : 1);
  if (!output) { perror("output"); return 2; }
  for (long i = 0; i < batch; i++)
    run(part(a, i, size_m * size_k * size_a), part(b, i, size_k * size_n * size_b),
        part(output, i, length), part(bias, i, size_n * size_sum), part(scale, i, size_n * size_real),
        part(offset, i, size_n * size_real), part(residual, i, elements * size_real), zero_a, zero_b);
  FILE *file = fopen(words[10], "wb");
  if (!file || fwrite(output, 1, batch * length, file) != batch * length || fclose(file)) {
    perror(words[10]);
    return 2;
  }
  file = fopen(words[11], "w");
  if (!file) { perror(words[11]); return 2; }
  for (int i = 0; i < levels * counter_count; i++)
    fprintf(file, "%llu\\n", (unsigned long long)counters()[i]);
  return fclose(file) ? 2 : 0;
}
"""
"""Program that runs a site on files."""
