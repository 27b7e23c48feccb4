"""The method of measuring, by number, and what is known of how far its figures hold."""

from typing import Final

METHOD: Final = 10
"""Raised when measuring changes, so that numbers taken before and after are not compared unawares."""
REPEATABILITY: Final = 0.002
"""Figures of one machine are not known better than to this share, however many samples there are: the same loop of ten
seconds, in processes of its own some minutes apart, differed by 0.2 % (ResNet-50, batch 256, on an H200), while the
processes of one run lay within 0.03 %."""
NEGLIGIBLE_BYTES: Final = 16 * 2**20
"""Drivers and monitors hold up to this much of a device, which changes no answer."""
