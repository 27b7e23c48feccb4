"""LightningModules, each a factory for ``lit.py:NAME``, and the loops that train them without Lightning."""

import copy
import sys
from time import perf_counter

import lightning
import torch
from torch import distributed, nn
from torch.nn.functional import cross_entropy, softplus
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import tputfind


class Classifier(lightning.LightningModule):
    """Optimized automatically; logs, and warms up its learning rate over the length of the training."""

    def __init__(self, form: str = "dict", width: int = 64) -> None:
        super().__init__()
        self.form = form
        self.layers = nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, width), nn.Linear(width, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.layers(x)
        return scores.mean(1) if scores.dim() > 2 else scores

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = cross_entropy(self(x), y)
        self.log("loss", loss, prog_bar=True)
        self.log_dict({"again": loss, "step": float(self.global_step)})
        return {"loss": loss, "scores": None}

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        steps = self.trainer.estimated_stepping_batches
        schedule = LambdaLR(optimizer, lambda step: 1 - step / steps)
        return {
            "one": optimizer,
            "list": [optimizer],
            "lists": ([optimizer], [schedule]),
            "dict": {"optimizer": optimizer, "lr_scheduler": schedule},
            "dicts": ({"optimizer": optimizer},),
            "scheduler in a dict": ([optimizer], [{"scheduler": schedule, "interval": "step"}]),
            "nothing": None,
            "text": "adamw",
            "two": [optimizer, torch.optim.SGD(self.parameters(), lr=0.1)],
        }[self.form]


class Gan(lightning.LightningModule):
    """Optimized manually by two optimizers; the generator steps every other time only."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 128))
        self.critic = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1))

    def training_step(self, batch, batch_idx):
        of_generator, of_critic = self.optimizers()
        noise, real = batch["noise"], batch["real"]
        fake = self.generator(noise)
        loss = (softplus(-self.critic(real)) + softplus(self.critic(fake.detach()))).mean()
        of_critic.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(of_critic, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
        of_critic.step()
        self.log("critic", loss)
        if batch_idx % 2:
            self.toggle_optimizer(of_generator)
            loss = softplus(-self.critic(fake)).mean()
            of_generator.zero_grad()
            self.manual_backward(loss)
            of_generator.step()
            self.untoggle_optimizer(of_generator)

    def configure_optimizers(self):
        return torch.optim.Adam(self.generator.parameters()), torch.optim.Adam(self.critic.parameters())


class Summing(lightning.LightningModule):
    """Optimized manually; raises if the ranks, whose inputs differ, have different gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.layer = nn.Linear(16, 4)

    def training_step(self, batch, _batch_idx):
        loss = self.layer(batch + tputfind.context().rank).square().mean()
        self.manual_backward(loss)
        if distributed.is_initialized():
            gathered = [torch.empty(4, 16) for _ in range(2)]
            distributed.all_gather(gathered, self.layer.weight.grad)
            if not torch.equal(*gathered):
                raise ValueError("the gradients were not summed")
        self.optimizers().step()
        self.optimizers().zero_grad()
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Norm(nn.Module):
    def forward(self, x):
        if self.training and len(x) == 1:
            raise ValueError("a sample alone has no spread")
        return x - x.mean(0) if self.training else x


class LazyGan(Gan):
    """Has a lazy layer and one that takes no single sample in training, and its step uses optimizers."""

    def __init__(self) -> None:
        super().__init__()
        self.generator.insert(0, nn.LazyLinear(16))
        self.generator.insert(1, Norm())


class Begins(Classifier):
    """Creates an average of its weights when its training begins, and logs to an experiment."""

    def on_fit_start(self) -> None:
        self.order = ["fit"]

    def on_train_start(self) -> None:
        self.order.append("train")
        self.average = copy.deepcopy(self.layers).requires_grad_(False)

    def on_train_epoch_start(self) -> None:
        self.order.append("epoch")

    def training_step(self, batch, batch_idx):
        output = super().training_step(batch, batch_idx)
        self.logger.experiment.add_scalar("loss", output["loss"], self.global_step)
        if self.trainer.is_last_batch:
            raise ValueError("the training never ends")
        return output

    def on_train_batch_end(self, *_) -> None:
        for mean, weight in zip(self.average.parameters(), self.layers.parameters(), strict=True):
            mean.lerp_(weight.data, 0.01)


class Parent(Classifier):
    """Has a layer that is a LightningModule and logs too; it is made by a hook."""

    def configure_model(self) -> None:
        self.layers.append(_Logs())


class _Logs(lightning.LightningModule):
    def forward(self, x):
        self.log("mean", x.mean())
        self.log_dict({"sum": x.sum()})
        return self.all_gather(x, sync_grads=True)


class Typed(Classifier):
    """Adds a tensor of the dtype that it takes for its own."""

    def forward(self, x):
        return self.layers(x) + torch.zeros(10, dtype=self.dtype)


class Gathers(Classifier):
    """Compares its samples with those of all ranks."""

    def training_step(self, batch, batch_idx):
        x, _ = batch
        outputs = self.all_gather({"scores": self.layers(x), "rank": self.global_rank}, sync_grads=True)
        ranks = outputs["rank"].flatten().tolist()
        assert ranks == list(range(self.trainer.world_size))
        assert ranks.index(self.global_rank) == 0 or not self.trainer.is_global_zero
        return outputs["scores"].flatten(0, -2).square().mean()


class Skips(Classifier):
    """Skips every second batch."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) if batch_idx % 2 else None


class Encoder(lightning.LightningModule):
    """Is trained to return its input; its example gives the input's shape."""

    def __init__(self) -> None:
        super().__init__()
        self.example_input_array = torch.zeros(2, 24)

    def configure_model(self) -> None:
        self.layers = nn.Sequential(nn.Linear(24, 8), nn.Linear(8, 24))

    def forward(self, x):
        return self.layers(x)

    def training_step(self, batch):
        return (self(batch) - batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class NextToken(Encoder):
    """Forecasts each number of its input from the one before."""

    def training_step(self, batch):
        known, next_ = batch[:, :-1], batch[:, 1:]
        return (self(nn.functional.pad(known, (1, 0)))[:, 1:] - next_).square().mean()


class WithData(Classifier):
    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.randn(40, 32), torch.arange(40) % 10), batch_size=4)


