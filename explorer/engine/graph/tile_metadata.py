"""Metadata of a tiled model: the site (tiled matmul) of each node, and the plans stored in the model.

A tiled model can be tiled again, for example first its convolutions and then other layers with another tile.
Its metadata then contains both plans.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from explorer.engine.graph.model import Model
from explorer.facts import Plan, to_json

DOMAIN = "tile_hw"
"""Domain of the tile operators, without a dot because some importers reject one."""

SITE_KEY = "tile_hw.site"
"""Metadata key of a node: the site that it belongs to."""

MNK_KEY = "tile_hw.mnk"
"""Metadata key of a tile product: the indices of its tile along rows, columns and depth, as 'm,n,k'. An index
that a loop or a batch counts is '*'."""

PLAN_KEY = "tile_hw.plan"
"""Metadata key of a model: the last plan as JSON, so that a tiled file can be verified without other files.
Earlier plans use the same key with a number appended, counted from the first plan."""

_NUMBERED = re.compile(rf"{re.escape(PLAN_KEY)}\.([1-9]\d{{0,5}})", re.ASCII)


def add_plan(metadata: Mapping[str, str], plan: Plan) -> dict[str, str]:
    """Returns the metadata of a model with a new last plan."""
    updated = {**metadata, PLAN_KEY: json.dumps(to_json(plan), separators=(",", ":"))}
    if PLAN_KEY in metadata:
        updated[f"{PLAN_KEY}.{max(_list_plan_numbers(metadata), default=0) + 1}"] = metadata[PLAN_KEY]
    return updated


def _list_plan_numbers(metadata: Mapping[str, str]) -> list[int]:
    """Returns the numbers of the earlier plans in the keys of a model's metadata, ascending."""
    return sorted(int(match[1]) for match in map(_NUMBERED.fullmatch, metadata) if match)


def read_earlier_plans(model: Model) -> list[str]:
    """Returns the texts of the plans before the last one, later plans first."""
    return [model.metadata[f"{PLAN_KEY}.{number}"] for number in reversed(_list_plan_numbers(model.metadata))]


def read_plans(model: Model) -> list[dict[str, Any]]:
    """Reads the plans of a tiled model as JSON objects, the last one first; an unreadable plan is skipped.

    Nothing proves that the nodes of the model follow these plans.
    """
    records = []
    for text in (model.metadata.get(PLAN_KEY, "null"), *read_earlier_plans(model)):
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            records.append(record)
    return records
