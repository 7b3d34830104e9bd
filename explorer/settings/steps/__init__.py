"""Lists that users write: the steps of an edit, the trials of a sweep of trainings."""
