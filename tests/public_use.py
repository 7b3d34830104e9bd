"""Use of the public API as a type checker sees it: `pyright` reads this file, and nothing runs it.

Every `assert_type` fails where a method of a feature lost its type, and every ignored line where a wrong
argument passes.
"""

from __future__ import annotations

from typing import assert_type

import explorer
from explorer import CheckSpec, Session, TileSpec
from explorer.facts import Info, LayerRow, Plan, TileResult, Verification
from explorer.facts.check import Check, ModelCheck
from explorer.facts.split.edit import Edit, EditSpec, EditStep
from explorer.facts.split.fold import Fold, FoldSpec
from explorer.facts.split.split import Split, SplitSpec
from explorer.facts.summary import Counts, Summary
from explorer.facts.training import Training


def use(session: Session) -> None:
    """Calls of methods that the kernel has, that features add, and that take a record or what it holds."""
    assert_type(session.info(), Info)
    assert_type(session.training(), Training)
    spec = TileSpec(tile=(64, 64, 64))
    assert_type(session.plan(spec), Plan)
    assert_type(session.tile(spec, output="tiled.onnx"), TileResult)
    assert_type(session.fold(("identity",), verify=False), Fold)
    assert_type(session.fold(FoldSpec(("identity",)), output="folded.onnx"), Fold)
    step = EditStep("rename", "conv1", "first")
    assert_type(session.edit([step]), Edit)
    assert_type(session.edit(EditSpec((step,))), Edit)
    assert_type(explorer.verify_files("a.onnx", "b.onnx"), Verification)
    assert_type(session.check(CheckSpec(max_macs="4.1G", min_coverage=1.0)), ModelCheck)
    assert_type(explorer.check_files("a.onnx", spec=CheckSpec(max_params="+5%")), Check)
    assert_type(session.layers(style="torchinfo")[0], LayerRow)
    assert_type(explorer.summary("resnet18", (1, 3, 224, 224)), Summary)
    assert_type(explorer.count("a.onnx"), Counts)
    _, split = session.split_module(SplitSpec(stages=2), devices=("cpu",))
    assert_type(split, Split)


def misuse(session: Session) -> None:
    """Wrong calls: a type checker refuses each."""
    session.tile("64x64x64")  # pyright: ignore[reportArgumentType]
    session.fold(("everything",))  # pyright: ignore[reportArgumentType, reportCallIssue]
    session.layers(style="torchinf")  # pyright: ignore[reportArgumentType]
    explorer.summary("resnet18", mode="test")  # pyright: ignore[reportArgumentType]
    session.plan()  # pyright: ignore[reportCallIssue]
    session.tilt(TileSpec())  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
