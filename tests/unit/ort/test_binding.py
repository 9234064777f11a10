import torch
from torch.fx.experimental.proxy_tensor import make_fx

from portico.ort.compiler.translation import translate
from portico.ort.runtime import Binding, make_session
from portico.ort.settings import SessionSettings


class Recording:
    """A session that remembers where the tensors of a run lie."""

    def __init__(self, session):
        self.session = session

    def run_with_ortvaluevector(self, options, input_names, feeds, output_names, fetches, devices):
        self.session.run_with_ortvaluevector(options, input_names, feeds, output_names, fetches, devices)
        self.pointers = [[vector[index].data_ptr() for index in range(len(vector))] for vector in (feeds, fetches)]


def make_binding(function, *inputs):
    module = make_fx(function, tracing_mode="fake")(*inputs)
    binding = Binding(make_session(translate(module), SessionSettings(num_threads=1)))
    binding._session = Recording(binding._session)
    return binding


def test_nothing_is_copied_on_the_way_in_or_out():
    floats, kept = torch.randn(4, 5), torch.rand(4, 5) > 0.5
    binding = make_binding(lambda x, mask: (torch.where(mask, x, 0.0) + 1, ~mask), floats, kept)
    outputs = binding([floats, kept])
    assert binding._session.pointers == [
        [floats.data_ptr(), kept.data_ptr()],
        [output.data_ptr() for output in outputs],
    ]
    assert torch.equal(outputs[0], torch.where(kept, floats, 0.0) + 1)
    assert torch.equal(outputs[1], ~kept)


def test_outputs_outlive_the_next_run():
    x = torch.randn(3)
    binding = make_binding(lambda x: x * 2, x)
    (first,) = binding([x])
    expected = first.clone()
    binding([x + 1])
    assert torch.equal(first, expected)
