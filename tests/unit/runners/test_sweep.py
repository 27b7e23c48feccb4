"""The recipes that option lists request, and the inspections of recipes that a device refuses."""

from hypothesis import given
from hypothesis import strategies as st
from support.records import example

from tputfind.errors import NoSuchDevice
from tputfind.processes.messages import Inspection
from tputfind.runners.sweep import each_recipe, known_inspections

VALUES = {"dtype": ["fp32", "fp16", "bf16"], "layout": ["nchw", "nhwc"], "mode": ["eager", "compile", "cudagraph"]}
VALUES["allocator"] = ["native", "expandable"]
LISTS = {name: st.lists(st.sampled_from(values), min_size=1, max_size=4) for name, values in VALUES.items()}


@given(st.fixed_dictionaries({}, optional=LISTS))
def test_lists_ask_for_every_combination_once_the_first_values_first(lists):
    asked = {name: ",".join(values) for name, values in lists.items()} | {"slo": "5ms"}

    found = list(each_recipe(asked))

    assert len(found) == len({tuple(one.items()) for one in found})
    for name, values in lists.items():
        assert list(dict.fromkeys(one[name] for one in found)) == list(dict.fromkeys(values))
    assert all(one["slo"] == "5ms" and one.keys() == asked.keys() for one in found)


def test_refused_recipe_shares_only_the_device_with_the_others():
    there = example().environment
    step = Inspection(environment=there, input_shape="3x8x8", parameters=3, granularity=4, own_step=True)

    assert known_inspections([step, NoSuchDevice("it is made for CUDA")]) == [
        step,
        Inspection(environment=there, input_shape="", parameters=None),
    ]
