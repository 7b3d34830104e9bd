"""Mappings of the sites of a plan: without levels, or from a mapping file of the same model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from explorer.base.errors import Misuse, suggest_name
from explorer.facts import SitePlan, TileRule
from explorer.facts.mapping import Epilogue, SiteMapping
from explorer.settings.mapping_file import FileSite, MappingFile
from explorer.settings.tiling import escape_glob

ARRAY = "array"
"""Name of the innermost level of a mapping."""

MAP_ANEW = "map the model again: explorer map MODEL -o FILE"
"""Next step where a mapping file does not belong to a model or a machine."""


def build_site_mapping(site: SitePlan) -> SiteMapping:
    """Builds a mapping of a site without levels, with its size and its number types."""
    # 0 MACs in a mapping stand for the product of the sizes
    tiled_macs = site.batch * site.M * site.K * site.N
    return SiteMapping(
        site.name,
        (site.M, site.K, site.N),
        (),
        batch=site.batch,
        dtype=site.dtype,
        right=site.right,
        accumulator=site.accumulator,
        macs=0 if site.macs in (None, tiled_macs) else site.macs or 0,
    )


def build_mapping_from_file(
    file: MappingFile, site: SitePlan, epilogue: Epilogue | None = None
) -> SiteMapping:
    """Builds the mapping of a site from the levels in a mapping file.

    Without an epilogue, the mapping also has the output type of the file.

    Args:
        file: Mapping file. `check_sites` has accepted the site.
        site: Site of the model.
        epilogue: Operators that are fused into the site, or None for none.
    """
    mapping, entry = build_site_mapping(site), file.sites[site.name]
    output = entry.types.get("output", "")
    fused = epilogue or Epilogue()
    if fused == Epilogue() and output not in ("", mapping.accumulator):
        fused = Epilogue(output=output)
    return replace(mapping, levels=entry.levels, epilogue=fused)


def check_sites(file: MappingFile, sites: Sequence[SitePlan]) -> None:
    """Refuses a mapping file of another model.

    Raises:
        Misuse: The file lacks a site, or has it with another size or other number types.
    """
    for site in sites:
        entry = file.sites.get(site.name)
        if entry is None:
            hint = (
                suggest_name(site.name, file.sites)
                or f"choose a site of it: --site '{next(iter(file.sites))}'"
            )
            problem = f"it has no mapping of '{site.name}'"
            raise Misuse(problem, where=file.path, hint=hint, code="other_model")
        _check_site(site, entry, f"{file.path}{entry.line}")


def _check_site(site: SitePlan, entry: FileSite, place: str) -> None:
    """Refuses an entry of another size or of other number types than the site; `place` is its line."""
    size = (site.M, site.K, site.N, site.batch)
    if (*entry.size, entry.batch) != size:
        theirs, ours = (
            "x".join(str(length) for length in numbers[:3])
            + (f", batch {numbers[3]}" if numbers[3] > 1 else "")
            for numbers in ((*entry.size, entry.batch), size)
        )
        problem = f"'{site.name}' has size {theirs} there, and {ours} here"
        raise Misuse(problem, where=place, hint=MAP_ANEW, code="other_model")
    for key, dtype in (("dtype", site.dtype), ("right", site.right), ("accumulator", site.accumulator)):
        if key in entry.types and entry.types[key] != (dtype or site.dtype):
            raise Misuse(
                f"'{key}' of '{site.name}' is {entry.types[key]} there, and {dtype or site.dtype} here",
                where=place,
                hint=MAP_ANEW,
                code="other_model",
            )


def list_tile_rules(file: MappingFile, level: str) -> Iterator[TileRule]:
    """Yields a rule for each site of a mapping file, with the tile of a level.

    Args:
        file: Mapping file.
        level: Name of a memory, or 'array' for the innermost level.

    Raises:
        Misuse: A site has no such level.
    """
    for name, entry in file.sites.items():
        index = _find_level_index(entry, level)
        if index is None:
            levels = [memories for memories in entry.memories[:-1] if memories]
            raise Misuse(
                f"the mapping has no level '{level}'",
                where="--level",
                hint=f"{file.path} has {', '.join([*levels, ARRAY])}",
            )
        origin = f"{os.path.basename(file.path)}{entry.line}"
        yield TileRule(escape_glob(name), tile=entry.levels[index].tile, origin=origin)


def _find_level_index(entry: FileSite, level: str) -> int | None:
    """Returns the index of the level with a memory, or None. A level's memories are one text with spaces."""
    if level == ARRAY:
        return len(entry.levels) - 1
    indices = [
        index for index, memories in enumerate(entry.memories) if level and f" {level} " in f" {memories} "
    ]
    return indices[0] if indices else None
