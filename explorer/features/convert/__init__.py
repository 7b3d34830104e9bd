"""One kind of model file into another."""

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
