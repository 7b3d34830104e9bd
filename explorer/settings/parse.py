"""Parsers for values that a user types: sizes, dimensions, shapes, names.

The command line and the dialogs of the screen use the same parsers, with the same error messages. The module
needs only the standard library.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from explorer.base.errors import Misuse, format_choices, suggest_only_near
from explorer.host.system import is_linux

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

InputShape = tuple[str | None, tuple[int, ...]]

_SEPARATOR = re.compile(r"\s*[xX×,]\s*")
_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_SIZE = re.compile(r"(\d{1,19}(?:\.\d{1,6})?)\s*([kmgt]?)(i?b)?", re.IGNORECASE | re.ASCII)
_CONDITION = re.compile(r"([MKN])\s*(>=|<=|!=|==|=|>|<)\s*(\d[\d_]{0,17})", re.ASCII)
_CONDITIONS_HINT = "write conditions such as M>=64 N<=1000; sizes are M, K and N"
_MIN_MEMORY = 64 << 20  # bytes that the program itself needs
_SIZES_PER_DOUBLING = 4
_TILE_HINT = "write one size (64) or three (64x64x64: M x K x N)"
_SHAPE_HINT = "write x:1,3,224,224 or x:[1,3,224,224] or x:f32:1x3x224x224"

_DTYPES = {
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "bf16": "bfloat16",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "int": "int32",
    "long": "int64",
    "bool": "bool",
}
_DTYPES.update({name: name for name in _DTYPES.values()})


def parse_tile(text: str, where: str = "--tile") -> tuple[int, int, int]:
    """Parses rows, depth and columns of a tile: '64', '64x32x16', '64,32,16'.

    Raises:
        Misuse: The text is not one or three positive integers.
    """
    size_texts = _SEPARATOR.split(text.strip())
    if not all(_INTEGER.fullmatch(size_text) for size_text in size_texts):
        raise Misuse(f"'{text}' is not a tile size", where=where, hint=_TILE_HINT)
    sizes = [int(size_text) for size_text in size_texts]
    if len(sizes) not in (1, 3):
        raise Misuse(f"'{text}' has {len(sizes)} sizes", where=where, hint=_TILE_HINT)
    if min(sizes) < 1:
        raise Misuse(f"'{text}' has a size below 1", where=where, hint=_TILE_HINT)
    rows, depth, columns = sizes * 3 if len(sizes) == 1 else sizes
    return rows, depth, columns


def parse_tiles(text: str, where: str = "--tile") -> tuple[tuple[int, int, int], ...]:
    """Parses tiles separated by commas, each with one size or three: '16,32,64x64x16'.

    Raises:
        Misuse: One of them is not a tile.
    """
    return tuple(dict.fromkeys(parse_tile(tile_text, where) for tile_text in text.split(",")))


def parse_sizes(text: str, where: str) -> tuple[int, ...]:
    """Parses sizes separated by commas: '16,32,64'.

    Raises:
        Misuse: One of them is not a positive integer.
    """
    return tuple(dict.fromkeys(parse_count(size_text, where, 1) for size_text in text.split(",")))


def parse_tokens(text: str, where: str) -> tuple[int, ...]:
    """Parses numbers of tokens separated by commas: '2048,8k,32k' (k is 1,024).

    Raises:
        Misuse: One of them is not a positive integer.
    """
    numbers = [parse_bytes(count_text) for count_text in text.split(",")]
    if any(n is None or n < 1 or n != int(n) or n > _MAX_SIZE for n in numbers):
        raise Misuse(f"'{text}' is not a number of tokens", where=where, hint="write 8192, 32k or 2k,8k,32k")
    return tuple(dict.fromkeys(int(n) for n in numbers))


def parse_words(text: str, where: str) -> tuple[str, ...]:
    """Parses words separated by commas, without repetitions.

    Raises:
        Misuse: The text has no words.
    """
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not words:
        raise Misuse("there is nothing", where=where)
    return words


_PLAIN_WORDS = {"partial": "ragged"}
"""Words for values whose names in JSON and in Python are jargon."""


def parse_choices(text: str, choices: Sequence[str], where: str) -> tuple[str, ...]:
    """Parses a selection of known words separated by commas.

    Raises:
        Misuse: A word is not known.
    """
    return tuple(dict.fromkeys(parse_choice(word.strip(), choices, where) for word in text.split(",")))


def find_ignoring_case(text: str, choices: Iterable[str]) -> str:
    """Returns the only choice that differs from a word at most in upper and lower case, or ''."""
    matches = [choice for choice in choices if choice.lower() == text.lower()]
    return matches[0] if len(matches) == 1 else ""


def parse_choice(text: str, choices: Sequence[str], where: str) -> str:
    """Returns the choice that a word names, whose case does not matter.

    Raises:
        Misuse: The word is not known. The hint names the nearest word, or all words.
    """
    if text in choices:
        return text
    if (meant := _PLAIN_WORDS.get(text.lower())) in choices:
        return str(meant)
    if choice := find_ignoring_case(text, choices):
        return choice
    plain = {value: word for word, value in _PLAIN_WORDS.items()}
    hint = suggest_only_near(text, choices) or format_choices([plain.get(value, value) for value in choices])
    raise Misuse(f"'{text}' is not known", where=where, hint=hint)


def parse_conditions(text: str, where: str = "shape") -> tuple[tuple[str, str, int], ...]:
    """Parses conditions on the sizes of a product, which must all hold: 'M>=64 N<=1000'.

    Returns:
        For each condition 'M', 'K' or 'N', one of '>=', '<=', '!=', '=', '>', '<', and a size.

    Raises:
        Misuse: The text contains something else.
    """
    conditions, position = [], 0
    for match in _CONDITION.finditer(text):
        if text[position : match.start()].strip(" ,\t"):
            break
        conditions.append((match[1], match[2].replace("==", "="), int(match[3])))
        position = match.end()
    if remaining := text[position:].strip(" ,\t"):
        raise Misuse(f"'{remaining}' is not a condition on a shape", where=where, hint=_CONDITIONS_HINT)
    return tuple(conditions)


def parse_count(text: str, where: str, minimum: int) -> int:
    """Parses an integer of at least `minimum`.

    Raises:
        Misuse: The text is not an integer, or is below `minimum`.
    """
    if not _INTEGER.fullmatch(text.strip()) or int(text) < minimum:
        raise Misuse(f"'{text}' is not a whole number of {minimum} or more", where=where)
    return int(text)


def parse_axis(text: str, where: str = "--axis") -> int:
    """Parses an axis: '0', or '-1' for the last.

    Raises:
        Misuse: The text is not an integer.
    """
    if not _INTEGER.fullmatch(text.strip()):
        raise Misuse(f"'{text}' is not an axis", where=where, hint="0 is the first, -1 the last")
    return int(text)


def parse_map_size(text: str, where: str = "--map") -> tuple[int, int]:
    """Parses rows and columns of a heat map: '24x64'.

    Raises:
        Misuse: The text is not a pair of integers from 1 to 1,000.
    """
    pieces = text.lower().strip().split("x")
    if len(pieces) != 2 or not all(_INTEGER.fullmatch(p) and 1 <= int(p) <= 1000 for p in pieces):
        raise Misuse(
            f"'{text}' is not a size of a map", where=where, hint="24x64: rows and columns, 1,000 at most"
        )
    return int(pieces[0]), int(pieces[1])


def parse_place(text: str, where: str = "--at") -> tuple[int, ...]:
    """Parses an index on each of the first axes: '0,3'.

    Raises:
        Misuse: One of them is not an integer of 0 or more.
    """
    return tuple(parse_count(index_text, where, 0) for index_text in text.split(","))


def parse_span(text: str, where: str) -> tuple[int, int]:
    """Parses a half-open range: '64:128'.

    Raises:
        Misuse: The text is not a pair of integers of 0 or more.
    """
    first, colon, last = text.partition(":")
    if not colon:
        raise Misuse(f"'{text}' is not a part", where=where, hint="64:128")
    return parse_count(first, where, 0), parse_count(last, where, 0)


def parse_limit(text: str, where: str) -> float:
    """Parses a finite number of 0 or more.

    Raises:
        Misuse: The text is not a number, or is negative or infinite.
    """
    number = _parse_number(text)
    if not 0 <= number < float("inf"):
        raise Misuse(f"'{text}' is not a number of 0 or more", where=where)
    return number


def _parse_number(text: str) -> float:
    """Parses a number. Returns -1 if the text is not a number."""
    try:
        return float(text)
    except ValueError:
        return -1.0


_RANGE_HINT = "write batch, or sequence=1:32k"


def parse_share(text: str, where: str) -> float:
    """Parses a number above 0 and below 1.

    Raises:
        Misuse: The text is not a number, or is out of this range.
    """
    number = _parse_number(text)
    if not 0 < number < 1:
        raise Misuse(f"'{text}' is not a number between 0 and 1", where=where)
    return number


def parse_range(text: str, where: str = "--over") -> tuple[str, int | None, int | None]:
    """Parses the name of a size with its range: 'batch', 'batch=1:64', 'sequence=1:32k' (k is 1,024).

    Returns:
        Its name, the smallest size and the largest, or None for a size that is not given.

    Raises:
        Misuse: The name is missing, or the range is invalid.
    """
    name, equals, sizes = (word.strip() for word in text.partition("="))
    low, colon, high = (word.strip() for word in sizes.partition(":"))
    if not name or (equals and not colon):
        raise Misuse(f"'{text}' is not a size with its range", where=where, hint=_RANGE_HINT)
    if not equals:
        return name, None, None
    ends = [parse_bytes(end) if end else None for end in (low, high)]
    if any(end is not None and (end < 1 or end != int(end) or end > _MAX_SIZE) for end in ends):
        raise Misuse(f"'{sizes}' is not a range of whole sizes from 1 on", where=where, hint=_RANGE_HINT)
    first, last = (None if end is None else int(end) for end in ends)
    if first is not None and last is not None and first > last:
        raise Misuse(f"{first:,} to {last:,} is not a range", where=where, hint=_RANGE_HINT)
    return name, first, last


_MAX_SIZE = 1 << 40
"""Largest end of a range."""


def parse_dims(texts: Iterable[str], where: str = "--dim") -> dict[str, int]:
    """Parses sizes of symbolic dimensions: 'batch=8', each in its own text or several separated by commas.

    Raises:
        Misuse: See `parse_dim_sizes`. Also raised for a name with several sizes.
    """
    sizes = parse_dim_sizes(texts, where)
    for name, size in sizes.items():
        if not isinstance(size, int):
            listed = ", ".join(map(str, size))
            hint = "give one; verify and blame take several"
            raise Misuse(f"'{name}' has the sizes {listed}", where=where, hint=hint)
    return {name: size for name, size in sizes.items() if isinstance(size, int)}


def parse_dim_sizes(texts: Iterable[str], where: str = "--dim") -> dict[str, int | tuple[int, ...]]:
    """Like `parse_dims`, but a name may have several sizes: 'seq=5,16,64'.

    Raises:
        Misuse: The text has no '=' or no positive integer, or a name is bound twice to different sizes.
    """
    dims: dict[str, int | tuple[int, ...]] = {}
    for binding_list in texts:
        bindings: dict[str, list[int]] = {}
        name = ""
        for text in binding_list.split(","):
            named, equals, size = (word.strip() for word in text.rpartition("="))
            name = named if equals else name
            if not name:
                raise Misuse(
                    f"'{text}' binds no dimension", where=where, hint="write name=size, as in batch=8"
                )
            if not _INTEGER.fullmatch(size) or int(size) < 1:
                raise Misuse(f"'{text}': the size has to be a whole number of 1 or more", where=where)
            sizes = bindings.setdefault(name, [])
            if equals and sizes and sizes != [int(size)]:
                raise Misuse(f"'{name}' is bound to {sizes[0]} and to {int(size)}", where=where)
            if int(size) not in sizes:
                sizes.append(int(size))
        for name, sizes in bindings.items():
            bound_size = sizes[0] if len(sizes) == 1 else tuple(sizes)
            if dims.setdefault(name, bound_size) != bound_size:
                raise Misuse(f"'{name}' is bound to {dims[name]} and to {bound_size}", where=where)
    return dims


ONLY_INPUT = ""
"""Name of the input of a shape that was typed without a name."""


def parse_input_shapes(texts: Iterable[str], where: str = "--input-shape") -> dict[str, InputShape]:
    """Parses shapes of inputs, each with an optional dtype, which is returned in numpy's spelling or as None.

    A shape without a name, '1,3,32,32', has the name `ONLY_INPUT`: it is for a model with one input.

    A name may contain colons ('input:0'). The shape follows the last colon. The word before it is a dtype
    only if it is a known dtype.

    Raises:
        Misuse: The name is missing, a shape is invalid, or an input is given twice.
    """
    shapes: dict[str, InputShape] = {}
    for text in texts:
        head, colon, sizes = text.strip().rpartition(":")
        name, _, word = head.rpartition(":")
        dtype = _DTYPES.get(word.strip().lower())
        if dtype is None or not name:
            name, dtype = head, None
        name = name.strip()
        if not head and not colon:
            name = ONLY_INPUT
        elif not name:
            raise Misuse(f"'{text}' names no input", where=where, hint=_SHAPE_HINT)
        if name in shapes:
            raise Misuse(f"the shape of '{name}' is given twice", where=where)
        shapes[name] = (dtype, _parse_shape(sizes.strip(), text, where))
    return shapes


def _parse_shape(sizes: str, text: str, where: str) -> tuple[int, ...]:
    """Parses sizes with or without brackets; `text` is the complete typed text, for errors."""
    inner = sizes[1:-1].strip() if sizes[:1] + sizes[-1:] in ("[]", "()") else sizes
    if not inner and sizes:
        return ()
    size_texts = _SEPARATOR.split(inner.rstrip(","))
    if any(_INTEGER.fullmatch(size_text) and int(size_text) < 0 for size_text in size_texts):
        raise Misuse(f"'{text}' has a negative size", where=where, hint=_SHAPE_HINT)
    if not all(_INTEGER.fullmatch(size_text) for size_text in size_texts):
        raise Misuse(f"'{sizes}' in '{text}' is not a shape", where=where, hint=_SHAPE_HINT)
    return tuple(map(int, size_texts))


def parse_bytes(text: str) -> float:
    """Parses a size of memory in powers of 1024: '8G', '512 KiB', '2000000000'.

    Returns -1 if it is invalid.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return -1
    number = float(match[1]) if "." in match[1] else int(match[1])  # a float is exact only up to 53 bits
    return number * (1 << 10 * " kmgt".index(match[2].lower() or " "))


