"""Measure the run time of a model on this machine, layer by layer."""

from explorer.base.features import Feature

FEATURE = Feature(
    verbs={"profile": "profile_command.COMMAND"},
    methods={"profile": "profiles.profile", "compare_profiles": "profiles.compare_profiles"},
    keys={"profile": "profile_screen.PROFILE_KEYS", "comparison": "profile_screen.COMPARISON_KEYS"},
    main_keys={"profile": "keys.COMMANDS"},
    layer_lines={"time": "layer_page.layer_lines"},
    pictures={"time": "profile_report.time", "timeline": "profile_report.timeline"},
    sections={"time": "profile_report.SECTION"},
    blocks={"Profile": "profile_words.summary_blocks"},
)
