"""Time that is measured on this machine."""

from explorer.base.features import Feature

FEATURE = Feature(
    verbs={
        "profile": "profile_command.COMMAND",
    },
    methods={
        "profile": "profile_methods.profile",
        "compare_profiles": "profile_methods.compare_profiles",
    },
    keys={
        "profile": "profile_view.PROFILE_KEYS",
        "comparison": "profile_comparison_view.COMPARISON_KEYS",
    },
    commands={
        "profile": "keys.COMMANDS",
    },
    layer_lines={
        "time": "layer_page.layer_lines",
    },
    pictures={
        "time": "profile_pictures.time",
        "timeline": "profile_pictures.timeline",
    },
    sections={
        "time": "report_section.SECTION",
    },
)
