"""Split a model into the stages of a pipeline, run the stages, and extract a part of a model."""

from explorer.base.features import Feature

FEATURE = Feature(
    verbs={
        "extract": "split_command.EXTRACT",
        "pipeline": "split_command.PIPELINE",
        "split": "split_command.SPLIT",
    },
    methods={
        "split": "split_methods.split",
        "split_draft": "split_methods.split_draft",
        "split_module": "split_methods.split_module",
        "run_stages": "split_methods.run_stages",
        "extract": "split_methods.extract",
    },
    functions={
        "run_pipeline": "pipeline.run_pipeline",
    },
    keys={
        "split": "split_view.SPLIT_KEYS",
    },
    main_keys={
        "split": "keys.COMMANDS",
    },
    changes={
        "extract": "stages.CHANGE",
    },
    records={
        "extract": "part_record.PartRecord",
    },
    blocks={
        "Split": "split_words.split_blocks",
        "Extraction": "split_words.part_blocks",
    },
)
