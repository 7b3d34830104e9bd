"""Training steps, training runs, and outputs scored on data."""

from explorer.base.features import Feature

FEATURE = Feature(
    verbs={
        "evaluate": "evaluate_command.COMMAND",
        "train": "train_command.COMMAND",
        "training": "training_command.COMMAND",
    },
    methods={
        "evaluate": "training_methods.evaluate",
        "train": "training_methods.train",
        "module_digest": "training_methods.module_digest",
    },
    functions={
        "evaluate_files": "files.evaluate_files",
    },
    keys={
        "evaluation": "evaluate_dialog.EVALUATION_KEYS",
    },
    commands={
        "training": "keys.COMMANDS",
    },
    layer_lines={
        "training": "training_page.layer_lines",
    },
    model_blocks={
        "training": "training_page.model_blocks",
    },
    sections={
        "training": "report_section.SECTION",
    },
    words={
        "training_sweep": "training_sweep_words.training_sweep",
    },
)
