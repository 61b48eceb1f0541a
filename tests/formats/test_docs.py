"""docs/reference/formats.md says what the code does."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.formats.format_table import refusals, table

from layercast.checkpoint.families import FAMILIES
from layercast.checkpoint.formats import FORMATS
from layercast.errors import GeometryError
from layercast.geometry import fp8_block_layout

DOCS = (Path(__file__).parents[2] / "docs" / "reference" / "formats.md").read_text()


def test_the_table_is_the_codes() -> None:
    assert table() in DOCS, "write it anew: python -m tests.formats.format_table"
    assert refusals() in DOCS, "write it anew: python -m tests.formats.format_table"


def test_every_family_and_format_is_named() -> None:
    for form in FORMATS:
        assert f"`{form}`" in DOCS
    for family in FAMILIES:
        assert f"`{family.name}`" in DOCS
        for model_type in family.model_types:
            assert f"`{model_type}`" in DOCS


def test_the_refusals_words_are_quoted() -> None:
    with pytest.raises(GeometryError) as caught:
        fp8_block_layout(2048, 768, 4)
    assert caught.value.message in DOCS
    assert caught.value.hint in DOCS
