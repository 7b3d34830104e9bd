"""Values of weights and activations: statistics, slices and heat maps."""

from explorer.base.features import Feature

FEATURE = Feature(
    verbs={
        "activations": "activations_command.COMMAND",
        "values": "values_command.COMMAND",
        "weights": "weights_command.COMMAND",
    },
    methods={
        "weights": "values_methods.weights",
        "activations": "values_methods.activations",
        "values": "values_methods.values",
        "heat_map": "values_methods.heat_map",
    },
    keys={
        "heat": "map_view.HEAT_KEYS",
        "statistics": "statistics_screen.STATISTICS_KEYS",
    },
    main_keys={
        "values": "keys.COMMANDS",
    },
    layer_lines={
        "values": "values_page.layer_lines",
    },
    sections={
        "weights": "weights_section.SECTION",
    },
    blocks={
        "Activations": "weights_words.activations_blocks",
        "HeatMap": "tensor_words.heat_map",
        "TensorValues": "tensor_words.tensor_values",
        "Weights": "weights_words.weights_blocks",
    },
)
