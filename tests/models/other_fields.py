"""Small models of other fields than vision, each with a property that could break a measurement."""

import asyncio
import dataclasses
import itertools
import random
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import nn

WIDTH = 16


class Checked(nn.Module):
    """Raises unless its weights still have the dtype that they were created with."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        weight = torch.randn(WIDTH, WIDTH).to(dtype)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        if self.weight.dtype is not self.dtype:
            raise AssertionError(f"weights are {self.weight.dtype} now, and were made as {self.dtype}")
        weight = torch.view_as_real(self.weight).sum(-1) if self.weight.is_complex() else self.weight
        return (x * self.scale) @ weight.to(x.dtype)


def rows(batch: int) -> torch.Tensor:
    return torch.randn(batch, WIDTH)


def with_inputs(make, inputs=rows):
    """Return a factory of a model that ``make`` returns, and of inputs."""
    return lambda: (make(), inputs)


complex_weights = with_inputs(lambda: Checked(torch.complex64))
double_complex_weights = with_inputs(lambda: Checked(torch.complex128))
fp8_weights = with_inputs(lambda: Checked(torch.float8_e4m3fn))
int8_weights = with_inputs(lambda: Checked(torch.int8))


class Subclassed(torch.Tensor):
    """A custom tensor class, like those of quantisation libraries."""


class OfSubclass(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.float64).as_subclass(Subclassed))

    def forward(self, x):
        assert self.weight.dtype is torch.float64, "the subclass was converted"
        return x @ self.weight.as_subclass(torch.Tensor).float()


subclass_weights = with_inputs(OfSubclass)


class Brings(nn.Module):
    """Works only in the dtype of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.float64))

    def forward(self, x):
        return x.double() @ self.weight


works_in_double = with_inputs(Brings)


class Forces(nn.Module):
    """Takes the gradient of an energy within forward."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Linear(3, 1)

    def forward(self, positions):
        with torch.enable_grad():
            positions = positions.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.energy(positions).tanh().sum(), positions)
        return -gradient


forces = with_inputs(Forces, lambda batch: torch.randn(batch, 8, 3))


class NeedsGrad(nn.Module):
    """Relies on its caller to leave autograd enabled."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, 1)

    def forward(self, x):
        x = x.requires_grad_()
        (gradient,) = torch.autograd.grad(self.lin(x).square().sum(), x)
        return gradient.detach()


needs_grad = with_inputs(NeedsGrad)


class Jacobian(nn.Module):
    """Is a functional transform of another model."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, 4)

    def forward(self, x):
        return torch.func.vmap(torch.func.jacrev(lambda one: self.lin(one).tanh()))(x)


jacobian = with_inputs(Jacobian)


class Nodes(nn.Module):
    """A graph network: the nodes of all graphs are in one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 8)

    def forward(self, x, edges, graph):
        hidden = self.lin(x)
        hidden = hidden.index_add(0, edges[1], hidden[edges[0]])
        return torch.zeros(int(graph[-1]) + 1, 8, device=x.device).index_add(0, graph, hidden)


def _graphs(batch):
    x, graph = torch.randn(5 * batch, 4), torch.arange(batch).repeat_interleave(5)
    starts = 5 * torch.arange(batch).repeat_interleave(7)
    edges = torch.randint(0, 5, (2, 7 * batch)) + starts
    return x, edges, graph


graphs = with_inputs(Nodes, _graphs)
graphs_that_end = with_inputs(Nodes, lambda batch: _graphs(min(batch, 6)))


class Held:
    """An object with tensors and a method that moves them."""

    def __init__(self, *tensors):
        self.tensors = tensors

    def to(self, device):
        return Held(*(tensor.to(device) for tensor in self.tensors))

    def __call__(self):
        return self.tensors  # as PyTorch Geometric's graphs can be called


class TakesHeld(Nodes):
    def forward(self, held):
        return super().forward(*held.tensors)


