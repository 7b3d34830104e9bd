"""Parts of models in words: splits, extracts, edits, folds."""