def parse_capacity(typed: str) -> list[int]:
    """Parses sizes of memory: a range such as '1K:64M', or sizes separated by commas.

    A range gives its start, its end, and four sizes for each doubling between them.

    Raises:
        Misuse: The text has neither form, or its sizes do not increase.
    """
    parts = re.split(r"[:,]", typed)
    sizes = [int(parse_bytes(part)) for part in parts]
    is_range = ":" in typed and len(parts) == 2
    if (
        not all(1 <= size <= 1 << 50 for size in sizes)
        or sizes != sorted(set(sizes))
        or is_range != (":" in typed)
    ):
        raise Misuse(
            f"'{typed}' is not a range of sizes",
            where="--capacity",
            hint="write such as 1K:64M, or 256K,512K,1M",
        )
    if not is_range:
        return sizes
    start, stop = sizes
    points = [start]
    while points[-1] < stop:
        points.append(min(round(start * 2 ** (len(points) / _SIZES_PER_DOUBLING)), stop))
    return list(dict.fromkeys(points))


def parse_card(text: str, where: str = "--card") -> int:
    """Parses the memory of a device in bytes, in powers of 1024: '16G', '512MiB'.

    Raises:
        Misuse: The text is not a size.
    """
    size = int(min(parse_bytes(text), 1 << 62))
    if size <= 0:
        raise Misuse(f"'{text}' is not a size", where=where, hint="write 16G or 512M")
    return size