graph_objects = with_inputs(TakesHeld, lambda batch: Held(*_graphs(batch)))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(50, 8)

    def forward(self, texts):
        ids = [[len(word) for word in text.split()] for text in texts]
        offsets = torch.tensor([0, *itertools.accumulate(map(len, ids[:-1]))])
        return self.words(torch.tensor(list(itertools.chain(*ids))), offsets)


texts = with_inputs(Words, lambda batch: ([f"a text of {number} words or so" for number in range(batch)],))


class FromArray(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, 2)

    def forward(self, array):
        return self.lin(torch.as_tensor(array, dtype=self.lin.weight.dtype, device=self.lin.weight.device))


arrays = with_inputs(FromArray, lambda batch: np.random.rand(batch, WIDTH))  # noqa: NPY002  # as users draw


class Draws(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, 2)

    def forward(self, count):
        return self.lin(torch.randn(count, WIDTH, device=self.lin.weight.device))


whole_numbers = with_inputs(Draws, lambda batch: batch)


@dataclasses.dataclass(frozen=True)
class Sample:
    pixels: torch.Tensor
    name: str = "a"


@dataclasses.dataclass
class Answer:
    scores: torch.Tensor


class OfDataclasses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, 2)

    def forward(self, sample):
        return Answer(self.lin(sample.pixels))


class Slotted:
    """An object with a tensor in a slot, and a method that moves it."""

    __slots__ = ("pixels",)

    def __init__(self, pixels):
        self.pixels = pixels

    def to(self, device):
        return Slotted(self.pixels.to(device))


slotted_objects = with_inputs(OfDataclasses, lambda batch: Slotted(rows(batch)))


class Dithers(nn.Linear):
    """Adds noise from the generators among its inputs."""

    def forward(self, x, noise, more):
        return super().forward(x + torch.rand(x.shape, generator=noise) * 1e-9 + more.uniform() * 1e-9)


def generators():
    return Dithers(WIDTH, 4), lambda batch: (rows(batch), torch.Generator(), np.random.default_rng(0))


class Layer:
    """The keys of a layer, without a method that moves them."""

    def __init__(self, keys):
        self.keys, self.device = keys, torch.device(keys.device)


class Cache:
    """A list of layers, as decoders of transformers take it and grow it."""

    def __init__(self, *keys):
        self.layers = [Layer(each) for each in keys]


class Decodes(nn.Module):
    """Appends a token to its cache, which must be as long as it was made."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, cache):
        for layer in cache.layers:
            assert layer.keys.shape[1] == 3, "the cache has grown"
            layer.keys = torch.cat([layer.keys, x[:, None]], 1)
            x = self.lin(layer.keys).mean(1)
        return x


caches = with_inputs(Decodes, lambda batch: (rows(batch), Cache(*(torch.randn(batch, 3, WIDTH) for _ in range(2)))))


class FromBytes(FromArray):
    def forward(self, encoded, *_):
        return super().forward(np.frombuffer(encoded).reshape(-1, WIDTH))


def bytes_and_times():
    """Return a model of bytes, a time and a number of steps, drawn at random."""

    def inputs(batch):
        return np.random.rand(batch, WIDTH).tobytes(), random.random(), random.randrange(999)  # noqa: NPY002

    return FromBytes(), inputs


dataclasses_in_and_out = with_inputs(OfDataclasses, lambda batch: Sample(rows(batch)))


class TakesOne(nn.Module):
    """Takes a dict or a tuple as its only argument."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, 2)

    def forward(self, batch):
        return self.lin(batch["x"] if isinstance(batch, dict) else batch[0] + batch[1])


one_dict = with_inputs(TakesOne, lambda batch: {"x": rows(batch)})
one_tuple = with_inputs(TakesOne, lambda batch: (rows(batch), rows(batch)))


PIECES, PIECE_S = 10, 0.002
"""Number of output pieces, and the least seconds that each takes."""


