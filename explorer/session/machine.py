"""Measuring the machine that the program runs on, for `--machine here`."""

from __future__ import annotations

from explorer.base.checked import Count, PathText, Positive
from explorer.engine.profile.measure.machine import measured
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
    """Measures this machine with onnxruntime, and writes it into the config file, whose other lines stay.

    Args:
        name: That `--machine` and `explorer.settings.machines.hardware` take.
        threads: That operators may use; None: one a core, as the runtime likes.
        time_limit: Seconds for all kernels together; which medians are not sure by then is said.
        overwrite: Whether a machine of that name in the file may be replaced.
        config: The file; None for the user's own.
        on_progress: Told how many kernels were timed.
        cancel: Asked between runs; True stops, and nothing is written.

    Returns:
        The machine as it was written, with all that was measured (`machines[0].measured`).

    Raises:
        Misuse: There are fewer processors, the name is none or taken, or the file cannot be written.
        Cancelled: `cancel` said so.
    """
    machine_file.check_name(name, config, overwrite=overwrite)
    measurement = measured(threads, time_limit, on_progress=on_progress, cancel=cancel)
    return machine_file.save_measured(name, measurement, config, overwrite=overwrite)
