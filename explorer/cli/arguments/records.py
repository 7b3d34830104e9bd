"""Tiling, number formats and machine that options ask for.

With them come msgspec and a reader of TOML, 50 ms, which the help of all verbs does not wait for.
"""

from __future__ import annotations

import explorer
from explorer.base.errors import Misuse
from explorer.cli.arguments.declared import typed_values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from explorer.cli.arguments.command import ParsedArgs
    from explorer.facts import TileSpec
    from explorer.facts.cost import Hardware
    from explorer.facts.quantize import QuantizeSpec
    from explorer.facts.roofline import Machine
    from explorer.facts.verification import Tolerance


def tile_spec(args: ParsedArgs, typed: Mapping[str, Any] | None = None) -> TileSpec:
    """The tiling: by default, in the file of `--config`, by what was typed.

    Args:
        args: What was typed.
        typed: What of it counts, by the fields of `TileSpec`; by default all.
    """
    from explorer.settings import tiling

    if typed is None:
        typed = typed_values(args, explorer.TileSpec, without=("config",))
    return tiling.spec_of(args.config, typed)


def quantize_spec(args: ParsedArgs) -> QuantizeSpec:
    """The number formats: by default, in the file of `--config`, by what was typed."""
    quantize = _quantize()
    form = ("form",) if "formats" in vars(args) else ()  # of `explorer settings` it is the form of tiles
    without = ("config", "weight", "input", "bias", "symmetric", *form)
    typed = typed_values(args, explorer.QuantizeSpec, without=without)
    if args.symmetric and args.asymmetric:
        raise Misuse("it cannot be both", where="--symmetric --asymmetric")
    if args.symmetric or args.asymmetric:
        typed["symmetric"] = args.symmetric
    words = [f"--{key.replace('_', '-')}" for key in args.explicit - {"to", *form}]
    if quantize.is_fast([*words, *(("--to", args.to) if args.to else ())]):
        typed["form"] = "fast"
    spec: QuantizeSpec = quantize.spec_of(args.config, typed, args.to)
    return spec


def first_quantized(args: ParsedArgs) -> QuantizeSpec | None:
    """The number formats of `--quantize`; None where it was not typed."""
    if args.quantize is None:
        if args.calibrate is not None:
            raise Misuse("there is nothing to choose ranges for", where="--calibrate", hint="--quantize int8")
        return None
    spec: QuantizeSpec = _quantize().of_text(args.quantize, "--quantize")
    return spec


def tiles(args: ParsedArgs) -> tuple[tuple[int, int, int], ...]:
    """The tiles that are combined."""
    from explorer.facts.sweep import tiles_of

    return tiles_of(args.tile, args.tile_m, args.tile_k, args.tile_n)


def tolerance(args: ParsedArgs) -> Tolerance | None:
    """By how much outputs may differ, if that was typed."""
    limits = (args.atol, args.rtol, args.snr)
    return None if limits == (None, None, None) else explorer.Tolerance(*limits)


def roofline_machine(args: ParsedArgs) -> Machine:
    """The machine by its rates, or by its name."""
    found: Machine = _machines().find(args.machine, args.peak_macs, args.bandwidth)
    return found


def named_machine(args: ParsedArgs) -> Machine | None:
    """The machine by its rates, or by its name; None where none of these was typed."""
    return roofline_machine(args) if args.machine or args.peak_macs or args.bandwidth else None


def each_machine(args: ParsedArgs) -> tuple[Machine, ...]:
    """The machines of a list of names, if that was typed."""
    named = () if args.machine is None else args.machine.split(",")
    return tuple([_machines().find(name.strip(), None, None) for name in named])


def rate(typed: str | None, where: str) -> float | None:
    """Bytes a second, if they were typed."""
    from explorer.settings.rates import parse_rate  # the help of all verbs waits for nothing

    return None if typed is None else parse_rate(typed, where=where)


def hardware(args: ParsedArgs) -> Hardware | None:
    """The machine by what it does in a cycle, if one was named."""
    machine: Hardware | None = None if args.machine is None else _machines().hardware(args.machine)
    buffer = getattr(args, "buffer", None)
    return machine if buffer is None else _machines().with_buffer(machine, buffer, "--buffer")


def _machines() -> Any:
    """What reads machines, as late as it is asked for."""
    from explorer.settings import machines

    return machines


def _quantize() -> Any:
    """What reads number formats, as late."""
    from explorer.settings import quantize

    return quantize
