"""Checks that a mapping file belongs to a machine and to the sites of a model."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.base.errors import Misuse
from explorer.engine.mapping.cost import group_memories
from explorer.facts import SitePlan
from explorer.facts.mapping import MemoryMachine
from explorer.settings.mapping_file import MappingFile
from explorer.settings.site_mappings import ARRAY, MAP_ANEW, check_sites


def list_level_texts(machine: MemoryMachine) -> list[str]:
    """Lists the names of the memories of each level, as text, from the outermost in to the array."""
    groups = group_memories(machine)[1:]
    return [*(" ".join(memory.name for memory in group) for group in groups), ARRAY]


def check_file(file: MappingFile, sites: Sequence[SitePlan], machine: MemoryMachine) -> None:
    """Refuses a mapping file of another machine or model.

    Raises:
        Misuse: The machine, its memories, a site, a size or a number type differs.
    """
    if file.machine != machine.hardware.name:
        message = f"it is for machine '{file.machine}', not '{machine.hardware.name}'"
        raise Misuse(message, where=file.path, hint=f"add --machine {file.machine}", code="other_machine")
    check_sites(file, sites)
    names = list_level_texts(machine)
    for site in sites:
        entry = file.sites[site.name]
        place = f"{file.path}{entry.line}"
        if entry.levels[-1].tile != machine.unit:
            message = f"the array's tile of '{site.name}' is not the unit of {machine.hardware.name}"
            raise Misuse(message, where=place, hint=f"write tile = {list(machine.unit)}")
        for number, (in_file, on_machine) in enumerate(zip(entry.memories, names, strict=False), 1):
            if in_file and in_file != on_machine:
                message = (
                    f"level {number} of '{site.name}' is for '{in_file}', and the machine has '{on_machine}'"
                )
                raise Misuse(message, where=place, hint=MAP_ANEW, code="other_model")
