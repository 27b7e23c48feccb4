"""A typical training script: its main does the work and returns None."""

import torch


class Net(torch.nn.Linear):
    pass


def make():
    return Net(4, 4)


def nothing():
    make()


def _private():
    pass


def main():
    raise SystemExit("the whole training was run")


if __name__ == "__main__":
    main()
