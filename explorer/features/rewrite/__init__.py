"""Rewrite graphs: fold, declare shapes, edit, change the batch, apply passes; make a model from a line."""

from explorer.base.features import Feature

FEATURE = Feature(
    verbs={
        "apply": "apply_command.APPLY",
        "edit": "edit_command.COMMAND",
        "fold": "fold_command.COMMAND",
        "infer": "infer_command.COMMAND",
        "make": "make_command.COMMAND",
        "passes": "apply_command.PASSES",
        "rebatch": "rebatch_command.COMMAND",
    },
    methods={
        "fold_choice": "fold.fold_choice",
        "fold": "fold.fold",
        "infer_choice": "infer.infer_choice",
        "infer": "infer.infer",
        "edit": "edit.edit",
        "apply_pass": "apply.apply_pass",
        "rebatch": "rebatch.rebatch",
    },
    functions={"make_model": "model_from_text.make_model"},
    main_keys={"rewrite": "keys.COMMANDS"},
    changes={"fold": "fold.CHANGE", "infer": "infer.CHANGE", "edit": "edit.CHANGE", "apply": "apply.CHANGE"},
    records={
        "fold": "records.FoldRecord",
        "infer": "records.InferRecord",
        "edit": "records.EditRecord",
        "apply": "records.PassRecord",
    },
    blocks={
        "Edit": "rewrite_words.build_edit_blocks",
        "Fold": "rewrite_words.build_fold_blocks",
        "MadeModel": "rewrite_words.build_made_model",
    },
)