class Streams(nn.Module):
    """Computes its output piece by piece; ``how`` names the kind of future or iterator."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.net, self.how, self.pool = nn.Linear(256, 256), how, None

    def pieces(self, x):
        for _ in range(PIECES):
            time.sleep(PIECE_S)
            x = self.net(x)
            yield x

    async def later(self, x):
        await asyncio.sleep(0)
        return list(self.pieces(x))

    async def one_by_one(self, x):
        for piece in self.pieces(x):
            yield piece

    def forward(self, x):
        match self.how:
            case "generator":
                return self.pieces(x)
            case "map":
                return {"pieces": map(torch.relu, self.pieces(x))}
            case "coroutine":
                return self.later(x)
            case "async generator":
                return self.one_by_one(x)
            case _:
                self.pool = self.pool or ThreadPoolExecutor(1)
                return self.pool.submit(torch.inference_mode()(lambda: list(self.pieces(x))))


def _streams(how):
    return with_inputs(lambda: Streams(how), lambda batch: torch.randn(batch, 256))


generator = _streams("generator")
mapped = _streams("map")
coroutine = _streams("coroutine")
async_generator = _streams("async generator")
future = _streams("future")


class Halves(nn.Module):
    """Halves its input in place, and raises if it receives an input that it has already halved several times."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, 2)

    def forward(self, x):
        if x.abs().max() < 0.01:
            raise AssertionError("this input was written to before")
        return self.lin(x.mul_(0.5))


halves_its_input = with_inputs(Halves)


class Unsqueezes(Halves):
    """Adds an axis to its input in place."""

    def forward(self, x):
        return self.lin(x.unsqueeze_(1)).squeeze(1)


unsqueezes_its_input = with_inputs(Unsqueezes)


class UsesUp(nn.Module):
    """Takes its inputs out of their containers, or replaces them there, as it may with a fresh batch."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, 2)

    def forward(self, batch):
        if isinstance(batch, dict):
            return self.lin(batch.pop("x"))
        if isinstance(batch, Held):
            batch.tensors = tuple(map(self.lin, batch.tensors))
            return batch.tensors
        answers = []
        while batch:
            answers.append(self.lin(batch.pop(0)))
        return torch.stack(answers)


pops_from_dict = with_inputs(UsesUp, lambda batch: {"x": rows(batch), "label": torch.zeros(batch)})
pops_from_list = with_inputs(UsesUp, lambda batch: (list(rows(batch)),))
replaces_in_object = with_inputs(UsesUp, lambda batch: Held(rows(batch)))
generator_of_inputs = with_inputs(UsesUp, lambda batch: (row for row in rows(batch)))


def inputs_that_end():
    data = iter(range(3))

    def inputs(batch):
        next(data)
        return rows(batch)

    return nn.Linear(WIDTH, 2), inputs


def inputs_by_keyword():
    def inputs(*, size):
        return rows(size)

    return nn.Linear(WIDTH, 2), inputs


class Unique(nn.Module):
    """Takes ids of which no two are equal."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5000, 4)

    def forward(self, ids):
        if len(ids.unique()) < len(ids):
            raise ValueError("ids appear twice")
        return self.words(ids)


unique_ids = with_inputs(Unique, lambda batch: torch.randperm(5000)[:batch])


class Sorted(nn.Module):
    """Packs sequences that are sorted by length, the longest first; takes 300 of them at most, or so many."""

    def __init__(self, most: int = 300) -> None:
        super().__init__()
        self.gru, self.most = nn.GRU(4, 4, batch_first=True), most

    def forward(self, x, lengths):
        if len(x) > self.most:
            raise ValueError(f"more than {self.most} sequences")
        return self.gru(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True))[1]


def sorted_sequences(most=300):
    def inputs(batch):
        return torch.randn(batch, 8, 4), torch.randint(1, 9, (batch,)).sort(descending=True)[0]

    return Sorted(most), inputs


def hundred_sorted_sequences():
    return sorted_sequences(100)


class Counts(nn.Module):
    """Reads lengths on the host, as ``pack_padded_sequence`` does."""

    def forward(self, x, speakers, lengths):
        if lengths.device.type != "cpu":
            raise RuntimeError("'lengths' argument should be a 1D CPU int64 tensor")
        return x * 2 + speakers[:, None]


