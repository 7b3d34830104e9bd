"""Options of `explorer graph`: the part of a model to draw, the groups to open, and the colors."""

from __future__ import annotations

from typing import Annotated

from explorer.base.checked import Count, Spec
from explorer.base.options import option


class GraphSpec(Spec, frozen=True):
    """A drawing of a graph, as the user requests it.

    Attributes:
        layer: Group whose inside is drawn, or layer that is drawn with its neighbors. None draws the model.
        depth: Levels of groups to open or, of a layer, the distance of its neighbors in edges.
        steps: Distance in edges of the neighbors of `layer`, which is then drawn as one box.
        unfold: Groups to open in place.
        start: Layer or group at which the highlighted paths start, or None without paths.
        end: Layer or group at which the highlighted paths end, or None without paths.
        compact: Whether the text has one line for each box, with the edges as rails.
        color: 'family', or the name of a figure by which boxes are colored.
    """

    layer: Annotated[
        str | None,
        option(
            "a group to draw from inside, or a layer to draw with the layers that feed and read it:\n"
            "its path, its name, a glob or a filter",
            manual="a group to draw from inside, or a layer to draw with the layers that feed and read it:"
            " its path, its name, a glob or a filter that only one has",
            metavar="LAYER",
        ),
    ] = None
    depth: Annotated[
        Count | None,
        option(
            "levels of groups to open, 1 for none (default: as many as a picture has room for); with a\n"
            "layer: the distance of its neighbors in edges (default 2)",
            manual="levels of groups to open, 1 for none (default: as many as a picture has room for); with"
            " a layer: the distance of its neighbors in edges (2)",
            metavar="N",
        ),
    ] = None
    steps: Annotated[
        Count | None,
        option("with --layer: draw it as one box, with its neighbors up to N edges away", metavar="N"),
    ] = None
    unfold: Annotated[
        tuple[str, ...], option("a group to open in place, with its parents", metavar="LAYER")
    ] = ()
    start: Annotated[
        str | None,
        option(
            "with --to: highlight and count the paths from this layer or group ...",
            metavar="LAYER",
            flag="--from",
        ),
    ] = None
    end: Annotated[str | None, option("... to this one", metavar="LAYER", flag="--to")] = None
    compact: Annotated[
        bool, option("for .txt: one line for each box, with the edges as rails on the left")
    ] = False
    color: Annotated[
        str,
        option(
            "color of the boxes: by the family of the layer (default), macs, params, activations,\n"
            "weights, read, written, ops, or a column of --overlay; in .txt a letter names the family:\n"
            "C convolution, M matmul, Q attention, N norm, A activation, V data movement, T tile, O other",
            manual="color of the boxes: by the family of the layer (`family`), `macs`, `params`,"
            " `activations`, `weights`, `read`, `written`, `ops`, or a column of `--overlay`; of `.json` the"
            " figure that it holds (`macs`); in `.txt` a letter names the family: C convolution, M matmul, Q"
            " attention, N norm, A activation, V data movement, T tile, O other",
            metavar="family|FIGURE",
            usual="",
        ),
    ] = "family"
