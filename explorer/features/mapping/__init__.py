"""Map matrix products to a machine with several memories: find, cost, write and read mappings."""

from explorer.base.features import Feature

FEATURE = Feature(
    verbs={"map": "map_command.COMMAND"},
    methods={"map": "mapper.map", "mapping_cost": "mapper.mapping_cost"},
    keys={"mapping": "mapping_keys.MAPPING_KEYS"},
    main_keys={"mapping": "keys.COMMANDS"},
    blocks={"ModelMapping": "map_words.build_mapping_blocks"},
)
