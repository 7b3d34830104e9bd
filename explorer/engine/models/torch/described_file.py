"""Describes a model from its file without building it: modules, tensors, operators.

It is used for a pickled module whose code may not run, and for a TorchScript file or exported program on a
machine without torch. Tree, parameters, bytes, types and values are available. Figures that need a run of the
model are unknown, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from msgspec.structs import replace

from explorer.base.errors import MissingExtra, Misuse, format_install_command
from explorer.engine.costs import layer_rows, layer_tree
from explorer.engine.costs.layer_tree import UNPLACED, GroupFacts, LayerLeaf, Scope, sum_known
from explorer.engine.costs.memory import liveness
from explorer.engine.formats.format import import_on_call
from explorer.engine.formats.module_index import ModulePart
from explorer.engine.formats.tensor_index import TensorIndex
from explorer.engine.formats.torch_files.checkpoint_modules import read_checkpoint
from explorer.engine.formats.torch_files.torchscript import read_script
from explorer.engine.models.opened_model import OpenedModel, OpenOptions
from explorer.engine.models.tensor_rows import build_leaf_layer
from explorer.engine.models.tensors import DescribedLeaves, TensorFile, build_leaf, build_tree
from explorer.engine.models.torch.transformers import open_with_config
from explorer.engine.progress import Cancel, OnProgress
from explorer.facts import NOTHING_KNOWN, Layer, Shape, TensorInfo
from explorer.host.gc_pause import pause_garbage_collector
from explorer.host.optional_packages import require

if TYPE_CHECKING:
    from explorer.engine.values.numbers import Numbers


class DescribedFile(TensorFile):
    """A model that is known only by the description in its file.

    Args:
        contents: The model's tensors, and other facts in the file.
        options: Options that the model is opened with.
        create_leaves: Function that builds the leaves of the layer tree.
        strides: Strides of the tensors that are not contiguous, in elements.
        hint: Next step for a user who needs more.
        inputs: Inputs of the model, as far as the file declares them.
        outputs: Outputs of the model, as far as the file declares them.
        cost_note: Note on the source of the leaves' costs, or '' if the leaves have none.
    """

    def __init__(
        self,
        contents: TensorIndex,
        options: OpenOptions,
        create_leaves: Callable[[], DescribedLeaves],
        *,
        strides: Mapping[str, tuple[int, ...]] | None = None,
        hint: str = "",
        inputs: tuple[TensorInfo, ...] = (),
        outputs: tuple[TensorInfo, ...] = (),
        cost_note: str = "",
    ) -> None:
        super().__init__(contents, options)
        self._create_leaves = create_leaves
        self.strides = strides or {}
        self._hint = hint
        self._inputs = inputs
        self._outputs = outputs
        self._cost_note = cost_note

    def examine(self, *, on_progress: OnProgress = None, cancel: Cancel = None) -> liveness.AnalysisResult:
        """See `OpenedModel`."""
        examined = super().examine(on_progress=on_progress, cancel=cancel)
        with pause_garbage_collector():
            leaves, groups = self._create_leaves()
            trained = self._find_trained_parameters(leaves)
            layers = layer_rows.build(leaves, groups, trained=trained)
        elements_by_parameter = {
            identity: elements
            for leaf in leaves
            for identity, elements, _ in leaf.stored
            if trained is not None and identity in trained
        }
        trainable = None if trained is None else sum(elements_by_parameter.values())
        totals = layer_tree.compute_totals(leaves, trainable_params=trainable)
        totals = replace(totals, stored_status=examined.info.totals.stored_status)
        model = replace(examined.info.model, inputs=self._inputs, outputs=self._outputs)
        if self._cost_note:
            # the first note of a TensorFile says that MACs are unknown
            model = replace(model, notes=(self._cost_note, *model.notes[1:]))
            totals = replace(totals, **self._sum_activations(leaves))
        else:
            totals = replace(totals, nodes=0, coverage=0.0, status="unknown")
        info = replace(examined.info, totals=totals, model=model)
        reason = f"{self.contents.why}: the order of execution is not known"
        order = liveness.Schedule((), (), (), reason, self._hint)
        return liveness.AnalysisResult(info, lambda: liveness.BuiltRows(layers, lambda: order))

    def _sum_activations(self, leaves: Sequence[LayerLeaf]) -> dict[str, int | None]:
        """Returns fields of the totals: output bytes of modules, of other operators, and the unknown peak."""
        sums: dict[bool, list[int | None]] = {True: [], False: []}
        for leaf in leaves:
            sums[leaf.layer.path in self.contents.kinds].append(leaf.layer.activation_bytes)
        return {
            "activation_bytes_sum": sum_known(sums[True]),
            "activation_bytes_functional": sum_known(sums[False]),
            "activation_bytes_peak": None,
        }

    def _find_trained_parameters(self, leaves: Sequence[LayerLeaf]) -> set[Hashable] | None:
        """Returns the identities of parameters with requires_grad, or None if the file does not say."""
        trainable = {
            key: tensor.trainable for tensor in self.contents.tensors for key, _, _ in tensor.counted_pieces
        }
        parameter_ids = {identity for leaf in leaves for identity, _, _ in leaf.stored}
        if any(trainable.get(identity) is None for identity in parameter_ids):
            return None
        return {identity for identity in parameter_ids if trainable[identity]}

    def tensors(self) -> tuple[Sequence[Numbers], tuple[str, ...]]:
        """See `OpenedModel`."""
        tensors, notes = super().tensors()
        unread = {tensor.name for tensor in self.contents.tensors if tensor.unread}
        # the bytes in the file, if any, are not the tensor's numbers
        tensors = [replace(numbers, raw=None) if numbers.name in unread else numbers for numbers in tensors]
        return [replace(numbers, layer=numbers.name.rpartition(".")[0]) for numbers in tensors], notes

    def refuse(self, why: str) -> NoReturn:
        """See `StaticModel`."""
        raise Misuse(f"{self.contents.why}: {why}", where=self.source, hint=self._hint)


def refuse_sizes(options: OpenOptions, hint: str) -> None:
    """Refuses options that need torch, because only the description of the model was read.

    Raises:
        Misuse: The options request other sizes than those in the file, or a decode step.
    """
    values = {"--dim": options.dims, "--input-shape": options.input_shapes, "--past": options.past}
    for option, value in values.items():
        if value:
            raise Misuse(
                "without torch, only the sizes in the file of the model are known", where=option, hint=hint
            )


def build_tensor_infos(values: Sequence[tuple[str, str | None, Shape | None]]) -> tuple[TensorInfo, ...]:
    """Returns the inputs or outputs that a file declares, given as name, type and shape."""
    return tuple(TensorInfo(name, dtype, shape, "declared") for name, dtype, shape in values)


# -- layer tree of a description


def build_leaves(parts: Sequence[ModulePart], reason: str) -> DescribedLeaves:
    """Returns the leaves of a layer tree.

    There is a leaf for every module without submodules, for every parameter that a module with submodules
    owns directly, and for every tensor outside modules. Tensors of parts with a role, such as an optimizer
    state, are not parameters.

    Args:
        parts: Parts of the file, in pre-order.
        reason: Reason why the costs are unknown.
    """
    leaves: list[LayerLeaf] = []
    groups: dict[str, GroupFacts] = {}
    scopes: tuple[Scope, ...] = ()
    for part in parts:
        scopes = scopes[: part.depth]
        if not part.kind:
            loose_leaves, loose_groups = build_tree(part.parameters, reason, {}, part.role)
            leaves += loose_leaves
            groups |= {path: facts for path, facts in loose_groups.items() if path not in groups}
            continue
        buffers = [tensor.last_name_part for tensor in part.buffers]
        attributes = {**part.settings, **({"buffers": buffers} if buffers else {})}
        if part.has_modules or not part.path:
            if part.path:
                name = part.name if part.depth else part.path
                scopes = (*scopes, Scope(part.path, name, part.kind))
                groups[part.path] = GroupFacts(status="unknown", reason=reason, attributes=attributes)
            if part.has_modules:
                for tensor in part.parameters:
                    leaves.append(
                        build_leaf(
                            build_leaf_layer(tensor, tensor.last_name_part, reason),
                            scopes,
                            [tensor],
                            part.role,
                        )
                    )
                continue
        leaf = Layer(
            **UNPLACED,
            path=part.path or part.kind,
            name=part.name or part.kind,
            kind=part.kind,
            weights=tuple(
                TensorInfo(tensor.last_name_part, tensor.dtype, tensor.shape, "declared")
                for tensor in part.parameters
            ),
            attributes=attributes,
            reason=reason,
            **NOTHING_KNOWN,
        )
        leaves.append(build_leaf(leaf, scopes, part.parameters, part.role))
    return leaves, groups


# -- files that torch rebuilds if it is installed; otherwise they are described

_NO_TORCH = "its code is analyzed with torch, which cannot be imported here"


def open_script(source: str, options: OpenOptions) -> OpenedModel:
    """Opens a TorchScript file, or only reads its description if torch is not installed.

    Raises:
        BadModel: The file is broken.
        Misuse: torch is not installed, and the options request other sizes than those in the file.
    """
    try:
        require("torch", source)
    except MissingExtra:
        refuse_sizes(options, f"type: {format_install_command()}")
        described = read_script(source, _NO_TORCH)
        return DescribedFile(
            described.contents,
            options,
            lambda: build_leaves(described.parts, _NO_TORCH),
            strides=described.strides,
            hint=f"type: {format_install_command()}",
            inputs=build_tensor_infos(described.inputs),
        )
    rebuilt: OpenedModel = import_on_call("models.torch.module_file:open_script")(source, options)
    return rebuilt


def open_checkpoint(source: str, options: OpenOptions) -> OpenedModel:
    """Opens a checkpoint. With `options.trust`, torch loads a module in it and runs any code in the file.

    Raises:
        BadModel: The file is broken, or holds no tensors, or a class of a trusted module cannot be imported.
        MissingExtra: The file is trusted, and torch is not installed.
    """
    checkpoint = read_checkpoint(source, "checkpoint")
    if options.trust and checkpoint.pickled_modules:
        require("torch", source)
        loaded: OpenedModel = import_on_call("models.torch.module_file:open_pickled")(
            source, options, checkpoint
        )
        return loaded
    if not checkpoint.pickled_modules:
        opened = open_with_config(source, checkpoint.contents, options)
        if opened is not None:
            return opened
    why = checkpoint.contents.why
    hint = (
        "--trust runs it, if its classes can be imported here"
        if checkpoint.pickled_modules
        else "name the code that builds it (FILE.py:callable or package.module:callable),"
        " or export it to ONNX"
    )
    return DescribedFile(
        checkpoint.contents,
        options,
        lambda: build_leaves(checkpoint.parts, why),
        strides=checkpoint.strides,
        hint=hint,
    )
