"""Count the cost of a training step (`training`), train modules (`train`), and score models on data."""

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
        "evaluate_files": "evaluate.evaluate_files",
    },
    keys={
        "evaluation": "evaluate_screen.EVALUATION_KEYS",
    },
    main_keys={
        "training": "keys.COMMANDS",
    },
    layer_lines={
        "training": "training_page.layer_lines",
    },
    model_blocks={
        "training": "training_page.model_blocks",
    },
    sections={
        "training": "training_section.SECTION",
    },
    words={
        "training_sweep": "train_words.training_sweep",
    },
    blocks={
        "Evaluation": "evaluate_words.evaluation",
        "TrainingMemory": "training_words.memory_blocks",
        "TrainingRun": "train_words.training_run",
        "TrainingSweep": "train_words.training_sweep",
    },
)
