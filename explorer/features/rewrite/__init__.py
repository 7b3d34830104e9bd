"""Rewrite graphs: fold operators, edit nodes by hand, change the batch; make a model from a line of text."""

from explorer.base.features import Feature

FEATURE = Feature(
    verbs={
        "edit": "edit_command.COMMAND",
        "fold": "fold_command.COMMAND",
        "make": "make_command.COMMAND",
        "rebatch": "rebatch_command.COMMAND",
    },
    methods={
        "fold_choice": "fold.fold_choice",
        "fold": "fold.fold",
        "edit": "edit.edit",
        "rebatch": "rebatch.rebatch",
    },
    functions={
        "make_model": "model_from_text.make_model",
    },
    commands={
        "rewrite": "keys.COMMANDS",
    },
    changes={
        "fold": "fold.CHANGE",
        "edit": "edit.CHANGE",
    },
    records={
        "fold": "records.FoldRecord",
        "edit": "records.EditRecord",
    },
    blocks={
        "Edit": "rewrite_words.edit_blocks",
        "Fold": "rewrite_words.fold_blocks",
        "MadeModel": "rewrite_words.build_made_model",
    },
)