def parse_memory(text: str, where: str = "--memory") -> int:
    """Parses a memory limit in bytes, in powers of 1024: '8G', '512M', '1.5GiB', '2000000000'.

    Raises:
        Misuse: The text is not a size, the size is less than the program itself needs, or the system cannot
            limit memory.
    """
    size = int(
        min(parse_bytes(text), 1 << 62)
    )  # a larger number overflows in the system call, and limits nothing
    if size < 0:
        raise Misuse(f"'{text}' is not a size", where=where, hint="write 8G or 512M")
    if size < _MIN_MEMORY:
        raise Misuse(
            f"'{text}' is less than the program itself needs", where=where, hint="write 512M or more"
        )
    if not is_linux():
        raise Misuse("memory can be limited on Linux only", where=where, hint="leave it out")
    return size


def parse_providers(text: str, where: str) -> tuple[str, ...]:
    """Parses execution providers of onnxruntime separated by commas: 'cuda,cpu'. Returns () for 'all'.

    Raises:
        Misuse: See `parse_names`.
    """
    return () if text.strip().lower() == "all" else parse_names(text, where)


def parse_names(text: str, where: str) -> tuple[str, ...]:
    """Parses names separated by commas: 'image,mask'.

    Raises:
        Misuse: A name is empty or repeated.
    """
    names = tuple(name_text.strip() for name_text in text.split(","))
    if not all(names):
        raise Misuse(f"'{text}' has an empty name", where=where, hint="separate names by commas: a,b")
    for index, name in enumerate(names):
        if name in names[:index]:
            raise Misuse(f"'{name}' is listed twice", where=where)
    return names


