"""Behind every label stands a word of the glossary."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from explorer.facts import TileSpec
from explorer.features.tiling.tile_words import build_tiling_fields
from explorer.manual import page
from explorer.report.blocks import Field, Fields, Heading
from explorer.report.glossary import GLOSSARY, find_terms
from explorer.report.present.compare.verify import build_key_facts
from explorer.report.present.look.layers import layer_blocks, layer_parts
from tests.tui.hands import Hands, screen
from tests.tui.scripted import alexnet, plan, proof

LABELS = {label.casefold() for term in GLOSSARY for label in (term.word, *term.labels)}


def labels_of_the_layer_page() -> set[str]:
    analysis = alexnet()
    labels: set[str] = set()
    for layer in analysis.layers:
        # with every figure that a layer may have
        full = replace(layer, kv_cache_bytes=1, shared_with=("other",), elementwise_ops=1)
        for block in (*layer_blocks(full, analysis.info.totals), *layer_parts(full)):
            if isinstance(block, Fields):
                for field in block.rows:
                    labels |= {str(field.label), *filter(None, [field.short])}
            elif isinstance(block, Heading):
                labels.add(block.text)
    return labels


@pytest.mark.parametrize("label", sorted(labels_of_the_layer_page()))
def test_every_label_of_a_layers_page_has_a_term(label: str) -> None:
    assert label.casefold() in LABELS


def test_the_page_has_more_than_a_few_labels() -> None:
    assert {
        "MACs",
        "params",
        "Key-value cache",
        "Attributes",
        "Inputs",
        "intensity",
    } <= labels_of_the_layer_page()


def test_what_a_tiling_and_a_proof_are_called_has_terms_too() -> None:
    fields: list[Field] = [*build_tiling_fields(plan(TileSpec()).sites[0])]
    assert all(str(field.label).casefold() in LABELS for field in fields)
    said = [str(field.remark) + str(field.figure) for field in build_key_facts(proof()).rows]
    assert any(term.word == "bit-equal" for term in find_terms(said))


def test_a_word_or_label_stands_for_one_term_and_is_found_as_a_word_alone() -> None:
    labels = [label.casefold() for term in GLOSSARY for label in (term.word, *term.labels)]
    assert len(labels) == len(set(labels))
    assert [term.word for term in find_terms(["the peak, KV cache"])] == ["key-value cache", "peak"]
    assert not find_terms(["speaking of us: uptime"])


def test_the_manual_has_every_word() -> None:
    text = page("glossary")
    assert all(f"| {term.word}" in text for term in GLOSSARY)


async def dialog(hands: Hands, *keys: str) -> str:
    await hands.press(*keys)
    return hands.dialog()


@pytest.mark.slow
async def test_the_question_mark_explains_the_words_of_the_pane_in_use() -> None:
    async with screen(size=(120, 40)) as hands:
        text = " ".join((await dialog(hands, "question_mark")).split())
        assert text.startswith("Words and keys Words on this page MACs"), "the columns of the tree"
        assert "A part of the whole, in percent. For layers" in text
        await hands.press("escape", "down", "tab")
        text = await dialog(hands, "question_mark")
        assert text.startswith("Words and keys\nWords on this page\n")
        assert "1 MAC = 2 FLOPs" in " ".join(text.split())
        assert "Filter the layers" in text, "and the keys"
        await hands.press(*"glossary", "enter")
        assert hands.dialog().startswith("Glossary\n")
        await hands.press("escape", "escape", "t")
        assert "tile utilization" in await dialog(hands, "question_mark")


def test_a_root_and_a_square_have_terms_of_their_own_and_a_bound_promises_no_mapping() -> None:
    meanings = {term.word: term.meaning for term in GLOSSARY}
    assert "root" in meanings["RMS error"]
    assert "root" not in meanings["MSE"]
    assert "sum of the absolute products" in meanings["u"]
    assert "may move more" in meanings["lower bound"]


def test_the_summary_of_a_proof_calls_weights_bit_equal_not_products() -> None:
    construction = build_key_facts(proof()).rows[0]
    assert "weights of" in str(construction.figure)
    assert "from runs of both models" in str(construction.remark)


def test_what_differs_is_told_with_its_own_error_and_not_with_the_share_of_what_passed() -> None:
    worst = build_key_facts(proof(passed=False)).rows[1]
    assert str(worst.label) == "worst error"
    assert "of the limit" not in str(worst.figure)
    assert "4.1e-09" in str(worst.figure)
    assert "output" in str(worst.remark)
    assert "NaN" in str(worst.remark)


async def test_the_help_of_the_layers_explains_the_words_of_the_header() -> None:
    async with screen(size=(80, 24)) as hands:
        text = await dialog(hands, "question_mark")
        words = text[: text.index("\nLook\n")]
        for word in ("MACs", "parameters", "weight bytes", "coverage", "peak", "kind", "output"):
            assert f"\n  {word} " in words
        await hands.press("escape", "tab", "3", "question_mark")
        assert "The share of nodes whose figures are all known" not in hands.dialog(), (
            "another pane is in use"
        )
