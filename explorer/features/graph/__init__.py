"""Draw a model as a graph of its layers, or as a flame view of its groups."""

from explorer.base.features import Feature

FEATURE = Feature(
    verbs={"graph": "graph_command.COMMAND", "nodes": "nodes_command.COMMAND"},
    methods={
        "graph": "graph_methods.graph",
        "node_figures": "graph_methods.node_figures",
        "module_code": "code_methods.module_code",
        "nodes": "graph_methods.nodes",
    },
    keys={"graph": "graph_screen.GRAPH_KEYS", "flame": "flame_screen.FLAME_KEYS"},
    main_keys={"graph": "keys.COMMANDS"},
    blocks={"NodeTable": "nodes_words.nodes_blocks"},
)