def parse_dynamic(texts: Iterable[str], where: str = "--dynamic") -> dict[str, dict[int, str]]:
    """Parses open dimensions: 'x:0=batch', 'x:0=batch,2=height', each in its own text or several.

    Returns:
        Names of dimensions by input and axis. An input name may contain colons; the axes follow the last one.

    Raises:
        Misuse: The input or axis is missing, the name is invalid in ONNX or Python, or an axis has two names.
    """
    hint = "write x:0=batch or x:0=batch,2=height"
    dynamic: dict[str, dict[int, str]] = {}
    for text in texts:
        name, colon, axes = text.strip().rpartition(":")
        if not colon or not name.strip():
            raise Misuse(f"'{text}' names no input", where=where, hint=hint)
        names_by_axis = dynamic.setdefault(name.strip(), {})
        for axis_text in axes.split(","):
            axis, equals, dim = (part.strip() for part in axis_text.partition("="))
            if not equals or not _INTEGER.fullmatch(axis):
                raise Misuse(f"'{text}' names no axis", where=where, hint=hint)
            if not dim.isidentifier() or not dim.isascii():
                raise Misuse(f"'{dim}' is not a name for a dimension", where=where, hint=hint)
            if names_by_axis.setdefault(int(axis), dim) != dim:
                raise Misuse(
                    f"axis {axis} has two names, '{names_by_axis[int(axis)]}' and '{dim}'", where=where
                )
    return dynamic