class Records(WithData):
    """Records its hooks for a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = []

    def on_after_batch_transfer(self, batch, _dataloader_idx):
        self.calls.append(("after", torch.is_autocast_enabled("cpu")))
        return batch

    def on_train_batch_start(self, _batch, batch_idx) -> None:
        self.calls.append(("start", batch_idx, self.global_step))

    def on_before_backward(self, _loss) -> None:
        self.calls.append("before backward")

    def on_after_backward(self) -> None:
        self.calls.append("after backward")

    def on_before_optimizer_step(self, _optimizer) -> None:
        self.calls.append("before the optimizer's step")

    def on_before_zero_grad(self, _optimizer) -> None:
        self.calls.append(("zero", self.trainer.accumulate_grad_batches))

    def optimizer_step(self, epoch, batch_idx, *rest) -> None:
        self.calls.append(("step", batch_idx))
        super().optimizer_step(epoch, batch_idx, *rest)

    def training_step(self, batch, batch_idx):
        self.calls.append(("training", torch.is_autocast_enabled("cpu")))
        return super().training_step(batch, batch_idx)["loss"]

    def on_train_batch_end(self, outputs, _batch, batch_idx) -> None:
        self.calls.append(("end", batch_idx, self.global_step, outputs["loss"].requires_grad))


class RecordsManually(Records):
    """Records its hooks, and optimizes manually."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.manual_backward(loss)
        self.optimizers().step()
        self.optimizers().zero_grad()
        return loss


class _Pairs(IterableDataset):
    def __len__(self):
        return 40

    def __iter__(self):
        return iter([(torch.randn(32), number % 10) for number in range(40)])