lengths_on_the_host = with_inputs(
    Counts, lambda batch: (torch.randn(batch, 8), torch.randint(0, 5, (batch,)), torch.randint(1, 9, (batch,)))
)


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.seen = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8))), {}

    def forward(self, x):
        key = float(x.sum())
        if key not in self.seen:
            self.seen[key] = self.net(x)
        return self.seen[key]


remembers = with_inputs(Remembers, lambda batch: torch.randn(batch, 512))


def remembers_a_slice():
    data = torch.randn(256, 512, generator=torch.Generator().manual_seed(0))
    return Remembers(), lambda batch: data[:batch]


class RemembersTexts(Remembers):
    """Computes each different text once."""

    def forward(self, texts):
        return torch.cat([super(RemembersTexts, self).forward(torch.full((1, 512), float(text))) for text in texts])


remembers_texts = with_inputs(RemembersTexts, lambda batch: ([str(number) for number in range(batch)],))


def forgets_a_slice():
    model, inputs = remembers_a_slice()
    return model.net, inputs


forgets = with_inputs(lambda: Remembers().net, lambda batch: torch.randn(batch, 512))


class Bank(nn.Module):
    """Compares its input with all that it has seen: its bank grows by a batch with every step."""

    def __init__(self, *, keeps: bool) -> None:
        super().__init__()
        self.lin, self.keeps = nn.Linear(WIDTH, 256), keeps
        self.register_buffer("bank", torch.randn(1, 256))

    def forward(self, x):
        key = self.lin(x)
        bank = torch.cat([self.bank, key.detach()])
        if self.keeps:
            self.bank = bank
        return (key @ bank.T).topk(1).values


bank_that_grows = with_inputs(lambda: Bank(keeps=True))
bank_of_one_batch = with_inputs(lambda: Bank(keeps=False))


class Compiled(nn.Module):
    def forward(self, x):
        if not torch.compiler.is_compiling():
            raise AssertionError("this batch size runs uncompiled")
        return torch.sin(x) * 2


compiles_itself = with_inputs(lambda: torch.compile(Compiled(), dynamic=False, backend="eager"))


class Never(nn.Module):
    """Is recompiled at each call, until torch gives up."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.inner = torch.compile(lambda x, number: x * number, backend="eager", dynamic=False)

    def forward(self, x):
        self.calls += 1
        return self.inner(x, self.calls)


gives_up_compiling = with_inputs(Never)


class Triplets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.lin(x).view(-1, 3, 4).flatten(0, 1)


triplets = with_inputs(Triplets)


def fours():
    """Return a module and an input function that accepts only multiples of 4."""

    def inputs(batch):
        if batch % 4:
            raise ValueError(f"{batch} is no multiple of 4")
        return rows(batch)

    return nn.Linear(WIDTH, 2), inputs


class Eights(nn.Module):
    """Takes eight samples, no more and no fewer."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.lin(x.view(8, WIDTH))


eights = with_inputs(Eights)


class Sixteen(nn.Module):
    """Adds a state of 16 samples, for which one sample alone is repeated."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.state = nn.Linear(WIDTH, 4), nn.Parameter(torch.zeros(16, 4))

    def forward(self, x):
        return self.lin(x) + self.state


sixteen = with_inputs(Sixteen)


class CountsSamples(nn.Module):
    """Takes any number of samples; a trace of it takes the number that it was traced with."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.lin(x.view(int(x.shape[0]), WIDTH))


traced_with_eleven = with_inputs(lambda: torch.jit.trace(CountsSamples().eval(), rows(11)))
normalised = with_inputs(lambda: nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)))


class Viewed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x):
        return self.conv(x).view(len(x), -1)


viewed = with_inputs(Viewed, lambda batch: torch.randn(batch, 3, 8, 8))


