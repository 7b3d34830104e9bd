"""Converts options to records: tiling, number formats, machine and tolerance.

This module imports msgspec and a TOML reader, which takes 50 ms, so the help does not import it.
"""

from __future__ import annotations

import explorer
from explorer.base.errors import Misuse
from explorer.cli.arguments.declared import read_typed_values

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


def read_tile_spec(args: ParsedArgs, typed: Mapping[str, Any] | None = None) -> TileSpec:
    """Return the tiling: the defaults, overridden by the `--config` file, overridden by the options.

    Args:
        args: Parsed arguments.
        typed: Values by field of `TileSpec` that override the file; by default, all options.
    """
    from explorer.settings import tiling

    if typed is None:
        typed = read_typed_values(args, explorer.TileSpec, without=("config",))
    return tiling.build_spec(args.config, typed)


def read_quantize_spec(args: ParsedArgs) -> QuantizeSpec:
    """Return the number formats: the defaults, overridden by the `--config` file, then by the options."""
    quantize = _import_quantize()
    # `explorer settings` is the command with --formats; its --form is the form of the tiles
    form = ("form",) if "formats" in vars(args) else ()
    without = ("config", "weight", "input", "bias", "symmetric", *form)
    typed = read_typed_values(args, explorer.QuantizeSpec, without=without)
    if args.symmetric and args.asymmetric:
        raise Misuse("it cannot be both", where="--symmetric --asymmetric")
    if args.symmetric or args.asymmetric:
        typed["symmetric"] = args.symmetric
    # if no option sets the form, it is the fastest that the runtime has for each operator
    words = [f"--{key.replace('_', '-')}" for key in args.explicit - {"to", *form}]
    if quantize.is_form_open([*words, *(("--to", args.to) if args.to else ())]):
        typed["form"] = "fast"
    spec: QuantizeSpec = quantize.build_spec(args.config, typed, args.to)
    return spec


def read_quantize(args: ParsedArgs) -> QuantizeSpec | None:
    """Return the number formats of `--quantize`, or None without the option."""
    if args.quantize is None:
        if args.calibrate is not None:
            raise Misuse("only quantization uses these samples", where="--calibrate", hint="--quantize int8")
        return None
    spec: QuantizeSpec = _import_quantize().parse_spec(args.quantize, "--quantize")
    return spec


def read_tiles(args: ParsedArgs) -> tuple[tuple[int, int, int], ...]:
    """Return the tile sizes to combine."""
    from explorer.facts.sweep import combine_tiles

    return combine_tiles(args.tile, args.tile_m, args.tile_k, args.tile_n)


def read_tolerance(args: ParsedArgs) -> Tolerance | None:
    """Return the allowed differences of outputs, or None without the options."""
    limits = read_typed_values(args, explorer.Tolerance)
    return explorer.Tolerance(**limits) if limits else None


def read_roofline_machine(args: ParsedArgs) -> Machine:
    """Return the machine given by rates or by name."""
    machine: Machine = _import_machines().find(args.machine, args.peak_macs, args.bandwidth)
    return machine


def read_machine(args: ParsedArgs) -> Machine | None:
    """Return the machine given by rates or by name, or None without these options."""
    return read_roofline_machine(args) if args.machine or args.peak_macs or args.bandwidth else None


def read_machines(args: ParsedArgs) -> tuple[Machine, ...]:
    """Return the machines of a comma-separated list of names, or () without the option."""
    names = () if args.machine is None else args.machine.split(",")
    return tuple([_import_machines().find(name.strip(), None, None) for name in names])


def read_rate(typed: str | None, where: str) -> float | None:
    """Parse a rate in bytes per second; None stays None."""
    from explorer.settings.rates import parse_rate  # imported on demand: the help does not need it

    return None if typed is None else parse_rate(typed, where=where)


def read_hardware(args: ParsedArgs) -> Hardware | None:
    """Return the machine given by name, with `--buffer` applied, or None without either option."""
    machine: Hardware | None = (
        None if args.machine is None else _import_machines().find_hardware(args.machine)
    )
    buffer = getattr(args, "buffer", None)
    return machine if buffer is None else _import_machines().replace_buffer(machine, buffer, "--buffer")


def _import_machines() -> Any:
    """Import the module of machines on demand."""
    from explorer.settings import machines

    return machines


def _import_quantize() -> Any:
    """Import the module of number formats on demand."""
    from explorer.settings import quantize

    return quantize
