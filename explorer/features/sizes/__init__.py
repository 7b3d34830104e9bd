"""Figures over a batch or sequence length, decode steps, and the cost of serving a language model."""

from explorer.base.features import Feature

FEATURE = Feature(
    verbs={
        "decode": "decode_command.COMMAND",
        "serving": "serving_command.COMMAND",
        "sizes": "sizes_command.COMMAND",
    },
    methods={
        "size_names": "size_curves.size_names",
        "sizes": "size_curves.sizes",
        "decode": "size_curves.decode",
        "serving": "serving.serving",
    },
    functions={
        "sweep_serving": "serving_sweep.sweep_serving",
    },
    keys={
        "sizes": "sizes_screen.SIZES_KEYS",
        "decode": "decode_screen.DECODE_KEYS",
        "serving": "serving_screen.SERVING_KEYS",
    },
    main_keys={
        "sizes": "keys.COMMANDS",
    },
    pictures={
        "serving": "serving_pictures.serving",
    },
    words={
        "serving_sweep": "serving_sweep_words.serving_sweep",
    },
    blocks={
        "Decode": "decode_words.decode_blocks",
        "Serving": "serving_words.serving_blocks",
        "ServingSweep": "serving_sweep_words.serving_sweep",
        "SizeCurves": "sizes_words.sizes_blocks",
    },
)
