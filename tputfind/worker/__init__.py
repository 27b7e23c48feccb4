"""The code of child processes, which builds models and times them; only it and ``stages`` import torch."""
