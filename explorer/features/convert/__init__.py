"""Conversion of a model into another kind of file."""

from explorer.base.features import Feature

FEATURE = Feature(
    verbs={
        "convert": "convert_command.COMMAND",
    },
    methods={
        "conversions": "convert.conversions",
        "convert": "convert.convert",
    },
    commands={
        "convert": "keys.COMMANDS",
    },
)
