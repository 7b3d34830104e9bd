"""Runs and counts the passes of a served model: a prompt, and one decode step with a filled KV cache.

The module's own code runs on the meta device. Each pass is counted once and cached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from msgspec.structs import replace

from explorer.base.errors import BadModel
from explorer.engine.compat.transformers import list_cache_layers
from explorer.engine.costs.decode import module_step
from explorer.engine.costs.decode.module_cache import OwnCache, get_text_config
from explorer.engine.costs.memory.liveness import AnalysisResult
from explorer.engine.formats.torch_module.cache_tensors import CacheTensor, list_cache_tensors
from explorer.engine.serving.weights import WeightHolder, count_read_bytes, find_layer_number, list_holders
from explorer.facts import Analysis, Layer
from explorer.facts.serving.serving import PassFigures

_MAX_ADDED_OPERATORS = 8
"""Maximum number of operators that 16 more tokens add to a pass. If more are added, the code loops over
tokens."""
_MAX_OPERATORS = 4_000
"""Maximum number of operators of a token-by-token pass that is still counted."""
PROMPTS = (8, 16, 24)
"""Prompt lengths, in tokens, that every model is counted with."""
_MAX_CACHED_STEPS = 2
"""Number of decode steps whose full analyses are cached."""


class PromptFigures(NamedTuple):
    """The figures of a pass over a prompt, and its number of operators."""

    figures: PassFigures
    operators: int


class Passes:
    """The passes of a model. Each covers one sequence unless the caller passes a batch.

    Args:
        own_cache: The model and its cache.
        prompt: Tokens that the encoder reads, if the model has an encoder.
        on_pass: Function called before each pass with the number of passes so far. It may raise to stop.

    Attributes:
        reasons: Reasons why figures of passes are not exact, as keys.
        first_step_macs: Multiply-accumulates of the rows in the step that determined `holders`, by path.
    """

    def __init__(self, own_cache: OwnCache, prompt: int, on_pass: Callable[[int], None]) -> None:
        self.own = own_cache
        self.prompt_tokens = prompt
        self.on_pass = on_pass
        self._macs: dict[tuple[int, int], int] = {}
        self._prompts: dict[int, PromptFigures] = {}
        self._last_steps: dict[tuple[int, int], AnalysisResult] = {}
        self._layers: dict[int, dict[str, int | None]] = {}
        self.reasons: dict[str, None] = {}
        self.first_step_macs: dict[str, int] = {}
        self._attention: dict[int, dict[int | None, float]] = {}

    def run_step(self, context: int, batch: int = 1) -> AnalysisResult:
        """Returns the analysis of a decode step after `context` cached tokens.

        The last few analyses are cached.

        Raises:
            BadModel: The step fails.
        """
        key = context, batch
        if key not in self._last_steps:
            self.on_pass(len(self._macs) + len(self._prompts))
            step_input = self.own.step(context, batch, self.prompt_tokens)
            analysis = self._leave_out_position_tables(
                module_step.analyze_step_with_cache(self.own, step_input, context, batch)
            )
            self._macs[key] = analysis.info.totals.macs or 0
            while len(self._last_steps) >= _MAX_CACHED_STEPS:
                self._last_steps.pop(next(iter(self._last_steps)))
            self._last_steps[key] = analysis
            if batch == 1 and "holders" in vars(self):
                self._attention[context] = self._sum_attention_macs(analysis)
        return self._last_steps[key]

    def count_attention_macs(self, context: int) -> dict[int | None, float]:
        """Returns the multiply-accumulates of a step by layer; the key None holds the part outside layers.

        Products of the new token with weights are left out.
        """
        if context not in self._attention:
            self._attention[context] = self._sum_attention_macs(self.run_step(context))
        return self._attention[context]

    @property
    def contexts(self) -> Sequence[int]:
        """Contexts at which `count_attention_macs` is cached."""
        return tuple(self._attention)

    def _sum_attention_macs(self, analysis: AnalysisResult) -> dict[int | None, float]:
        """Sums the multiply-accumulates of `count_attention_macs`."""
        sums = dict[int | None, float]()
        for layer in analysis.analysis.layers:
            if not layer.group and layer.macs:
                number = find_layer_number(layer.path)
                macs = layer.macs - (
                    self.first_step_macs.get(layer.path, 0) if self.multiplies_weights(layer) else 0
                )
                sums[number] = sums.get(number, 0.0) + macs
        return sums

    def count_macs(self, context: int, batch: int = 1) -> int:
        """Returns the multiply-accumulates of a decode step after `context` cached tokens."""
        if (context, batch) not in self._macs:
            self.run_step(context, batch)
        return self._macs[context, batch]

    def find_counted_context(self, context: int) -> int:
        """Returns the smallest context, from `context` on, of a step that was counted; else `context`.

        A closed form that matches the count there also holds for shorter contexts.
        """
        contexts = [counted for counted, batch in self._macs if batch == 1 and counted >= context]
        return min(contexts, default=context)

    @cached_property
    def two_sequence_ratio(self) -> float:
        """Ratio of the multiply-accumulates in a step of two sequences to those in a step of one sequence.

        The ratio is 2 for most models.
        """
        return self.count_macs(PROMPTS[0], 2) / max(self.count_macs(PROMPTS[0]), 1)

    def can_predict(self, batch: int) -> bool:
        """Whether a step of `batch` sequences takes no more work than a separate step of each sequence."""
        return batch == 1 or self.two_sequence_ratio <= 2

    def count_prompt(self, tokens: int) -> PromptFigures:
        """Returns the figures of a pass over a prompt of `tokens` tokens, which are cached.

        Raises:
            BadModel: The pass fails.
        """
        if tokens not in self._prompts:
            self.on_pass(len(self._macs) + len(self._prompts))
            analysis = self._analyze_prompt(tokens, 1)
            if analysis.schedule.incomplete_reason:
                raise BadModel(
                    f"it fails on a prompt of {tokens:,} tokens: {analysis.schedule.incomplete_reason}"
                )
            self._layers[tokens] = {
                layer.path: layer.macs for layer in analysis.analysis.layers if not layer.group and layer.macs
            }
            self._prompts[tokens] = PromptFigures(
                self.compute_figures(analysis, tokens, encoder=self.own.encoder), len(analysis.schedule.steps)
            )
        return self._prompts[tokens]

    def run_prompts(self, tokens: int, batch: int) -> Sequence[Layer]:
        """Returns the layer rows of a pass over the prompts of `batch` sequences.

        Raises:
            BadModel: The pass fails.
        """
        self.on_pass(len(self._macs) + len(self._prompts))
        analysis = self._analyze_prompt(tokens, batch)
        if analysis.schedule.incomplete_reason:
            raise BadModel(f"it fails on prompts of {tokens:,} tokens: {analysis.schedule.incomplete_reason}")
        return analysis.analysis.layers

    def _analyze_prompt(self, tokens: int, batch: int) -> AnalysisResult:
        return self._leave_out_position_tables(
            module_step.analyze_run(self.own, self.own.build_prompt(tokens, batch), batch)
        )

    @cached_property
    def _position_tables(self) -> frozenset[str]:
        """Paths of modules without children or parameters whose stored tensors are all vectors.

        Their products compute the angles of rotary embeddings from the positions.
        """
        return frozenset(
            [
                path
                for path, module in self.own.model.named_modules()
                if next(module.children(), None) is None
                and next(module.parameters(recurse=False), None) is None
                and (buffers := list(module.buffers(recurse=False)))
                and all(buffer.dim() == 1 for buffer in buffers)
            ]
        )

    def _leave_out_position_tables(self, result: AnalysisResult) -> AnalysisResult:
        """Returns the analysis without the multiply-accumulates of rotary angles.

        The angles depend on positions alone, and versions of transformers differ in how they compute them:
        by a product over one element, or by a multiplication.
        """
        layers = result.analysis.layers
        tables = {
            layer.id
            for layer in layers
            if not layer.group
            and layer.macs
            and not self._position_tables.isdisjoint((layer.path, layer.path.rpartition(".")[0]))
        }
        macs = result.info.totals.macs
        if not tables or macs is None:
            return result
        left_out = sum(layers[table].macs or 0 for table in tables)
        totals = replace(result.info.totals, macs=macs - left_out)
        used_layers = tuple([replace(layer, macs=0) if layer.id in tables else layer for layer in layers])
        analysis = Analysis(replace(result.info, totals=totals), used_layers)
        return AnalysisResult.from_analysis(
            analysis, result.schedule, result.bounds, failed_layer=result.failed_layer
        )

    def count_prompt_layers(self, tokens: int) -> dict[str, int | None]:
        """Returns the multiply-accumulates of a pass over a prompt by path, for the rows that multiply."""
        self.count_prompt(tokens)
        return self._layers[tokens]

    def build_cache(self, context: int) -> tuple[list[Any], tuple[CacheTensor, ...]]:
        """Returns the layers and the tensors of a cache that holds `context` tokens."""
        cache, _ = self.own.build_cache(context, 1, self.prompt_tokens)
        return list_cache_layers(cache), list_cache_tensors(cache)

    @cached_property
    def is_token_loop(self) -> bool:
        """Whether the code processes a prompt token by token.

        Counting a long prompt takes too long with such code.
        """
        short, long = (self.count_prompt(tokens).operators for tokens in (PROMPTS[0], PROMPTS[-1]))
        return long > short + _MAX_ADDED_OPERATORS

    def can_count(self, tokens: int) -> bool:
        """Whether a prompt of `tokens` tokens can be counted. A long token-by-token pass cannot.

        Some code splits a prompt into chunks. It processes short prompts and the last chunk token by token,
        so a prompt that is longer than a chunk can be counted.
        """
        if not self.is_token_loop:
            return True
        short, long = (self.count_prompt(tokens).operators for tokens in (PROMPTS[0], PROMPTS[-1]))
        per_token = (long - short) / (PROMPTS[-1] - PROMPTS[0])
        settings = vars(get_text_config(self.own.model) or object)
        chunk_sizes = [n for name, n in settings.items() if "chunk" in name and isinstance(n, int) and n > 1]
        estimated_operators = short + per_token * (tokens - PROMPTS[0])
        return estimated_operators <= _MAX_OPERATORS or min(chunk_sizes, default=tokens) < tokens

    @cached_property
    def holders(self) -> tuple[WeightHolder, ...]:
        """The modules of the model that hold weights."""
        layers = {layer.path: layer for layer in self.run_step(PROMPTS[0]).analysis.layers}
        self.first_step_macs = {path: layer.macs or 0 for path, layer in layers.items()}
        return list_holders(self.own.model, layers)

    @cached_property
    def _multiplying(self) -> frozenset[str]:
        """Paths of the modules whose weights are multiplied."""
        return frozenset([holder.path for holder in self.holders if holder.macs])

    def count_weight_macs(self, analysis: AnalysisResult) -> int:
        """Returns the multiply-accumulates in products with stored weights."""
        return sum(layer.macs or 0 for layer in analysis.analysis.layers if self.multiplies_weights(layer))

    def multiplies_weights(self, layer: Layer) -> bool:
        """Whether a row multiplies with stored weights; always False for a group."""
        if layer.group or not layer.macs:
            return False
        module_path = layer.path.rpartition(".")[0]
        return layer.path in self._multiplying or bool(layer.weights) or module_path in self._multiplying

    def compute_figures(self, analysis: AnalysisResult, tokens: int, *, encoder: bool = False) -> PassFigures:
        """Returns the figures of a pass over `tokens` new tokens.

        If the figures are not exact, adds the reasons to `reasons`.
        """
        totals = analysis.info.totals
        if totals.status != "exact":
            self.reasons.update(dict.fromkeys(analysis.info.model.notes))
        read = totals.bytes_read or 0
        weight_bytes = totals.weight_bytes_read or 0
        return PassFigures(
            macs=totals.macs or 0,
            weight_macs=self.count_weight_macs(analysis),
            weight_bytes=round(count_read_bytes(self.holders, tokens, encoder=encoder)),
            cache_bytes=totals.kv_cache_bytes or 0,
            activation_bytes=read - weight_bytes + (totals.bytes_written or 0),
            status=totals.status,
        )