def parse_axes(texts: Iterable[str], where: str = "--axis") -> dict[str, int]:
    """Parses one axis for each named input: 'x:1'. A name may contain colons.

    Raises:
        Misuse: The input or axis is missing, or an input has two axes.
    """
    axes: dict[str, int] = {}
    for text in texts:
        name, colon, axis = (part.strip() for part in text.rpartition(":"))
        if not colon or not name or not _INTEGER.fullmatch(axis):
            raise Misuse(f"'{text}' names no axis of an input", where=where, hint="write x:1")
        if axes.setdefault(name, int(axis)) != int(axis):
            raise Misuse(f"the axis of '{name}' is {axes[name]} and {axis}", where=where)
    return axes


def parse_assignments(texts: Iterable[str], where: str = "--option") -> dict[str, str]:
    """Parses values by name: 'bits=4', each in its own text.

    Raises:
        Misuse: The text has no name or no '=', or a name has two values.
    """
    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise Misuse(f"'{text}' sets no option", where=where, hint="write NAME=VALUE")
        if values.setdefault(name.strip(), value) != value:
            raise Misuse(
                f"'{name.strip()}' is {values[name.strip()]} and {value}", where=where, hint="give one"
            )
    return values


def parse_batch(text: str, where: str) -> int | str:
    """Parses a batch: a number of samples, or the name of an open dimension.

    Raises:
        Misuse: The text is neither.
    """
    if re.fullmatch(r"\d{1,9}", text, re.ASCII) and int(text) > 0:
        return int(text)
    if not text.isidentifier() or not text.isascii():
        hint = "write 8, or a name such as N to leave it open"
        raise Misuse(f"'{text}' is not a batch", where=where, hint=hint)
    return text