class WithStream(Classifier):
    def train_dataloader(self):
        return DataLoader(_Pairs(), batch_size=4)


class Prepares(WithData):
    """Prepares data, and makes of each batch what its step takes; its teacher stays in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Dropout(0.5).eval()

    def prepare_data(self) -> None:
        self.prepared = True

    def setup(self, stage: str) -> None:
        assert self.prepared

    def on_before_batch_transfer(self, batch, _dataloader_idx):
        return {"x": batch[0], "y": batch[1]}

    def training_step(self, batch, batch_idx):
        assert self.training
        assert not self.teacher.training
        return super().training_step((batch["x"], batch["y"]), batch_idx)


class LoadsBatches(Classifier):
    def train_dataloader(self):
        return DataLoader([(torch.randn(4, 32), torch.arange(4))] * 3, batch_size=None)


class TakesApart(Classifier):
    example_input_array = torch.zeros(2, 32)


def pair_of(size):
    return torch.randn(size, 32), torch.randint(10, (size,))


def with_inputs(make, inputs=pair_of):
    """Return a factory of a model that ``make`` returns, and of inputs."""
    return lambda: (make(), inputs)


def many_pairs(size):
    return torch.randn(size, 2048, 32), torch.randint(10, (size,))


def noise_and_real(patches):
    """Return the inputs of a Gan."""
    return lambda size: {"noise": torch.randn(size, patches, 16), "real": torch.randn(size, patches, 128)}


alone, encoder, next_token, with_data, with_stream = Classifier, Encoder, NextToken, WithData, WithStream
prepares, loads_batches, takes_apart = Prepares, LoadsBatches, TakesApart
classifier = with_inputs(Classifier)
begins = with_inputs(Begins)
parent = with_inputs(Parent)
typed = with_inputs(Typed, lambda size: torch.randn(size, 32))
gathers = with_inputs(Gathers)
prepares_made = with_inputs(Prepares)
skips = with_inputs(Skips)
wide = with_inputs(Classifier, many_pairs)
gan = with_inputs(Gan, noise_and_real(2048))
lazy_gan = with_inputs(LazyGan, noise_and_real(1))
summing = with_inputs(Summing, lambda size: torch.randn(size, 16))
no_optimizer = with_inputs(lambda: Classifier("nothing"))
text_as_optimizer = with_inputs(lambda: Classifier("text"))
two_optimizers = with_inputs(lambda: Classifier("two"))


def loop(batch_size: int, steps: int, where: str = "cpu", name: str = "wide") -> list[float]:
    """Train as Lightning's loops do, without Lightning, and return the seconds of each step."""
    module, make = globals()[name]()
    module.to(where)
    batch = torch.utils._pytree.tree_map(lambda part: part.to(where), make(batch_size))
    seconds = []
    train = _loop_of_gan(module, batch) if name == "gan" else _loop_of_classifier(module, batch)
    for _ in range(steps):
        start_s = perf_counter()
        next(train)
        seconds.append(perf_counter() - start_s)
    return seconds


def _loop_of_classifier(module, batch):
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    x, y = batch
    while True:
        loss = cross_entropy(module(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.detach()


def _loop_of_gan(module, batch):
    of_generator, of_critic = (torch.optim.Adam(part.parameters()) for part in (module.generator, module.critic))
    number = 0
    while True:
        fake = module.generator(batch["noise"])
        loss = (softplus(-module.critic(batch["real"])) + softplus(module.critic(fake.detach()))).mean()
        of_critic.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(module.critic.parameters(), 1.0)
        of_critic.step()
        if number % 2:
            module.critic.requires_grad_(requires_grad=False)
            loss = softplus(-module.critic(fake)).mean()
            of_generator.zero_grad()
            loss.backward()
            of_generator.step()
            module.critic.requires_grad_(requires_grad=True)
        number += 1
        yield loss.detach()


if __name__ == "__main__":
    print(loop(int(sys.argv[1]), 10, name=sys.argv[2]))
