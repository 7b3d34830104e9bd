"""Description of a model in its file, without building it: modules, tensors, operators.

It serves a pickled module whose code may not run, and a TorchScript file or exported program on a machine
without torch. The tree, parameters, bytes, types and values are available. What needs a run of the model is
unknown, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from msgspec.structs import replace

from explorer.base.errors import MissingExtra, Misuse, install_command
from explorer.engine.costs import layer_rows, layer_tree
from explorer.engine.costs.layer_tree import UNPLACED, GroupFacts, LayerLeaf, Scope, summed
from explorer.engine.costs.memory import liveness
from explorer.engine.formats.format import named
from explorer.engine.formats.module_index import ModulePart
from explorer.engine.formats.tensor_index import TensorIndex
from explorer.engine.formats.torch_files.checkpoint_modules import read_checkpoint
from explorer.engine.formats.torch_files.torchscript import script
from explorer.engine.models.opened_model import OpenedModel, OpenOptions
from explorer.engine.models.tensor_rows import leaf_layer
from explorer.engine.models.tensors import DescribedLeaves, TensorFile, leaf_of, tree_of
from explorer.engine.models.torch.transformers import with_config_beside
from explorer.engine.progress import Cancel, OnProgress
from explorer.facts import NOTHING_KNOWN, Layer, Shape, TensorInfo
from explorer.host.gc_pause import gc_pause
from explorer.host.optional_packages import require

if TYPE_CHECKING:
    from explorer.engine.values.numbers import Numbers


class DescribedFile(TensorFile):
    """A model that is known by its description.

    Args:
        contents: Its tensors, and the other facts in the file.
        options: How it is opened.
        grow: Builds the leaves of its tree.
        strides: Strides of the tensors that are not contiguous, in elements.
        hint: The next step for a user who needs more.
        inputs: Inputs of the model, as far as the file gives them; `outputs` likewise.
        counted: If the leaves have costs: where those come from.
    """

    def __init__(
        self,
        contents: TensorIndex,
        options: OpenOptions,
        grow: Callable[[], DescribedLeaves],
        *,
        strides: Mapping[str, tuple[int, ...]] | None = None,
        hint: str = "",
        inputs: tuple[TensorInfo, ...] = (),
        outputs: tuple[TensorInfo, ...] = (),
        counted: str = "",
    ) -> None:
        super().__init__(contents, options)
        self._grow = grow
        self.strides = strides or {}
        self._hint = hint
        self._inputs = inputs
        self._outputs = outputs
        self._counted = counted

    def examine(self, *, on_progress: OnProgress = None, cancel: Cancel = None) -> liveness.AnalysisResult:
        """See `OpenedModel`."""
        examined = super().examine(on_progress=on_progress, cancel=cancel)
        with gc_pause():
            leaves, groups = self._grow()
            trained = self._requiring_grad(leaves)
            layers = layer_rows.build(leaves, groups, trained=trained)
        each = {
            identity: elements
            for leaf in leaves
            for identity, elements, _ in leaf.stored
            if trained is not None and identity in trained
        }
        trainable = None if trained is None else sum(each.values())
        totals = layer_tree.totals(leaves, trainable_params=trainable)
        totals = replace(totals, stored_status=examined.info.totals.stored_status)
        model = replace(examined.info.model, inputs=self._inputs, outputs=self._outputs)
        if self._counted:
            model = replace(model, notes=(self._counted, *model.notes[1:]))
            totals = replace(totals, **self._activations(leaves))
        else:
            totals = replace(totals, nodes=0, coverage=0.0, status="unknown")
        info = replace(examined.info, totals=totals, model=model)
        why = f"{self.contents.why}: the order of execution is not known"
        order = liveness.Schedule((), (), (), why, self._hint)
        return liveness.AnalysisResult(info, lambda: (layers, lambda: order, lambda: None))

    def _activations(self, leaves: Sequence[LayerLeaf]) -> dict[str, int | None]:
        """Bytes of the outputs of modules, and separately of operators outside modules."""
        sums: dict[bool, list[int | None]] = {True: [], False: []}
        for leaf in leaves:
            sums[leaf.layer.path in self.contents.kinds].append(leaf.layer.activation_bytes)
        return {
            "activation_bytes_sum": summed(sums[True]),
            "activation_bytes_functional": summed(sums[False]),
            "activation_bytes_peak": None,
        }

    def _requiring_grad(self, leaves: Sequence[LayerLeaf]) -> set[Hashable] | None:
        """Parameters with requires_grad, by their identities; None if the file does not say."""
        trainable = {key: t.trainable for t in self.contents.tensors for key, _, _ in t.counted}
        used = {identity for leaf in leaves for identity, _, _ in leaf.stored}
        if any(trainable.get(identity) is None for identity in used):
            return None
        return {identity for identity in used if trainable[identity]}

    def tensors(self) -> tuple[Sequence[Numbers], tuple[str, ...]]:
        """See `OpenedModel`."""
        tensors, notes = super().tensors()
        unread = {tensor.name for tensor in self.contents.tensors if tensor.unread}
        # the bytes at its place in the file, if it has one, are not its numbers
        tensors = [replace(n, raw=None) if n.name in unread else n for n in tensors]
        return [replace(n, layer=n.name.rpartition(".")[0]) for n in tensors], notes

    def refuse(self, why: str) -> NoReturn:
        """See `StaticModel`."""
        raise Misuse(f"{self.contents.why}: {why}", where=self.source, hint=self._hint)


def refuse_sizes(options: OpenOptions, hint: str) -> None:
    """Refuses options that need torch for a model that is known by its description.

    Raises:
        Misuse: The options ask for other sizes than those in the file, or for a decode step.
    """
    values = {"--dim": options.dims, "--input-shape": options.input_shapes, "--past": options.past}
    for option, value in values.items():
        if value:
            raise Misuse(
                "without torch the model is known at the sizes in its file only", where=option, hint=hint
            )


def declared(values: Sequence[tuple[str, str | None, Shape | None]]) -> tuple[TensorInfo, ...]:
    """Inputs or outputs as a file declares them: name, type, shape."""
    return tuple(TensorInfo(name, dtype, shape, "declared") for name, dtype, shape in values)


# -- the tree of a description


def leaves_of(parts: Sequence[ModulePart], why: str) -> DescribedLeaves:
    """Leaves: one for every module without submodules, every tensor outside modules, and every object outside
    the model, whose tensors are no parameters.

    Args:
        parts: In pre-order.
        why: Why nothing is known of their work.
    """
    leaves: list[LayerLeaf] = []
    groups: dict[str, GroupFacts] = {}
    scopes: tuple[Scope, ...] = ()
    for part in parts:
        scopes = scopes[: part.depth]
        if not part.kind:
            loose, around = tree_of(part.parameters, why, {}, part.role)
            leaves += loose
            groups |= {path: facts for path, facts in around.items() if path not in groups}
            continue
        buffers = [tensor.last for tensor in part.buffers]
        attributes = {**part.settings, **({"buffers": buffers} if buffers else {})}
        if part.inside or not part.path:
            if part.path:
                name = part.name if part.depth else part.path
                scopes = (*scopes, Scope(part.path, name, part.kind))
                groups[part.path] = GroupFacts(status="unknown", reason=why, attributes=attributes)
            if part.inside:
                for tensor in part.parameters:
                    leaves.append(leaf_of(leaf_layer(tensor, tensor.last, why), scopes, [tensor], part.role))
                continue
        leaf = Layer(
            **UNPLACED,
            path=part.path or part.kind,
            name=part.name or part.kind,
            kind=part.kind,
            weights=tuple(TensorInfo(t.last, t.dtype, t.shape, "declared") for t in part.parameters),
            attributes=attributes,
            reason=why,
            **NOTHING_KNOWN,
        )
        leaves.append(leaf_of(leaf, scopes, part.parameters, part.role))
    return leaves, groups


# -- files that torch rebuilds if it is installed, and that are described if not

_NO_TORCH = "its code is analysed with torch, which cannot be had here"


def open_script(source: str, options: OpenOptions) -> OpenedModel:
    """A TorchScript file.

    Raises:
        BadModel: It is broken.
        Misuse: Without torch, other sizes are asked for than those in the file.
    """
    try:
        require("torch", source)
    except MissingExtra:
        refuse_sizes(options, f"type: {install_command()}")
        described = script(source, _NO_TORCH)
        return DescribedFile(
            described.contents,
            options,
            lambda: leaves_of(described.parts, _NO_TORCH),
            strides=described.strides,
            hint=f"type: {install_command()}",
            inputs=declared(described.inputs),
        )
    rebuilt: OpenedModel = named("models.torch.module_file:open_script")(source, options)
    return rebuilt


def open_checkpoint(source: str, options: OpenOptions) -> OpenedModel:
    """A checkpoint; with `options.trust` a module in it is loaded, and whatever code is in the file runs.

    Raises:
        BadModel: It is broken, or holds no tensors; or a class of a trusted module cannot be imported here.
        MissingExtra: It is trusted, and torch is not installed.
    """
    checkpoint = read_checkpoint(source, "checkpoint")
    if options.trust and checkpoint.whole:
        require("torch", source)
        loaded: OpenedModel = named("models.torch.module_file:open_pickled")(source, options, checkpoint)
        return loaded
    if not checkpoint.whole:
        opened = with_config_beside(source, checkpoint.contents, options)
        if opened is not None:
            return opened
    why = checkpoint.contents.why
    hint = (
        "--trust runs it, if its classes can be imported here"
        if checkpoint.whole
        else "name the code that builds it (package.module:callable), or export it to ONNX"
    )
    return DescribedFile(
        checkpoint.contents,
        options,
        lambda: leaves_of(checkpoint.parts, why),
        strides=checkpoint.strides,
        hint=hint,
    )
