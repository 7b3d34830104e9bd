"""Open sizes: curves, decode steps, serving."""

from explorer.base.features import Feature

FEATURE = Feature(
    verbs={
        "decode": "decode_command.COMMAND",
        "serving": "serving_command.COMMAND",
        "sizes": "sizes_command.COMMAND",
    },
    methods={
        "size_names": "sizes_methods.size_names",
        "sizes": "sizes_methods.sizes",
        "decode": "sizes_methods.decode",
        "serving": "sizes_methods.serving",
    },
    functions={
        "sweep_serving": "serving_sweep.sweep_serving",
    },
    keys={
        "sizes": "sizes_view.SIZES_KEYS",
        "decode": "decode_view.DECODE_KEYS",
        "serving": "serving_view.SERVING_KEYS",
    },
    commands={
        "sizes": "keys.COMMANDS",
    },
    pictures={
        "serving": "serving_pictures.serving",
    },
    words={
        "serving_sweep": "serving_sweep_words.serving_sweep",
    },
)
