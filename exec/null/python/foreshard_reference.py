"""How fast a processor runs a training step's Python: a fixed piece of such work, timed."""

import time

SECONDS = 0.53e-3  # where calibration/evidence/host_calls.json was fitted, the least of 30


class Reference:
    """Calls of modules, small tensors of the CPU, autograd."""

    def __init__(self):
        import torch

        with torch.random.fork_rng(devices=[]):  # the program's numbers stay what they are
            self.layer = torch.nn.Linear(8, 8, device="cpu", dtype=torch.float32)
        self.x = torch.zeros(2, 8, device="cpu", dtype=torch.float32)

    def seconds(self):
        """Of processor time, once."""
        import torch

        begin = time.process_time_ns()
        with torch.enable_grad(), torch.autocast("cpu", enabled=False):
            y = self.x
            for _ in range(20):
                y = self.layer(y).transpose(0, 1).mul(0.5).transpose(0, 1).contiguous()
            y.sum().backward()
        return (time.process_time_ns() - begin) * 1e-9

    def ratio(self):
        """How many times as long as on the processor of the fit; a step has just left the caches, so not the first."""
        from torch.utils._python_dispatch import _disable_current_modes

        with _disable_current_modes():
            self.least = min(self.seconds() for _ in range(12))
        return self.least / SECONDS
