"""A model that raises if its products or convolutions are not IEEE fp32, for each way to enable TF32."""

import torch
from torch import nn

WIDTH = 1024


class Products(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin, self.conv = nn.Linear(WIDTH, WIDTH), nn.Conv2d(64, 64, 3)

    def forward(self, x):
        exact = x.double() @ self.lin.weight.double().T + self.lin.bias.double()
        image = x.view(-1, 64, 4, 4)
        image_exact = nn.functional.conv2d(image.double(), self.conv.weight.double(), self.conv.bias.double())
        y, z = self.lin(x), self.conv(image)
        error = max(float((one - two).norm() / two.norm()) for one, two in ((y, exact), (z, image_exact)))
        if error > 2e-5:  # TF32 comes to some 3e-4
            raise AssertionError(f"the products are not IEEE fp32: they are off by {error:.1e}")
        return y


def inputs(batch):
    return torch.randn(batch, WIDTH)


def by_the_old_switches():
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    return Products(), inputs


def by_precision():
    torch.set_float32_matmul_precision("medium")
    return Products(), inputs


def by_the_new_switch():
    torch.backends.fp32_precision = "tf32"
    return Products(), inputs


def by_the_new_switches_of_parts():
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.backends.cudnn.conv.fp32_precision = "tf32"
    return Products(), inputs


def in_the_inputs():
    def switched(batch):
        torch.backends.cuda.matmul.allow_tf32 = True
        return inputs(batch)

    return Products(), switched
