"""Measures the machine on which the program runs, for `--machine here`."""

from __future__ import annotations

from explorer.base.checked import Count, PathText, Positive
from explorer.engine.profile.measure.machine import measure_this_machine
from explorer.facts.roofline import Machines
from explorer.session.parts.models import Cancel, OnProgress
from explorer.settings import machine_file
from explorer.settings.machines import HERE


def measure_machine(
    name: str = HERE,
    *,
    threads: Count | None = None,
    time_limit: Positive = 60.0,
    overwrite: bool = False,
    config: PathText | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Machines:
    """Measures this machine with onnxruntime and writes it into the config file.

    A second machine, with `-core` after the name, is one core with its caches, for `map`. Other lines of the
    file stay.

    Args:
        name: Name of the machine, as `--machine` and `explorer.settings.machines.find_hardware` accept it.
        threads: Number of threads for operators. None leaves the choice to the runtime, one per core.
        time_limit: Seconds for all kernels together. The result lists the medians that are then uncertain.
        overwrite: Whether to replace a machine of that name in the file.
        config: Path of the config file, or None for the user's own.
        on_progress: Callback with the number of timed kernels.
        cancel: Callback between runs. If it returns True, the measurement stops and nothing is written.

    Returns:
        The machine as it was written, with its measurements (`machines[0].measured`), and its core.

    Raises:
        Misuse: The machine has fewer processors, the name is invalid or exists, or the file cannot be
            written.
        Cancelled: `cancel` returned True.
    """
    for machine in (name, machine_file.build_core_name(name)):
        machine_file.check_name(machine, config, overwrite=overwrite)
    measurement = measure_this_machine(threads, time_limit, on_progress=on_progress, cancel=cancel)
    return machine_file.save_measured(name, measurement, config, overwrite=overwrite)
