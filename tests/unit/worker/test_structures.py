"""Objects that refer back to each other are placed, copied and searched, each of them once."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any

import pytest
import torch

from tputfind.worker.inputs import is_same, outline, repeatable_split, split_of
from tputfind.worker.placing import Placement
from tputfind.worker.structures import copy_containers, has_same_parts, is_lazy, tensors_of

TO_HALF = Placement(torch.device("cpu"), torch.float16, "nchw")
DEPTH = 4


class Node:
    """A node of a tree."""

    def __init__(self, x: torch.Tensor, parent: Any = None) -> None:
        self.x, self.parent = x, parent
        self.children: list[Any] = []


@dataclass(eq=False)
class DataNode:
    """The same as a dataclass."""

    x: torch.Tensor
    parent: Any = None
    children: list[Any] = field(default_factory=list)


def tree(node: type[Node | DataNode], size: int = 1, depth: int = DEPTH, parent: Any = None) -> Any:
    root = node(torch.ones(size, 2), parent)
    root.children += [tree(node, size, depth - 1, root) for _ in range(3 if depth else 0)]
    return root


def nodes(root: Any) -> list[Any]:
    assert all(child.parent is root for child in root.children)
    return [root, *(each for child in root.children for each in nodes(child))]


both = pytest.mark.parametrize("node", [Node, DataNode])


@both
def test_place_of_a_tree_converts_each_node_once(node):
    root = tree(node)

    placed = TO_HALF.place([root, root])

    found = nodes(placed[0])
    assert placed[1] is not placed[0]  # each sample has memory of its own
    assert len(found) == len(nodes(root)) == 121
    assert {each.x.dtype for each in found} == {torch.float16}
    assert root.x.dtype == torch.float32


@both
def test_copy_of_a_tree_shares_its_tensors_alone(node):
    root = tree(node)

    copied = copy_containers([root])

    pairs = list(zip(nodes(root), nodes(copied[0]), strict=True))
    assert all(one is not other and one.x is other.x for one, other in pairs)
    assert has_same_parts([root], copied)
    copied[0].children[2].children[2].x = torch.zeros(1)
    assert not has_same_parts([root], copied)


def test_copy_of_a_list_and_dict_that_hold_each_other_does_so():
    held: dict[str, Any] = {"x": torch.ones(1)}
    held["pair"] = ([held], held)

    copied = copy_containers(held)

    assert copied is not held
    assert copied["x"] is held["x"]
    assert copied["pair"][0][0] is copied["pair"][1] is copied


class Moves:
    """Holds tensors in lists, and moves them itself."""

    def __init__(self, keys: list[torch.Tensor]) -> None:
        self.keys = keys

    def to(self, device: torch.device) -> Moves:
        return Moves([key.to(device) for key in self.keys])


def test_copy_of_a_list_of_another_class_keeps_its_attributes():
    class Tree(list):
        label = 3

    tree = Tree([torch.ones(1), Tree()])
    tree.name = "root"

    copied = copy_containers(tree)

    assert copied is not tree
    assert (type(copied), copied.name, len(copied), type(copied[1])) == (Tree, "root", 2, Tree)


def test_lists_and_caches_of_an_object_that_moves_itself_are_copied():
    held = Moves([torch.ones(1)])
    held.cache = Cache()
    for filled in (lambda moves: moves.keys, lambda moves: moves.cache.layers):
        copied = copy_containers(held)
        assert has_same_parts(held, copied)
        filled(copied).append(torch.ones(1))
        assert not has_same_parts(held, copied)

    assert (len(held.keys), held.cache.layers) == (1, [])


class Cache:
    """Holds what a step adds, as a cache of keys does, and nothing at first."""

    def __init__(self) -> None:
        self.keys: torch.Tensor | None = None
        self.layers: list[torch.Tensor] = []


@pytest.mark.parametrize("attribute", ["keys", "layers"])
def test_object_that_a_step_fills_is_new_at_every_step(attribute):
    held = {"cache": Cache()}

    copied = copy_containers(held)
    assert has_same_parts(held, copied)
    setattr(copied["cache"], attribute, torch.ones(1) if attribute == "keys" else [torch.ones(1)])

    assert (held["cache"].keys, held["cache"].layers) == (None, [])
    assert not has_same_parts(held, copied)


class Handle:
    """Says how it is copied, as a picture with an open file does."""

    def __getstate__(self):
        raise AssertionError("it is not to be copied")


class ByAttribute(dict):
    __getattr__ = dict.__getitem__


def test_dict_whose_keys_are_attributes_is_placed_and_copied():
    held = ByAttribute(x=torch.ones(2))

    assert TO_HALF.place(held)["x"].dtype == torch.float16
    assert copy_containers(held)["x"] is held["x"]
    assert outline(held) == outline(ByAttribute(x=torch.zeros(2)))


@pytest.mark.parametrize("value", [Enum("Way", "ahead").ahead, len, Handle()])
def test_what_is_no_data_is_not_copied(value):
    assert copy_containers([value])[0] is value


def test_tensor_that_is_several_arguments_is_one_on_the_device():
    x = torch.randn(4, 8)
    call = (x, x), {"values": x}

    (query, key), named = TO_HALF.place(call)
    (more, again), others = TO_HALF.repeat(call, split_of([call, ((x[:2],) * 2, {"values": x[:2]})], [4, 2]), 4, 16)

    assert query is key is named["values"]
    assert more is again is others["values"]
    assert more.shape == (16, 8)
    samples = TO_HALF.place([x, x])
    assert samples[0] is not samples[1]  # each sample has memory of its own


class Graph(Moves):
    """Lets its attributes be read by a call, as a graph of PyTorch Geometric does."""

    def __call__(self, name: str) -> object:
        return getattr(self, name)


class Labelled(torch.Tensor):
    """A tensor of a class of its own, which computes as any other."""


@pytest.mark.parametrize(
    "held",
    [
        deque([torch.ones(2)]),
        MappingProxyType({"x": torch.ones(2)}),
        torch.ones(2).as_subclass(Labelled),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        Graph([torch.ones(2)]),
    ],
    ids=["deque", "frozen mapping", "subclass", "jagged", "callable"],
)
def test_tensors_in_any_container_and_of_any_class_get_the_dtype(held):
    assert [tensor.dtype for tensor in tensors_of(copy_containers(held))] == [torch.float32]
    assert [tensor.dtype for tensor in tensors_of(TO_HALF.place(held))] == [torch.float16]


def test_tuple_without_tensors_keeps_its_class():
    held = {"size": torch.Size((2, 3)), "x": torch.ones(2)}

    assert TO_HALF.place(held)["size"].numel() == copy_containers(held)["size"].numel() == 6


def test_input_that_takes_gradients_does_so_in_another_dtype():
    with torch.no_grad():
        placed = TO_HALF.place(torch.ones(2, requires_grad=True))

    assert placed.dtype == torch.float16
    assert placed.requires_grad
    assert placed.is_leaf


@both
def test_outline_of_a_tree_equals_that_of_equal_sizes(node):
    assert outline(tree(node, 1, 2)) == outline(tree(node, 1, 2))
    assert outline(tree(node, 1, 2)) != outline(tree(node, 2, 2))


def test_tree_is_lazy_only_if_a_part_is():
    root = tree(DataNode)

    assert not is_lazy(root)
    root.children[2].children[2].x = iter(())
    assert is_lazy(root)


def test_samples_of_a_tree_are_unknown_where_it_refers_back():
    sizes = [2, 5]

    split = split_of([tree(DataNode, size, 1) for size in sizes], sizes)

    child = {"x": 0, "parent": "unknown", "children": {}}
    assert split == {"x": 0, "parent": "whole", "children": dict.fromkeys(range(3), child)}


def test_listed_trees_are_not_repeated():
    sizes = [2, 5]

    assert repeatable_split([[tree(DataNode) for _ in range(size)] for size in sizes], sizes) is None
    assert len(tensors_of(tree(DataNode))) == 121


def test_views_are_the_same_whatever_else_their_storages_hold():
    views = [{"x": torch.arange(size)[:2]} for size in (3, 4)]

    assert is_same(*views)
    assert not is_same(views[0], {"x": torch.arange(3)[1:]})
