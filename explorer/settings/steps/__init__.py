"""Lists that users write: the steps of an edit, and the trials of a training sweep."""
