"""Check a model against budgets: limits of its figures, as numbers or as changes since a baseline file."""

from explorer.base.features import Feature

FEATURE = Feature(
    verbs={"check": "check_command.COMMAND"},
    methods={"check": "check_methods.check"},
    functions={"check_files": "check_files.check_files"},
    words={"check": "check_words.check"},
)
