"""Tile matrix products: plan a tiling, count its cost, write and verify the tiled model, show its tiles."""

from explorer.base.features import Feature

FEATURE = Feature(
    verbs={
        "plan": "plan_command.COMMAND",
        "settings": "settings_command.COMMAND",
        "tile": "tile_command.COMMAND",
    },
    methods={
        "plan": "tiling_methods.plan",
        "tiling": "tiling_methods.tiling",
        "cost": "tiling_methods.cost",
        "tile_steps": "tiling_methods.tile_steps",
        "settings": "tiling_methods.settings",
        "tile": "tiling_methods.tile",
        "plan_module": "tiling_methods.plan_module",
        "tile_module": "tiling_methods.tile_module",
        "module_command": "tiling_methods.module_command",
        "command": "tiling_methods.command",
        "keep_choices": "tiling_methods.keep_choices",
    },
    keys={
        "tile": "tile_view.TILE_KEYS",
    },
    main_keys={
        "tiling": "keys.COMMANDS",
    },
    changes={
        "tile": "tiling.CHANGE",
    },
    records={
        "tile": "records.TilingRecord",
    },
    fields={
        "tile": "tile_words.state_fields",
    },
    blocks={
        "Plan": "tile_words.plan_matmuls",
        "PlanCost": "plan_words.cost_blocks",
        "TileResult": "tile_words.result_blocks",
        "TileSteps": "steps_words.steps_blocks",
    },
)
