"""Sweeps: compare many tilings, number formats or trainings."""

from explorer.base.features import Feature

FEATURE = Feature(
    verbs={
        "sweep": "sweep_command.COMMAND",
    },
    methods={
        "sweep": "sweep_methods.sweep",
        "sweep_formats": "sweep_methods.sweep_formats",
        "sweep_mappings": "sweep_methods.sweep_mappings",
        "sweep_training": "sweep_methods.sweep_training",
    },
    functions={
        "sweep_files": "swept_files.sweep_files",
        "sweep_formats": "swept_files.sweep_formats",
    },
    keys={
        "sweep": "sweep_screen.SWEEP_KEYS",
        "sensitivity": "sensitivity_screen.SENSITIVITY_KEYS",
    },
    main_keys={
        "sweep": "keys.COMMANDS",
    },
    blocks={
        "FormatSweep": "format_sweep_words.format_sweep",
        "MappingSweep": "mapping_sweep_words.mapping_sweep",
        "Sweep": "sweep_words.sweep",
    },
)
