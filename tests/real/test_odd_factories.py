"""Any return value of a factory is measured or refused, never a traceback of the tool."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.rows import time_rows

from tputfind.errors import TputfindError
from tputfind.processes.messages import Inspect, Inspection, TryBatch
from tputfind.record.record import Trial
from tputfind.record.spec import read_spec

VALUES = st.recursive(
    st.sampled_from(
        [
            "None",
            "0",
            "''",
            "object()",
            "nn.Identity()",
            "nn.Linear(2, 2)",
            "torch.randn(3, 2)",
            "torch.tensor(1)",
            "torch.randn(0)",
            "float('nan')",
            "torch.randn(2, 2).to_sparse()",
            "(lambda n: torch.randn(n, 2))",
            "(lambda n: {'input': torch.randn(n, 2)})",
            "(lambda n: [torch.randn(n, 2), None])",
            "(lambda n: {1: torch.randn(n, 2)})",
            "(lambda n: None)",
            "(lambda n: torch.randn(2, n).expand(2, n))",
            "(lambda n: 1 / 0)",
            "(lambda: 1)",
            "(lambda n: (_ for _ in ()).throw(SystemExit(3)))",
            "type('Odd', (nn.Module,), {'forward': lambda self, x: {'y': x, 'z': [x, None]}})()",
            "type('Odd', (nn.Module,), {'forward': lambda self, x: x.to_sparse()})()",
            "type('Odd', (nn.Module,), {'forward': lambda self, x: self})()",
            "type('Odd', (nn.Module,), {'forward': lambda self, x: (torch.zeros(0), x, x.sum(), x[:0])})()",
        ]
    ),
    lambda inner: st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({', '.join(parts)},)"),
    max_leaves=3,
)


@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(value=VALUES | st.tuples(VALUES, VALUES).map(lambda pair: f"({pair[0]}, {pair[1]})"))
def test_any_result_of_a_factory_is_measured_or_refused_in_words(tmp_path, children, value):
    # Two files of the same name, second and size would share their bytecode.
    path = tmp_path / f"odd_{len(list(tmp_path.iterdir()))}.py"
    path.write_text(f"import torch\nfrom torch import nn\n\n\ndef make():\n    return {value}\n")
    before = set(tmp_path.iterdir())
    spec = read_spec(f"{path}:make", {"batches": 10, "device": "cpu"})

    try:
        children.ask_one(Inspect(spec), Inspection, 30)
        trial = children.ask_one(TryBatch(spec, 5), Trial, 30)
        (row,) = time_rows(children, spec, 5, timeout_s=30)
    except TputfindError as refusal:
        assert refusal.exit_code in (2, 5)
        assert type(refusal).__name__ != "ChildFailed"
        assert "tputfind/measure" not in refusal.traceback
    else:
        assert (trial.failure is None) == (row.failure is None)
        assert row.failure is not None or row.output is not None
    assert set(tmp_path.iterdir()) - before <= {tmp_path / "__pycache__"}
