"""Quantize layers: choose number formats, try them, write the model and measure the error."""

from explorer.base.features import Feature

FEATURE = Feature(
    verbs={"quantize": "quantize_command.COMMAND"},
    methods={
        "quantize_choice": "quantize_methods.quantize_choice",
        "quantize_settings": "quantize_methods.quantize_settings",
        "quantize": "quantize_methods.quantize",
        "quantize_module": "quantize_methods.quantize_module",
        "quantize_trial": "quantize_methods.quantize_trial",
        "requantize": "quantize_methods.requantize",
    },
    keys={"quantize": "quantize_screen.QUANTIZE_KEYS"},
    main_keys={"quantize": "keys.COMMANDS"},
    changes={"quantize": "quantize.CHANGE"},
    records={"quantize": "quantization_record.QuantizationRecord"},
    fields={"quantize": "quantize_words.state_fields"},
    words={"quantize_settings": "quantize_words.quantize_settings"},
    blocks={"Quantization": "quantize_words.quantize_blocks"},
)
