"""TensorFlow Lite schema: names of enumerations and options, from the `tflite` package.

flatc generates the package from the schema. Each enumeration is a module of numbers, and each table is a
module with accessors. Importing the package loads all of its 180 modules and numpy. Loading the module of one
enumeration takes less than a millisecond, so `explorer outline` of a file starts without delay. Names and
defaults of operator options come from the accessors.

The accessors do not check the offsets that they follow, so a hostile file could make them read any place.
`flatbuffer.CheckedTable` rejects offsets outside of the file.
"""

from __future__ import annotations

from functools import cache
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

from explorer.base.errors import MissingExtra
from explorer.engine.compat.tflite import create_accessors, list_used_names
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
    13: None,  # resource: the handle of a variable or a table
    14: None,  # variant: a list of tensors
    15: "uint32",
    16: "uint16",
    17: "int4",
    18: "bfloat16",
    19: "int2",
    20: "uint4",
    21: "float8_e4m3fn",
    22: "float8_e5m2",
}
"""Element types by number in the schema, in this program's spelling; 19 to 22 are from LiteRT's schema."""

_NEWER: Mapping[str, Mapping[int, str]] = {"BuiltinOperator": {209: "STABLEHLO_CASE"}}
"""Enumeration members that the package lacks."""

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
"""Enumeration of the value of each accessor. The accessor itself returns a plain number."""

_UNKNOWN_BY_DEFAULT = ("quantized_bias_type",)
"""Fields whose default value means that the value is unknown."""


@cache
def _load_class(name: str) -> Any:
    """Loads a class of the package, and imports only its module.

    Raises:
        MissingExtra: The package is not installed.
    """
    package = PathFinder.find_spec("tflite")
    search_paths = package.submodule_search_locations if package is not None else None
    spec = PathFinder.find_spec(name, search_paths) if search_paths else None
    if spec is None or spec.loader is None:
        raise MissingExtra(
            "the schema of TensorFlow Lite's files is not installed", hint="type: pip install tflite"
        )
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


@cache
def load_names(enumeration: str) -> Mapping[int, str]:
    """Loads the names of an enumeration, by number: `load_names("BuiltinOperator")[3]` is 'CONV_2D'."""
    members = vars(_load_class(enumeration))
    numbered = {value: name for name, value in members.items() if isinstance(value, int)}
    return {**_NEWER.get(enumeration, {}), **numbered}


class _Field:
    """A field of a table of options.

    Attributes:
        name: Name in the schema.
        accessor: Name of the accessor method that reads the field.
        is_vector: Whether the field is a vector.
        is_byte_vector: Whether the field is a vector of bytes.
        enumeration: Enumeration of the values; '' for plain numbers.
    """

    __slots__ = ("accessor", "enumeration", "is_byte_vector", "is_vector", "name")

    def __init__(self, table_class: Any, accessor: str) -> None:
        self.name = _convert_to_snake_case(accessor)
        self.accessor = accessor
        self.is_vector = f"{accessor}Length" in vars(table_class)
        # the accessor of a byte reads it as Uint8Flags
        self.is_byte_vector = self.is_vector and "Uint8Flags" in list_used_names(table_class, accessor)
        # a vector of paddings (StableHLO) holds plain numbers
        is_padding_vector = self.is_vector and accessor == "Padding"
        self.enumeration = "" if is_padding_vector else _ENUMERATIONS.get(accessor, "")

    def read(self, accessors: Any) -> Any:
        """Returns the value of the field; for a vector of bytes, its length as text."""
        read = getattr(accessors, self.accessor)
        if not self.is_vector:
            return self._convert_value(read())
        count = getattr(accessors, f"{self.accessor}Length")()
        if self.is_byte_vector:
            return f"{count:,} bytes"
        return tuple([self._convert_value(read(index)) for index in range(count)])

    def _convert_value(self, value: Any) -> Any:
        """Decodes bytes as text, and replaces the number of an enumeration by its name."""
        if isinstance(value, bytes):
            return value.decode("utf-8", "backslashreplace")
        if not self.enumeration:
            return value
        dtype = DTYPES.get(value) if self.enumeration == "TensorType" else None
        return dtype or load_names(self.enumeration).get(value, value)


class OptionsTable:
    """A table of the schema that holds the options of one kind of operator.

    Attributes:
        name: Name of the table.
        fields: Fields in the order of the schema.
        is_flat: Whether all fields are inline numbers, so that equal bytes mean equal options.
    """

    __slots__ = ("_table_class", "fields", "is_flat", "name")

    def __init__(self, name: str) -> None:
        table_class = _load_class(name)
        self.name = name
        self._table_class = table_class
        accessors = [entry for entry in vars(table_class) if entry[0].isupper() and not _is_helper(entry)]
        self.fields: Sequence[_Field] = tuple([_Field(table_class, entry) for entry in accessors])
        # the accessor of a text calls String
        self.is_flat = not any(
            field.is_vector or "String" in list_used_names(table_class, field.accessor)
            for field in self.fields
        )

    def read(self, table: FlatTable) -> dict[str, Any]:
        """Returns the values by field name, including defaults.

        A field in `_UNKNOWN_BY_DEFAULT` is included only if the file sets it.

        Raises:
            BadModel: An offset or a length in the table lies outside of the file.
        """
        accessors = create_accessors(self._table_class, CheckedTable(table))
        return {
            field.name: field.read(accessors)
            for slot, field in enumerate(self.fields)
            if field.name not in _UNKNOWN_BY_DEFAULT or table.has_field(slot)
        }


@cache
def find_options_table(union: str, number: int) -> OptionsTable | None:
    """Returns the options table that a union stores under a number, or None if the number means no options.

    Args:
        union: 'BuiltinOptions' or 'BuiltinOptions2'.
        number: Number of the table's type.
    """
    name = load_names(union).get(number, "NONE")
    return None if name == "NONE" else OptionsTable(name)


def _is_helper(entry: str) -> bool:
    """Whether an accessor is a helper generated by flatc that reads no field."""
    if entry == "Init" or entry.startswith("GetRootAs"):
        return True
    return entry.endswith(("BufferHasIdentifier", "Length", "AsNumpy", "IsNone"))


def _convert_to_snake_case(name: str) -> str:
    """Converts StrideW to stride_w, and DilationHFactor to dilation_h_factor."""
    snake_name = ""
    for index, letter in enumerate(name):
        next_letter = name[index + 1 : index + 2]
        if index and letter.isupper() and (not name[index - 1].isupper() or next_letter.islower()):
            snake_name += "_"
        snake_name += letter.lower()
    return snake_name
