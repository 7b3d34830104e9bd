"""Inputs of models from their configuration: models of transformers, timm and similar libraries.

Such a model has a `config` object (or timm's `pretrained_cfg`). The arguments of forward have common names:
`pixel_values` for images, `input_values` for sound, `input_features` for spectra, `input_ids` for text. If
several shapes fit, the first with which the model runs is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Size = tuple[int, ...]
Sizes = dict[str, tuple[str, Size]]
"""Type and shape by input name; the type '' is that of the weights."""

_SAMPLES = 16_000
_FRAMES = 1_024
_TOKENS = 128
_PICTURE = 224


class _Config:
    """Settings of a configuration and of the configurations inside it."""

    def __init__(self, model: Any, *parts: str) -> None:
        config = getattr(model, "config", None)
        self.sources = [config, *(getattr(config, part, None) for part in parts)]
        self.sources = [source for source in reversed(self.sources) if source is not None]

    def get(self, *names: str) -> Any:
        """The first of these settings that exists; inner configurations come first."""
        for source in self.sources:
            for name in names:
                value = source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)
                if value is not None:
                    return value
        return None

    def whole(self, *names: str) -> int | None:
        """Like `get`, for an integer above zero."""
        value = self.get(*names)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def candidates(
    model: Any, names: Sequence[str], required: Sequence[str], dummy_sizes: Sizes
) -> Iterator[Sizes]:
    """Possible sets of inputs, most likely first; none if the model has no configuration.

    Args:
        model: A model with a `config`, or timm's `pretrained_cfg`.
        names: Names of all arguments of its forward.
        required: Names of the required arguments.
        dummy_sizes: Types and shapes of its `dummy_inputs`, if any.
    """
    size = _input_size(model)
    if size is not None and len(required) == 1:
        yield {required[0]: ("", (1, *size))}
    if getattr(model, "config", None) is None:
        return
    sizes_by_name = {name: list(make(model)) for name, make in _MADE.items() if name in names}
    main = getattr(model, "main_input_name", "")
    mains = [name for name in sizes_by_name if name in required] or [
        name for name in sizes_by_name if name == main
    ]
    text = dict(dummy_sizes)
    if not text and "input_ids" in names and ("input_ids" in required or main == "input_ids"):
        text = {"input_ids": ("int64", (1, _TOKENS))}
    if mains and not dummy_sizes:
        yield from _combinations(sizes_by_name, mains, {n: t for n, t in text.items() if n in required})
    elif text:
        yield text
    if text and "decoder_input_ids" in names and "decoder_input_ids" not in text:
        text = {**text, "decoder_input_ids": text["input_ids"]} if "input_ids" in text else text
        yield text
    if not mains or dummy_sizes:
        for name in sizes_by_name:
            yield from _combinations(sizes_by_name, [name], text)
    elif "decoder_input_ids" in names:
        yield from _combinations(sizes_by_name, mains, {"decoder_input_ids": ("int64", (1, _TOKENS))})
    if text and len(sizes_by_name) > 1:
        yield from _combinations(sizes_by_name, list(sizes_by_name), text)


def _combinations(
    sizes_by_name: Mapping[str, list[tuple[str, Size]]], names: Sequence[str], more: Sizes
) -> Iterator[Sizes]:
    """Every shape of the first input in `names`, with the most likely shapes of the others."""
    first, *rest = names
    others = {name: sizes_by_name[name][0] for name in rest if sizes_by_name[name]}
    for sized in sizes_by_name[first]:
        batch = next(iter(more.values()))[1][0] if more else 1
        both = {first: sized, **others}
        yield {**more, **{name: (kind, (batch, *shape[1:])) for name, (kind, shape) in both.items()}}


def _input_size(model: Any) -> Size | None:
    """Channels, height and width from the configuration of a timm model."""
    for source in (getattr(model, name, None) for name in ("pretrained_cfg", "default_cfg", "config")):
        input_size = (
            source.get("input_size") if isinstance(source, Mapping) else getattr(source, "input_size", ())
        )
        size = tuple(input_size) if isinstance(input_size, (tuple, list)) else ()
        if len(size) == 3 and all(isinstance(n, int) and n > 0 for n in size):
            return size
    return None


def _pixels(model: Any) -> Iterator[tuple[str, Size]]:
    config = _Config(model, "backbone_config", "vision_config")
    size = config.get("image_size", "input_size", "img_size", "crop_size")
    if isinstance(size, Mapping):
        size = (size.get("height", _PICTURE), size.get("width", _PICTURE))
    sides = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
    if len(sides) == 1:
        sides = sides * 2
    if len(sides) != 2 or not all(isinstance(n, int) and n > 0 for n in sides):
        sides = (_PICTURE, _PICTURE)
    channels = config.whole("num_channels", "in_channels", "in_chans", "num_image_channels") or 3
    frames = config.whole("num_frames", "frames_per_clip")
    if frames is not None:
        yield "", (1, frames, channels, *sides)
    yield "", (1, channels, *sides)


def _samples(model: Any) -> Iterator[tuple[str, Size]]:
    config = _Config(model, "audio_config")
    bins, length = config.whole("num_mel_bins"), config.whole("max_length", "max_source_positions")
    if bins is not None:
        yield "", (1, length or _FRAMES, bins)
    channels = config.whole("audio_channels")
    if channels is not None:
        yield "", (1, channels, config.whole("sampling_rate") or _SAMPLES)
    yield "", (1, _SAMPLES)
    yield "", (1, 1, _SAMPLES)


def _features(model: Any) -> Iterator[tuple[str, Size]]:
    config = _Config(model, "encoder_config", "audio_config")
    bins = config.whole("num_mel_bins", "n_mels", "feature_size")
    positions = config.whole("max_source_positions")
    if bins is not None and positions is not None:
        # two frames make one position
        yield "", (1, bins, 2 * positions)
    width = config.whole("feature_projection_input_dim", "input_feat_per_channel") or bins or 80
    yield "", (1, _FRAMES, width)
    yield "", (1, width, _FRAMES)
    side = config.whole("spec_size")
    yield "", (1, 1, _FRAMES if side is None else side * side // (bins or 64), bins or 64)


_MADE: dict[str, Callable[[Any], Iterator[tuple[str, Size]]]] = {
    "pixel_values": _pixels,
    "input_values": _samples,
    "input_features": _features,
}


def likely_shape(model: Any, name: str) -> Size | None:
    """The usual shape of an input with this name; None for an unknown name."""
    if name in _MADE:
        return next(_MADE[name](model))[1]
    config = _Config(model)
    if "pixel" in name or "image" in name:
        return next(_pixels(model))[1]
    if "mask" in name or "ids" in name.split("_"):
        return 1, _TOKENS
    if "embeds" in name or name.endswith(("hidden_states", "hidden_state")):
        return 1, _TOKENS, config.whole("hidden_size", "d_model", "dim") or 768
    return None
