"""Simulated rounds of two interleaved variants: a noise model, without measurements."""

from math import exp

from tputfind.analysis.turns import Round, order_of_block

BLOCKS = 8


def taken(random, *, new=1.0, between=0.01, within=0.02, shared=0.3, number=1):
    """Return rounds of OLD and NEW with run-to-run variation by process, by window, and by block."""
    rounds = []
    for _ in range(number):
        paces = [1000 * exp(random.gauss(0, between)), 1000 * new * exp(random.gauss(0, between))]
        per_s = [[], []]
        for _ in range(BLOCKS):
            load = exp(-abs(random.gauss(0, shared)))
            for variant in order_of_block([0, 1], random):
                per_s[variant].append(paces[variant] * load * exp(random.gauss(0, within)))
        rounds.append(Round(tuple(map(tuple, per_s))))
    return tuple(rounds)