class LastAlone(nn.Module):
    """Accepts only inputs that are stored channels last."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x):
        memory_format = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
        if not x.is_contiguous(memory_format=memory_format):
            raise ValueError("expected channels last")
        return self.layer(x).flatten(2).mean(-1)


def images_channels_last():
    model = LastAlone(nn.Conv2d(3, 8, 3)).to(memory_format=torch.channels_last)
    return model, lambda batch: torch.randn(batch, 3, 8, 8).to(memory_format=torch.channels_last)


def clips_channels_last():
    model = LastAlone(nn.Conv3d(3, 8, 3))
    return model, lambda batch: torch.randn(batch, 3, 4, 8, 8).to(memory_format=torch.channels_last_3d)


class Queue(nn.Module):
    """Keeps 64 keys, of which each batch replaces a whole part."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, 8)
        self.register_buffer("keys", torch.randn(64, 8))

    def forward(self, x):
        assert len(self.keys) % len(x) == 0
        return self.lin(x) @ self.keys.T


queue_of_64 = with_inputs(Queue)


class GroupsOfFour(nn.Module):
    """Divides a batch into groups of at most four samples, as the discriminator of StyleGAN2 does."""

    def forward(self, x):
        return x.view(min(len(x), 4), -1, x.shape[1]).flatten(0, 1).sum(1)


groups_of_four = with_inputs(GroupsOfFour)


class Spectrum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return torch.fft.rfft(self.lin(x)).conj()


complex_output = with_inputs(Spectrum)


class Threads(nn.Module):
    """Computes in threads of its own, in which autograd is enabled whatever the caller's mode is."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.pool = nn.Linear(WIDTH, 4), ThreadPoolExecutor(1)

    def forward(self, x):
        return self.pool.submit(self.lin, x).result()


own_threads = with_inputs(Threads)
lazy = with_inputs(lambda: nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(2)))


class WithAuxiliaryHead(nn.Module):
    """Has a lazy head that inference does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.auxiliary = nn.LazyLinear(4), nn.LazyLinear(2)

    def forward(self, x):
        out = self.lin(x)
        return (out, self.auxiliary(out)) if self.training else out


lazy_in_training = with_inputs(WithAuxiliaryHead)


class Pools(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 4)

    def forward(self, x):
        return torch.nested.to_padded_tensor(self.lin(x), 0.0).sum(1)


def _lengths(batch):
    return [torch.randn(2 + number % 4, 8) for number in range(batch)]


jagged = with_inputs(Pools, lambda batch: torch.nested.nested_tensor(_lengths(batch), layout=torch.jagged))
strided = with_inputs(Pools, lambda batch: torch.nested.nested_tensor(_lengths(batch)))


def random_lengths():
    def inputs(batch):
        longest = max(random.randint(8, 60) + np.random.randint(8) for _ in range(batch))  # noqa: NPY002
        return torch.randn(batch, longest, WIDTH)

    return nn.Linear(WIDTH, 4), inputs


class RefusesEval(nn.Linear):
    """Refuses both eval() and train(), as an exported program does."""

    def train(self, mode=True):
        raise NotImplementedError(f"{'train' if mode else 'eval'}() is not supported yet")


refuses_eval = with_inputs(lambda: RefusesEval(WIDTH, 2))


class OnlyTrains(nn.Linear):
    def forward(self, x):
        if not self.training:
            raise RuntimeError("call post_process() before inference")
        return super().forward(x)


only_trains = with_inputs(lambda: OnlyTrains(WIDTH, 2))


class Wrong(nn.Linear):
    def forward(self, x):
        raise ValueError("the model's own mistake")


wrong = with_inputs(lambda: Wrong(WIDTH, 2))


class Refuses(nn.Linear):
    def to(self, *_, **__):
        raise ValueError(".to is not supported for models that were dispatched")


refuses_to_move = with_inputs(lambda: Refuses(WIDTH, 2))


class OwnLoss(nn.Linear):
    def forward(self, x):
        scores = super().forward(x)
        return scores.square().mean(), scores


own_loss = with_inputs(lambda: OwnLoss(WIDTH, 2))


class TwoNetworks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 1)

    def forward(self, x):
        return {"critic": self.one(x).sigmoid().mean(), "generator": self.other(x).sigmoid().mean()}


two_networks = with_inputs(TwoNetworks)


def linear_layers():
    return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)), lambda batch: torch.randn(batch, 64)