def write_option_words(flag: str, value: str) -> list[str]:
    """Writes an option and its value as command-line words. '=' joins a value that looks like an option."""
    return [f"{flag}={value}"] if value.startswith("-") else [flag, value]


def write_path_word(path: str) -> str:
    """Writes a path or a model's name as a command-line word, after './' if it looks like an option."""
    return f"./{path}" if path.startswith("-") else path


def _format_sizes(dims: Mapping[str, int | Sequence[int]]) -> list[str]:
    return [
        f"{name}={size if isinstance(size, int) else ','.join(map(str, size))}" for name, size in dims.items()
    ]


def _format_shapes(shapes: Mapping[str, InputShape]) -> list[str]:
    return [
        ":".join(filter(None, (name, dtype, f"[{','.join(map(str, shape))}]")))
        for name, (dtype, shape) in shapes.items()
    ]


OPENING: Mapping[str, tuple[str, Callable[[Any], list[str]]]] = {
    "weights": ("--weights", lambda name: [name]),
    "weights_file": ("--weights-file", lambda path: [write_path_word(path)]),
    "dims": ("--dim", _format_sizes),
    "input_shapes": ("--input-shape", _format_shapes),
    "rules": ("--rules", lambda path: [write_path_word(path)]),
    "past": ("--past", lambda tokens: [str(tokens)]),
    "trust": ("--trust", lambda _: []),
    "observe": ("--observe", lambda _: []),
    "shapes": ("--shapes", lambda _: []),
}
"""Keywords of `Session` that the command line offers: the flag of each, and the texts that its parser reads.

A switch has no text.
"""


def write_opening_words(options: Mapping[str, Any]) -> list[str]:
    """Writes the options with which a model is opened as command-line words.

    Args:
        options: Arguments of `session.Session` by name.
    """
    words: list[str] = []
    for keyword, (flag, write) in OPENING.items():
        value = options.get(keyword)
        if value in (None, "") or value is False:
            continue
        words += ["--decode"] if keyword == "past" else []  # --past requires --decode
        words += [flag] if value is True else []
        words += [word for text in write(value) for word in write_option_words(flag, text)]
    return words
