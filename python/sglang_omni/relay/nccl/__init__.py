"""The relay over torch.distributed: NCCL between GPUs, gloo between CPUs."""
