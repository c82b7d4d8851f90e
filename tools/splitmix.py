# SPDX-License-Identifier: Apache-2.0
"""Random numbers that the tests in C make too, so that vectors hold results alone."""

import torch


class Random:
    """utils/random.h: uniform in [0, 1), multiples of 2^-24."""

    def __init__(self, seed):
        self.state = seed

    def unit(self):
        mask = (1 << 64) - 1
        self.state = (self.state + 0x9E3779B97F4A7C15) & mask
        z = self.state
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
        return ((z ^ z >> 31) >> 40) * 2.0**-24

    def tensor(self, low, high, *shape):
        n = torch.Size(shape).numel()
        values = torch.tensor([self.unit() for _ in range(n)], dtype=torch.float32)
        return (low + (high - low) * values).reshape(shape)
