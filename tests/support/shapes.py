"""Shapes of models for the simulated device, invented and not used for tuning."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Final

from support.simulated import Limit, Request, Shape

MB: Final = 10**6
MIB: Final = 2**20
GIB: Final = 2**30

Grow = Callable[[int], float]
Step = Callable[[int], Sequence[Request]]

KERNEL: Final = "CUDA error: invalid configuration argument"
CUBLAS: Final = "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"
INDEX: Final = "Expected canUse32BitIndexMath(input) && canUse32BitIndexMath(output) to be true, but got false."
GRID: Final = "CUDA error: invalid configuration argument (grid 65536)"
POSITIONS: Final = "index 512 is out of bounds for dimension 0 with size 512"


def linear(batch_size: int) -> float:
    return float(batch_size)


def square(batch_size: int) -> float:
    return float(batch_size) ** 2


def cube(batch_size: int) -> float:
    return float(batch_size) ** 3


def power(exponent: float) -> Grow:
    return lambda batch_size: float(batch_size) ** exponent


def b_log_b(batch_size: int) -> float:
    return batch_size * math.log2(batch_size + 1)


def up(batch_size: int, multiple: int) -> int:
    return -(-batch_size // multiple) * multiple


def padded(multiple: int) -> Grow:
    return lambda batch_size: float(up(batch_size, multiple))


def padded_square(multiple: int) -> Grow:
    return lambda batch_size: float(up(batch_size, multiple)) ** 2


def next_power_of_two(batch_size: int) -> float:
    return float(1 << (batch_size - 1).bit_length())


class Part:
    """A request of every step: ``fixed + growing * grow(batch size)`` bytes."""

    def __init__(self, fixed: float, growing: float, grow: Grow = linear, lives: int | None = 1) -> None:
        self.fixed, self.growing, self.grow, self.lives = fixed, growing, grow, lives

    def __call__(self, batch_size: int) -> Request:
        return Request(int(self.fixed + self.growing * self.grow(batch_size)), self.lives)


def of_parts(*parts: Part) -> Step:
    """Return the step that makes these requests in order."""
    return lambda batch_size: [part(batch_size) for part in parts]


def net(sample_bytes: int, layers: int = 16, seed: int = 0, *, keeps: bool = False) -> list[Part]:
    """Return layers of a typical network: activations of at most ``sample_bytes``, some kept for a residual, and
    small workspaces between them. With ``keeps``, activations are kept for the backward pass.
    """
    chance = random.Random(seed)
    parts = []
    for place in range(layers):
        size = max(2, int(sample_bytes * 2 ** -(4 * place / layers + 0.5 * chance.random())) // 2 * 2)
        if chance.random() < 0.4:
            parts.append(Part(chance.choice([8 * MIB, 32 * MIB, 1 * MIB]), 0, lives=0))
        lives = None if keeps else chance.choice([1, 1, 1, 3])
        parts.append(Part(0, size, lives=lives))
    if keeps:
        parts += [Part(0, part.growing, lives=1) for part in reversed(parts) if part.lives is None]
    return [*parts, Part(0, 4000)]


def images(numbers: int = 150_528, itemsize: int = 2) -> Callable[[int], Sequence[int]]:
    return lambda batch_size: (itemsize * numbers * batch_size,)


def ids(count: int = 128) -> Callable[[int], Sequence[int]]:
    return lambda batch_size: (8 * count * batch_size,)


def nothing(_: int) -> Sequence[int]:
    return (512,)


def _linear() -> Iterator[Shape]:
    zoo = [("small", 200_000, 12), ("resnet", 3_200_000, 20), ("mobile", 4_800_000, 30), ("vit", 1_600_000, 24)]
    for seed, (name, size, layers) in enumerate(zoo):
        yield Shape(name=f"linear {name}", family="linear", step=of_parts(*net(size, layers, seed)), inputs=images())
    for place, size in enumerate([20_000, 100_000, 12 * MB, 60 * MB, 250 * MB]):
        step = of_parts(*net(size, 16, 10 + place))
        yield Shape(name=f"linear {size / MB:g} MB", family="linear", step=step, inputs=images(size // 20))
    for weights in (1 * GIB, 3 * GIB, 6 * GIB):
        step = of_parts(*net(3 * MB, 24, weights % 89))
        sizes = (weights // 32,) * 32
        yield Shape(name=f"linear weights {weights // GIB} GiB", family="linear", step=step, weights=sizes)
    for size in (300_000, 5 * MB):
        step = of_parts(*net(size, 18, size % 97, keeps=True))
        yield Shape(name=f"linear training {size / MB:g} MB", family="linear", step=step, gb_per_s=100.0)
    step = of_parts(Part(77 * MB, 1.3 * MB), *net(200_000, 8, 3))
    yield Shape(name="lstm 77 MB + 1.3 MB b", family="linear", step=step, inputs=ids())
    step = of_parts(Part(900 * MB, 50_000, lives=4), Part(3 * MB, 120_000), Part(0, 60_000), Part(0, 4000))
    yield Shape(name="lstm 900 MB + 50 kB b", family="linear", step=step, inputs=ids())
    step = of_parts(Part(12_345_678, 333_333.5, lives=None), Part(0, 100_000), Part(0, 4000))
    yield Shape(name="lstm 12 MB + 333 kB b", family="linear", step=step, inputs=ids())


def _host_inputs() -> Iterator[Shape]:
    for name, numbers, size in [
        ("image", 150_528, 3_200_000),
        ("image small net", 150_528, 700_000),
        ("audio", 1_000_000, 6 * MB),
        ("ids", 128, 1_600_000),
        ("ids wide", 512, 30_000),
        ("lstm", 12_800, 400_000),
        ("tabular", 100, 4_000),
        ("video", 8_000_000, 60 * MB),
    ]:
        parts = [Part(77 * MB, 1_300_000)] if name == "lstm" else []
        step = of_parts(*parts, *net(size, 16, numbers % 83))
        yield Shape(
            name=f"host {name}",
            family="inputs on the CPU",
            step=step,
            inputs=images(numbers, 4),
            host_numbers=float(numbers),
        )


def _more_than_linear() -> Iterator[Shape]:
    def made(name: str, *parts: Part, **more: Any) -> Shape:
        given: dict[str, Any] = {"inputs": images(4096), "host_numbers": 4096.0, **more}
        return Shape(name=name, family="more than linear", step=of_parts(*parts, Part(0, 8)), **given)

    for width in (1, 8, 64, 512):
        pairs = [Part(0, 8192, lives=4), Part(0, 4 * width, square), Part(0, 4 * width, square), Part(0, 4, square)]
        yield made(f"pairwise b*b*{width}", *pairs)
    yield made("contrastive", *net(200_000, 12, 4), Part(0, 2048), Part(0, 4, square, None), Part(0, 4, square, None))
    yield made("square alone", Part(0, 4, square, lives=None), Part(0, 4, square), inputs=images(64), host_numbers=64.0)
    mixed = [Part(0, 40_000, lives=5), Part(0, 256, square, lives=2), Part(0, 0.5, square), Part(8 * MIB, 0, lives=0)]
    yield made("square mixed", *mixed, *net(400_000, 8, 5))
    yield made("cube", Part(0, 4096), Part(0, 4, cube), Part(0, 4, square))
    yield made("cube twice", *net(100_000, 6, 6), Part(0, 2, cube, lives=3), Part(0, 2, cube), Part(0, 2, cube))
    yield made("b^1.5", *net(50_000, 8, 7), Part(0, 20_000, power(1.5), lives=2), Part(0, 20_000, power(1.5)))
    yield made("b^1.5 small", Part(0, 400, power(1.5), lives=2), Part(0, 400, power(1.5)), Part(0, 4096))
    yield made("b log b", *net(20_000, 8, 8), Part(0, 3000, b_log_b, lives=2), Part(0, 3000, b_log_b))
    sinkhorn = [Part(0, 4, square, lives=None), *(Part(0, 4, square, lives=2) for _ in range(24))]
    yield made("sinkhorn", Part(0, 2048), *sinkhorn, gb_per_s=40.0)
    graph = [Part(0, 2, padded_square(128), lives=3) for _ in range(6)]
    yield made("dense graph padded to 128", Part(0, 256, padded(128)), *graph, copyable=False, host_numbers=400.0)


def _sublinear() -> Iterator[Shape]:
    for name, factor, grow in [
        ("square root", 60.0 * MB, power(0.5)),
        ("b^0.75", 300_000.0, power(0.75)),
        ("logarithm", 200.0 * MB, lambda batch_size: math.log2(batch_size + 1)),
    ]:
        step = of_parts(Part(0, factor, grow, lives=2), Part(0, factor, grow), Part(0, 2000), Part(0, 8))
        yield Shape(name=name, family="sublinear", step=step, inputs=ids(4), host_numbers=4.0)


def _steps() -> Iterator[Shape]:
    def made(name: str, step: Step, **more: Any) -> Shape:
        return Shape(name=name, family="steps and padding", step=step, **more)

    for multiple, size in ((64, 2 * MB), (64, 100_000), (128, 900_000), (1000, 300_000)):
        parts = [Part(0, size >> place % 3, padded(multiple), part) for place, part in enumerate([1, 2, 1, 3, 1, 1])]
        yield made(f"padded to {multiple}, {size / MB:g} MB", of_parts(*parts, Part(0, 4000)))
    parts = [Part(0, 700_000, next_power_of_two, lives) for lives in (1, 2, 1, 1)]
    yield made("padded to a power of two", of_parts(*parts, Part(0, 40_000), Part(0, 4000)))

    def chunks(batch_size: int) -> Sequence[Request]:
        count = -(-batch_size // 256)
        parts = [Request(800_000 * min(256, batch_size)) for _ in range(min(count, 24))]
        return [Request(50_000 * batch_size, None), *parts, Request(4000 * batch_size)]

    yield made("chunks of 256", chunks)
    for above, factor in ((1000, 2.0), (3000, 2.0), (7000, 3.0)):
        late = steeper(above, factor)
        yield made(f"slope times {factor:g} from {above}", of_parts(Part(0, 2 * MB, late), Part(0, MB), Part(0, 4000)))
    burst = [Part(0, MB, lives=2), Part(0, 40 * MB, explodes(2000)), Part(0, 500_000), Part(0, 4000)]
    yield made("explodes at 2000", of_parts(*burst))
    quiet = [Part(0, 100_000, lives=2), Part(0, 100_000, explodes(20_000)), Part(0, 50_000), Part(0, 4000)]
    yield made("explodes at 20000", of_parts(*quiet))
    for seed in range(4):
        yield made(f"kernels that change {seed}", changing_kernels(seed))
    yield made("two workspaces", two_workspaces(1 * GIB, 900_000))
    yield made("two workspaces, large", two_workspaces(4 * GIB, 4 * MB))


def steeper(above: int, factor: float) -> Grow:
    """Return a function that grows ``factor`` times as fast above a batch size."""
    return lambda batch_size: batch_size + (factor - 1) * max(0, batch_size - above)


def explodes(above: int) -> Grow:
    """Return a function that is almost 0 up to a batch size and grows with power 1.5 above it."""
    return lambda batch_size: 0.01 * batch_size + (float(batch_size - above) ** 1.5 if batch_size > above else 0.0)


def changing_kernels(seed: int) -> Step:
    """Return a network whose library changes kernels, with other buffers, from some batch sizes on."""
    parts = net(1_600_000, 14, 100 + seed)

    def step(batch_size: int) -> Sequence[Request]:
        requests: list[Request] = []
        for place, part in enumerate(parts):
            chance = random.Random(f"{seed} {place} {int(1.5 * math.log2(batch_size))}")
            size = int(part.growing * batch_size)
            buffer = chance.choice([0, 0, int(0.3 * size), size, 64 * MIB, 400 * MIB])
            if buffer and part.lives != 0:
                requests.append(Request(buffer, chance.choice([0, 1])))
            requests.append(part(batch_size))
        return requests

    return step


def two_workspaces(fixed: int, growing: int) -> Step:
    """Return a step that requests a large workspace, with a smaller fallback, and one that grows."""

    def step(batch_size: int) -> Sequence[Request]:
        net_requests = [part(batch_size) for part in net(1_200_000, 10, 55)]
        first = [Request(fixed, 0), Request(growing * batch_size, 1), Request(growing // 7 * batch_size + 5 * MB, 0)]
        return [*net_requests[:4], *first, *net_requests[4:]]

    return step


def _limits() -> Iterator[Shape]:
    def made(name: str, limit: Limit, size: int = 300_000, **more: Any) -> Shape:
        step = more.pop("step", of_parts(*net(size, 14, len(name))))
        return Shape(name=name, family="limits not of memory", step=step, limits=(limit,), **more)

    yield made("max 512", Limit(512, POSITIONS, at=0.0))
    yield made("max 1000", Limit(1000, "the batch is larger than the table of 1000", at=0.0), host_numbers=2000.0)
    yield made("kernel limit 4096", Limit(4096, KERNEL, sticky=True))
    yield made("kernel limit 4096, host", Limit(4096, KERNEL, sticky=True), host_numbers=50_000.0)
    yield made("cublas 8192", Limit(8192, CUBLAS, sticky=True), size=100_000)
    yield made("grid 65535", Limit(65535, GRID, sticky=True), size=40_000, host_numbers=200.0)
    for elements in (50_176, 802_816, 3000):
        above = 2**31 // elements
        yield made(
            f"2^31 elements, {elements} each", Limit(above, INDEX), size=2 * elements, host_numbers=elements / 50
        )
    yield made("hangs from 3000", Limit(2999, "", hangs=True))
    slow = made("slow past 2^32 elements", Limit(2**31 - 1, ""), size=150_000)
    yield Shape(
        name=slow.name,
        family="limits not of memory",
        step=slow.step,
        step_ms=lambda batch_size: 0.01 * batch_size * (1 if batch_size * 75_000 < 2**32 else 40),
    )
    yield Shape(
        name="multiples of 4", family="limits not of memory", step=of_parts(*net(2 * MB, 12, 31)), granularity=4
    )


def _untraced_shapes() -> Iterator[Shape]:
    def made(name: str, step: Step, **more: Any) -> Shape:
        return Shape(name=f"no trace, {name}", family="no trace", step=step, traced=False, **more)

    yield made("3 MB", of_parts(*net(3 * MB, 16, 41)))
    yield made("100 kB", of_parts(*net(100_000, 16, 42)), inputs=images(5000))
    yield made("40 MB", of_parts(*net(40 * MB, 16, 43)))
    yield made("host", of_parts(*net(400_000, 16, 44)), inputs=images(50_000), host_numbers=50_000.0)
    yield made("square", of_parts(Part(0, 4096), Part(0, 64, square), Part(0, 4, square)), inputs=images(4096))
    yield made("weights", of_parts(*net(2 * MB, 16, 45)), weights=(100 * MIB,) * 30)
    yield made("compiled", of_parts(*net(1 * MB, 16, 46)), compile_s=8.0)


def _pieces() -> Iterator[Shape]:
    for seed in range(5):
        chance = random.Random(f"pieces {seed}")
        parts = [
            Part(0, chance.choice([1, 2, 3, 5, 8, 13, 21]) * 37_000, lives=chance.randint(1, 14)) for _ in range(40)
        ]
        yield Shape(name=f"pieces {seed}", family="pieces", step=of_parts(*parts, Part(0, 4000)))


def _slow() -> Iterator[Shape]:
    def made(name: str, size: int, **more: Any) -> Shape:
        return Shape(name=name, family="slow", step=of_parts(*net(size, 14, len(name))), **more)

    yield made("function 2 ms a sample", 3 * MB, host_s=0.002, host_numbers=1000.0)
    yield made("function 2 ms a sample, small", 400_000, host_s=0.002, host_numbers=1000.0)
    yield made("function 50 ms a sample", 20 * MB, host_s=0.05, host_numbers=1000.0)
    yield made("function that holds 4 times", 2 * MB, host_numbers=150_528.0, host_copies=6.0)
    yield made("slow steps", 4 * MB, step_ms=lambda batch_size: 3.0 * batch_size)
    yield made("diffusion 50 steps", 8 * MB, step_ms=lambda batch_size: 250.0 + 12.0 * batch_size)
    micro = of_parts(Part(0, 200_000, lives=None), *(Part(600 * MB, 0) for _ in range(8)), Part(0, 4000))
    yield Shape(name="micro-batches", family="slow", step=micro, step_ms=lambda batch_size: 0.25 * batch_size)
    endless = of_parts(Part(20 * MB, 0), Part(40 * MB, 0))
    more: dict[str, Any] = {"family": "slow", "step": endless, "inputs": nothing}
    yield Shape(name="endless", step_ms=lambda batch_size: batch_size / 1000, **more)
    yield Shape(name="endless, host", host_numbers=50.0, step_ms=lambda batch_size: batch_size / 1e5, **more)
    yield made("compiles 15 s", 2 * MB, compile_s=15.0)
    yield made("starts 30 s", 2 * MB, start_s=30.0)


def mixture(seed: int) -> Shape:
    """Return a random shape: parts of several kinds, inputs and limits."""
    chance = random.Random(f"mixture {seed}")
    scale = 10 ** chance.uniform(3.5, 7)
    grows: list[tuple[Grow, float]] = [(linear, 1.0)] * 6
    grows += [(padded(64), 1.0), (padded(128), 1.0), (square, 0.003), (power(1.5), 0.03), (b_log_b, 0.1)]
    kinds = [grows[0], chance.choice(grows), chance.choice(grows)]
    parts = []
    for _ in range(chance.randint(6, 30)):
        grow, factor = chance.choice(kinds)
        fixed = chance.choice([0, 0, 0, 0, 2 ** chance.randint(10, 29)])
        growing = max(2, int(scale * factor * 2 ** chance.uniform(-4, 0)))
        parts.append(Part(fixed, growing, grow, chance.choice([0, 1, 1, 1, 2, 3, 6, None])))
    numbers = chance.choice([0.0, 0.0, 128.0, scale / 20])
    limits = [(4096, KERNEL, True), (2**31 // int(scale), INDEX, False), (65535, GRID, True), (1000, POSITIONS, False)]
    above, text, sticky = chance.choice(limits)
    limit = (Limit(max(70, above), text, sticky),) if chance.random() < 0.2 else ()
    return Shape(
        name=f"mixture {seed}",
        family="mixtures",
        step=of_parts(*parts, Part(0, 8)),
        weights=(int(10 ** chance.uniform(6, 8.3)),) * chance.randint(1, 20),
        inputs=images(max(1, int(numbers or scale / 20)), 4),
        start_s=chance.uniform(0.8, 3.5),
        gb_per_s=10 ** chance.uniform(1.3, 2.5),
        host_numbers=numbers,
        limits=limit,
        traced=chance.random() > 0.1,
    )


def random_kernels(seed: int) -> Shape:
    """Return a random network whose kernels change."""
    chance = random.Random(f"kernels {seed}")
    numbers = chance.choice([0.0, 0.0, 20_000.0])
    return Shape(
        name=f"random kernels {seed}",
        family="random kernels",
        step=changing_kernels(1000 + seed),
        start_s=chance.uniform(0.8, 3.5),
        host_numbers=numbers,
    )


@cache
def shapes(draws: int = 0, first: int = 0) -> dict[str, Shape]:
    """Return all shapes by name; with ``draws``, only that many of each random generator, from ``first`` on."""
    found: list[Shape] = []
    if not draws:
        makers = (
            _linear,
            _host_inputs,
            _more_than_linear,
            _sublinear,
            _steps,
            _limits,
            _untraced_shapes,
            _pieces,
            _slow,
        )
        found += [shape for made in makers for shape in made()]
    mixtures, kernels = (range(first, first + draws),) * 2 if draws else (range(8), range(4))
    found += [*map(mixture, mixtures), *map(random_kernels, kernels)]
    return {shape.name: shape for shape in found}
