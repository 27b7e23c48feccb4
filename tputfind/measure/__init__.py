"""All that touches torch, and the processes it lives in.

``children`` is the parent's side and imports no torch; ``server``, ``worker`` and the rest run in child processes.
"""
