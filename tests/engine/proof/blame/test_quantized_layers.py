"""Blame of a quantized model: each layer is called by its formats, with the error that it makes alone."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from explorer import blame_files
from tests.engine.quantize.test_errors import quantize


@pytest.mark.parametrize("name", ["lenet", "lstm_tiny"])
def test_a_quantized_layer_has_its_formats_and_its_own_error(name: str, tmp_path: Path) -> None:
    """The error of a layer alone is the one that quantizing it told; what only hands it on has no format."""
    case = quantize(name, tmp_path)
    layers = {layer.name: layer for layer in case.fact.layers}
    found = blame_files(case.before, case.after)
    assert found.kind == "coarser"
    probes = {probe.layer: probe for probe in found.probes}
    assert {name for name, probe in probes.items() if probe.formats} == layers.keys()
    for name, layer in layers.items():
        probe = probes[name]
        weights = "" if layer.input else "weight "
        assert probe.formats == f"{weights}int8, per {layer.granularity}"
        assert probe.state == "coarser"
        # on other random inputs
        assert -20 * math.log10(probe.introduced or 1) == pytest.approx(layer.output_snr_db, abs=3)
