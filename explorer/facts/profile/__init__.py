"""Facts about measured time: a profile of one model, two beside each other, a machine that was measured."""
