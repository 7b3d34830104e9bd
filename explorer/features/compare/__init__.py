"""Compare models: totals, layer trees, graphs and outputs, and the first layer whose values differ."""

from explorer.base.features import Feature

FEATURE = Feature(
    verbs={
        "blame": "blame_command.COMMAND",
        "compare": "compare_command.COMMAND",
        "diff": "diff_command.COMMAND",
        "verify": "verify_command.COMMAND",
    },
    methods={
        "check_input": "proofs_methods.check_input",
        "verify": "proofs_methods.verify",
        "blame": "proofs_methods.blame",
        "diff": "proofs_methods.diff",
        "tree_diff": "proofs_methods.tree_diff",
        "compare": "proofs_methods.compare",
        "beside": "proofs_methods.beside",
    },
    functions={
        "verify_files": "compare_files.verify_files",
        "blame_files": "compare_files.blame_files",
        "diff_files": "compare_files.diff_files",
        "tree_diff_files": "compare_files.tree_diff_files",
        "compare_files": "compare_files.compare_files",
    },
    keys={"pair": "pair_screen.PAIR_KEYS", "blame": "blame_screen.BLAME_KEYS"},
    main_keys={"compare": "keys.COMMANDS"},
    blocks={
        "Blame": "blame_words.blame",
        "Comparison": "compare_words.compare",
        "TreeDiff": "compare_words.tree_diff",
    },
)
