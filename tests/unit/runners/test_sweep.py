"""The recipes requested by option lists."""

from hypothesis import given
from hypothesis import strategies as st

from tputfind.runners.sweep import each_recipe

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
