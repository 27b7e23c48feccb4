"""A listener of the timing of a row."""

import time


class Heard:
    """Counts windows and records announcements; at a meeting it waits for ``waits_s`` seconds."""

    def __init__(self):
        self.windows, self.waits_s, self.busy_s = 0, 0.0, []

    def busy(self, seconds):
        self.busy_s.append(seconds)

    def window(self, *, begins):
        self.windows += begins

    def meet(self, work):
        time.sleep(self.waits_s)
        return 0
