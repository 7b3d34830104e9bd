"""Check of the machine in a manifest of emitted code: it must be the one for which the code was emitted."""

from __future__ import annotations

import hashlib
import json
import os

import msgspec

from explorer.base.compat import build_type
from explorer.base.errors import Misuse
from explorer.facts import to_json
from explorer.facts.emission import MANIFEST, CodeManifest
from explorer.facts.mapping import MemoryMachine
from explorer.settings.memories import check_machine


def compute_machine_digest(machine: MemoryMachine) -> str:
    """Return the SHA-256 digest of a machine's figures; the file that describes it does not count."""
    # the round trip writes numbers as a manifest does: 16 and 16.0 are the same rate
    written = msgspec.json.decode(msgspec.json.encode(machine), type=build_type(MemoryMachine))
    fields = to_json(written)
    fields["hardware"].pop("origin", None)
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def check_counts(machine: MemoryMachine, where: str) -> None:
    """Refuse a machine whose bytes are counted in another way than the code moves them.

    Raises:
        Misuse: The machine has no registers, or it reads sums at their first visit.
    """
    for key, is_default in (("registers", machine.registers), ("first_read", not machine.first_read)):
        if not is_default:
            raise Misuse(
                f"code does not move bytes as '{key}' of {machine.hardware.name} counts them",
                where=where,
                hint=f"leave {key} out of the machine",
            )


def check_manifest_machine(manifest: CodeManifest, folder: str) -> None:
    """Refuse a manifest whose machine is invalid, or is not the one for which the code was emitted.

    Raises:
        Misuse: The machine is invalid or was changed, or counts bytes in another way than the code.
    """
    path = os.path.join(folder, MANIFEST)
    check_machine(manifest.machine, path)
    if manifest.machine_sha256 and manifest.machine_sha256 != compute_machine_digest(manifest.machine):
        raise Misuse(
            "the machine was changed after the code was emitted",
            where=path,
            hint="change the machine in its own file, and emit the code again",
        )
    check_counts(manifest.machine, path)
