"""TensorFlow Lite schema: names of enumerations and options, from the `tflite` package.

flatc generates the package from the schema: an enumeration is a module of numbers, a table is a module of
accessors. Importing the package loads all of its 180 modules and numpy, while one enumeration takes less than
a millisecond, so an outline does not wait. Options of operators, their names and their defaults come from the
accessors; no list is kept here.

The accessors follow any offset; `flatbuffer.CheckedTable` gives them checked ones.
"""

from __future__ import annotations

from functools import cache
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

from explorer.base.errors import MissingExtra
from explorer.engine.compat.tflite import names_in, over_table
from explorer.engine.formats.tflite.flatbuffer import CheckedTable, FlatTable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

DTYPES: Mapping[int, str | None] = {
    0: "float32",
    1: "float16",
    2: "int32",
    3: "uint8",
    4: "int64",
    5: "string",
    6: "bool",
    7: "int16",
    8: "complex64",
    9: "int8",
    10: "float64",
    11: "complex128",
    12: "uint64",
    13: None,  # a resource: a variable or a table, by its handle
    14: None,  # a variant: a list of tensors
    15: "uint32",
    16: "uint16",
    17: "int4",
    18: "bfloat16",
    19: "int2",
    20: "uint4",
    21: "float8_e4m3fn",
    22: "float8_e5m2",
}
"""Element types by their number in the schema, in our spelling; 19 to 22 are from LiteRT's newer schema."""

_NEWER: Mapping[str, Mapping[int, str]] = {"BuiltinOperator": {209: "STABLEHLO_CASE"}}
"""Names that are missing in the package."""

_ENUMERATIONS = {
    "Combiner": "CombinerType",
    "CompareType": "StablehloComparisonType",
    "ComparisonDirection": "StablehloComparisonDirection",
    "FusedActivationFunction": "ActivationFunctionType",
    "IdxOutType": "TensorType",
    "InDataType": "TensorType",
    "KernelType": "LSTMKernelType",
    "KeyDtype": "TensorType",
    "Mode": "MirrorPadMode",
    "OutDataType": "TensorType",
    "OutType": "TensorType",
    "OutputType": "TensorType",
    "Padding": "Padding",
    "PrecisionConfig": "StablehloPrecisionConfig",
    "QuantizedBiasType": "TensorType",
    "ReduceFunction": "ReduceWindowFunction",
    "ValueDtype": "TensorType",
    "WeightsFormat": "FullyConnectedOptionsWeightsFormat",
}
"""Enumerations of number fields, by accessor; the accessors do not tell them."""

_UNSAID = ("quantized_bias_type",)
"""Fields whose default means unknown."""


@cache
def _kind(name: str) -> Any:
    """A class of the package; imports only its module.

    Raises:
        MissingExtra: The package is not installed.
    """
    package = PathFinder.find_spec("tflite")
    places = package.submodule_search_locations if package is not None else None
    spec = PathFinder.find_spec(name, places) if places else None
    if spec is None or spec.loader is None:
        raise MissingExtra(
            "the schema of TensorFlow Lite's files is not installed", hint="type: pip install tflite"
        )
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


@cache
def names(enumeration: str) -> Mapping[int, str]:
    """The names of an enumeration by number: `names("BuiltinOperator")[3]` is 'CONV_2D'."""
    members = vars(_kind(enumeration))
    numbered = {value: name for name, value in members.items() if isinstance(value, int)}
    return {**_NEWER.get(enumeration, {}), **numbered}


class _Field:
    """A field of a table of options.

    Attributes:
        name: Its name in the schema.
        accessor: Name of the accessor that reads it.
        many: Whether it is a vector.
        raw: Whether it is a vector of bytes.
        enumeration: Enumeration of its values; empty for plain numbers.
    """

    __slots__ = ("accessor", "enumeration", "many", "name", "raw")

    def __init__(self, kind: Any, accessor: str) -> None:
        self.name = _snake(accessor)
        self.accessor = accessor
        self.many = f"{accessor}Length" in vars(kind)
        self.raw = self.many and "Uint8Flags" in names_in(kind, accessor)
        # in StableHLO, paddings are numbers
        self.enumeration = "" if self.many and accessor == "Padding" else _ENUMERATIONS.get(accessor, "")

    def read(self, accessors: Any) -> Any:
        """Its value; for bytes, their number."""
        read = getattr(accessors, self.accessor)
        if not self.many:
            return self._named(read())
        count = getattr(accessors, f"{self.accessor}Length")()
        return f"{count:,} bytes" if self.raw else tuple([self._named(read(at)) for at in range(count)])

    def _named(self, value: Any) -> Any:
        if isinstance(value, bytes):
            return value.decode("utf-8", "backslashreplace")
        if not self.enumeration:
            return value
        dtype = DTYPES.get(value) if self.enumeration == "TensorType" else None
        return dtype or names(self.enumeration).get(value, value)


class OptionsTable:
    """A kind of options: a table of the schema.

    Attributes:
        name: Name of the table.
        fields: Fields in the order of the schema.
        flat: Whether no field needs an offset, so that equal bytes mean equal options.
    """

    __slots__ = ("_kind", "fields", "flat", "name")

    def __init__(self, name: str) -> None:
        kind = _kind(name)
        self.name = name
        self._kind = kind
        accessors = [entry for entry in vars(kind) if entry[0].isupper() and not _is_helper(entry)]
        self.fields: Sequence[_Field] = tuple([_Field(kind, entry) for entry in accessors])
        self.flat = not any(f.many or "String" in names_in(kind, f.accessor) for f in self.fields)

    def read(self, table: FlatTable) -> dict[str, Any]:
        """Values by name, including defaults that are not unknown.

        Raises:
            BadModel: The table contradicts itself.
        """
        accessors = over_table(self._kind, CheckedTable(table))
        return {
            field.name: field.read(accessors)
            for slot, field in enumerate(self.fields)
            if field.name not in _UNSAID or table.place(slot, 1)
        }


@cache
def options(union: str, number: int) -> OptionsTable | None:
    """The table at this number of a union ('BuiltinOptions', 'BuiltinOptions2'); None if unknown."""
    name = names(union).get(number, "NONE")
    return None if name == "NONE" else OptionsTable(name)


def _is_helper(entry: str) -> bool:
    """Whether an accessor is a helper of flatc and no field."""
    if entry == "Init" or entry.startswith("GetRootAs"):
        return True
    return entry.endswith(("BufferHasIdentifier", "Length", "AsNumpy", "IsNone"))


def _snake(name: str) -> str:
    """StrideW as stride_w, DilationHFactor as dilation_h_factor."""
    out = ""
    for at, letter in enumerate(name):
        after = name[at + 1 : at + 2]
        if at and letter.isupper() and (not name[at - 1].isupper() or after.islower()):
            out += "_"
        out += letter.lower()
    return out
