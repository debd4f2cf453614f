"""Bytes by module: the tree of an answer, its folding and order, and answers that are none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.tui.memory.module_tree import Folding, tree_of
from tests.fakes import inside

MIB = 1 << 20


def names(folding: Folding, value: dict[str, Any]) -> list[str]:
    return [module.name for module in folding.shown(tree_of(value))]


def test_the_tree_of_an_answer():
    tree = tree_of(inside.modules())
    assert (tree.source, tree.complete, tree.dropped) == ("watch", True, 0)
    (root,) = tree.roots
    assert root.name == "GPT"
    assert [child.name for child in root.children] == ["wte", "blocks", "lm_head"]
    assert tree.total == root.total == 4 * (400 + 24 * 192) * MIB
    assert root.height == 4
    qkv = root.children[1].children[0].children[0].children[0]
    assert (qkv.key, qkv.kind) == ("GPT/blocks/0/attn/qkv", "Linear")


def test_one_level_is_open_and_the_largest_comes_first():
    folding = Folding()
    assert names(folding, inside.modules()) == ["GPT", "blocks", "wte", "lm_head"]
    folding.by_size = False
    assert names(folding, inside.modules()) == ["GPT", "wte", "blocks", "lm_head"]


def test_branches_open_by_hand_and_by_level_and_stay_so_with_the_next_answer():
    folding, tree = Folding(), tree_of(inside.modules())
    folding.turn(tree.roots[0].children[1])
    assert len(names(folding, inside.modules())) == 4 + 24
    folding.deepen(1, tree)
    assert len(names(folding, inside.modules())) == 4 + 24, "all of level two, the same as by hand"
    folding.deepen(1, tree)
    assert len(names(folding, inside.modules())) == 4 + 24 * 3
    folding.deepen(-3, tree)
    assert names(folding, inside.modules()) == ["GPT"]
    folding.deepen(50, tree)
    assert folding.depth == 4, "no deeper than the tree"
    assert len(names(folding, inside.modules())) == len(inside.modules()["rows"])


def test_models_and_children_of_one_name_are_told_apart():
    rows = [
        [0, "net", "Net", 1, 0, 0],
        [1, "a", "A", 1, 0, 0],
        [0, "net", "Net", 2, 0, 0],
        [1, "a", "A", 2, 0, 0],
    ]
    tree = tree_of({"source": "watch", "rows": rows, "complete": True})
    assert [root.key for root in tree.roots] == ["net", "net#2"]
    assert tree.roots[1].children[0].key == "net#2/a"


@pytest.mark.parametrize(
    "row",
    [
        None,
        [],
        ["0", "a", "A", 1, 1, 1],
        [3, "deep", "A", 1, 1, 1],
        [0, "a", "A", -1, 0, 0],
        [0, "a", "A", 1.5, 0, 0],
        [-1, "a", "A", 0, 0, 0],
        [0, 7, "A", 0, 0, 0],
        [0, "a", "A", 1, 1],
        [0, "a", "A", True, 0, 0],
    ],
)
def test_a_row_that_is_none_is_left_out_and_said(row: Any):
    tree = tree_of({"source": "watch", "rows": [[0, "m", "M", 1, 1, 1], row], "complete": True})
    assert len(tree.roots) == 1
    assert tree.roots[0].children == []
    assert tree.dropped == 1
    assert not tree.complete


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3), st.lists, max_leaves=30
    )
)
def test_no_answer_raises(rows: Any):
    tree = tree_of({"rows": rows, "source": rows, "complete": rows, "seconds": rows})
    assert tree.total >= 0
    assert len(list(Folding().shown(tree))) >= len(tree.roots)


def test_a_deep_tree_is_walked_without_recursion():
    rows = [[depth, "m", "M", 1, 1, 1] for depth in range(3000)]
    tree = tree_of({"rows": rows})
    folding = Folding()
    folding.deepen(5000, tree)
    assert len(list(folding.shown(tree))) == 3000
