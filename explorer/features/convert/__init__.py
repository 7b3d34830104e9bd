"""Convert a model to another file format."""

from explorer.base.features import Feature

FEATURE = Feature(
    verbs={
        "convert": "convert_command.COMMAND",
    },
    methods={
        "conversions": "convert.conversions",
        "convert": "convert.convert",
    },
    main_keys={
        "convert": "keys.COMMANDS",
    },
)
